"""Small training loops, one for each way in which a GPU is, or is not, kept busy.

All of them are real processes: a main process that drives a virtual GPU and, where a data loader
would have them, workers that feed it through a multiprocessing queue.

They are light enough for two cores along with Prometheus and other work, so that none starves
another, and recommendations hold. Those that burn CPU do so for a third of the time at most, and
only while their GPU waits.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.board import VirtualGpu
from gpu_bottleneck_exporter.demo.board.work import TRAINING, Work
from gpu_bottleneck_exporter.demo.orphans import die_with_parent, name_process

INPUT = Work(pcie_receive_bytes_per_second=6e9)
SMALL_KERNELS = Work(memory=0.15, sm_active=0.2, sm_occupancy=0.1, tensor=0.03, watts=90)
_STEP_SECONDS, _BURN_SECONDS, _LOG_SECONDS = 0.042, 0.03, 0.02
"""46 % busy: a GPU below 50 % counts as underused (gpu:threshold:underused)."""
_FETCH_SECONDS, _DECODE_SECONDS = 0.06, 0.03
"""Together as long as the three above. Fetching overlaps with the GPU's step, so that it waits for
the decoding; and two cores have room for a second worker."""
_FIRST_WORK_SECONDS = 12.0
"""Long enough for a Prometheus that starts at the same time to see it."""


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One loop: what it demonstrates, namespace and pod, memory on each GPU, code, GPUs."""

    name: str
    shows: str
    pod: tuple[str, str]
    memory_gib: int
    loop: Callable[..., None]
    """Takes the GPUs and never returns."""
    gpus: tuple[int, ...]


def healthy(gpu: VirtualGpu) -> None:
    """A loop whose batches are ready before the GPU needs them."""
    batches = _loader(0.004, ahead=4)
    end = 0
    while True:
        batches.get()
        gpu.synchronize(end)
        end = gpu.launch(0.12, TRAINING)


def slow_worker(gpu: VirtualGpu) -> None:
    """A loop whose only worker fetches and decodes batches, too slowly for the GPU."""
    batches = _loader(_DECODE_SECONDS, ahead=1, wait=_FETCH_SECONDS)
    while True:
        batches.get()
        gpu.run(_STEP_SECONDS, INPUT)


def python_loop(gpu: VirtualGpu) -> None:
    """A loop that computes metrics in Python between short kernels, and logs them."""
    while True:
        burn(_BURN_SECONDS)
        gpu.run(_STEP_SECONDS, SMALL_KERNELS)
        time.sleep(_LOG_SECONDS)


def inline_loading(gpu: VirtualGpu) -> None:
    """A loop that has no workers: it reads and decodes its batches itself."""
    with Path("/dev/zero").open("rb", buffering=0) as samples:
        while True:
            samples.read(500_000)  # without any disk, whatever that does
            burn(0.02)
            gpu.run(0.06, INPUT)


def data_parallel(fast: VirtualGpu, slow: VirtualGpu) -> None:
    """A loop whose GPUs wait for each other after each step, with more work for one of them."""
    while True:
        end = slow.launch(0.12, TRAINING)
        fast.run(0.07, TRAINING)
        slow.synchronize(end)


def held_idle(gpu: VirtualGpu) -> None:
    """A loop that worked a little and was then left idle.

    More work would make it a stalled job, and less a job that never started.
    """
    end = time.monotonic() + _FIRST_WORK_SECONDS
    while time.monotonic() < end:
        gpu.run(0.03, TRAINING)
        time.sleep(0.17)
    while True:
        time.sleep(3600)


JOBS = (
    DemoJob("healthy", "kept busy by its loader", ("vision", "resnet"), 52, healthy, (0,)),
    DemoJob("slow-worker", "waits for its worker", ("speech", "asr"), 24, slow_worker, (1,)),
    DemoJob("python-loop", "waits for Python code", ("search", "ranker"), 9, python_loop, (2,)),
    DemoJob("held-idle", "held by a job that sleeps", ("lab", "notebook"), 30, held_idle, (3,)),
    DemoJob("inline-loading", "has no workers", ("vision", "unet"), 18, inline_loading, (4,)),
    DemoJob("data-parallel", "uneven work", ("search", "bert"), 61, data_parallel, (5, 6)),
)
GPUS = 8
"""No job has the last one."""


def burn(seconds: float) -> None:
    """Use `seconds` of CPU time in this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(500))


def _loader(burn_seconds: float, ahead: int, wait: float = 0.0) -> Queue[bytes]:
    """The batches of one worker, which is up to `ahead` of them ahead.

    Each batch takes it `wait` seconds without a CPU and then `burn_seconds` with one.
    """
    context = multiprocessing.get_context("fork")
    batches: Queue[bytes] = context.Queue(ahead)
    arguments = (batches, wait, burn_seconds, os.getpid())
    context.Process(target=_produce, args=arguments, daemon=True).start()
    return batches


def _produce(batches: Queue[bytes], wait: float, burn_seconds: float, parent: int) -> None:
    die_with_parent(parent)
    name_process("pt_data_worker")  # as PyTorch names its own
    while True:
        time.sleep(wait)
        burn(burn_seconds)
        batches.put(bytes(64))
