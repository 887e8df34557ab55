"""Small training loops, one for each cause that the demo shows.

They are real processes: a main that drives a virtual GPU and, in some, a worker that feeds it
through a multiprocessing queue.

Two cores are enough for all of them along with Prometheus: each uses a CPU for a third of the time
at most, and only while its GPU waits.
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

_TRAINING_WITH_INPUT = Work(pcie_receive_bytes_per_second=6e9)
_GPU_STEP_SECONDS = 0.042
"""46 % of a loop of 92 ms: below 50 %, a GPU counts as underused."""


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A loop with its pod and GPUs."""

    name: str
    shows: str
    pod: tuple[str, str]
    """Namespace and name."""
    memory_gib: int
    loop: Callable[..., None]
    """Takes the GPUs and never returns."""
    gpus: tuple[int, ...]


def healthy(gpu: VirtualGpu) -> None:
    """A loop with batches ready before the GPU needs them."""
    batches = _loader(0.004, ahead=4)
    end = 0
    while True:
        batches.get()
        gpu.synchronize(end)
        end = gpu.launch(0.12, TRAINING)


def slow_worker(gpu: VirtualGpu) -> None:
    """A loop with a single worker that fetches and decodes batches too slowly.

    Fetching overlaps with the GPU's step: the GPU waits for the decoding. Two cores have room for a
    second worker.
    """
    batches = _loader(0.03, ahead=1, wait=0.06)
    while True:
        batches.get()
        gpu.run(_GPU_STEP_SECONDS, _TRAINING_WITH_INPUT)


def python_loop(gpu: VirtualGpu) -> None:
    """A loop that computes metrics in Python between short kernels, and logs them."""
    kernels = Work(memory=0.15, sm_active=0.2, sm_occupancy=0.1, tensor=0.03, watts=90)
    while True:
        burn(0.03)
        gpu.run(_GPU_STEP_SECONDS, kernels)
        time.sleep(0.02)


def inline_loading(gpu: VirtualGpu) -> None:
    """A loop without workers, which reads and decodes its batches itself."""
    with Path("/dev/zero").open("rb", buffering=0) as samples:
        while True:
            samples.read(500_000)  # independent of the disk
            burn(0.02)
            gpu.run(0.06, _TRAINING_WITH_INPUT)


def data_parallel(fast: VirtualGpu, slow: VirtualGpu) -> None:
    """A loop on two GPUs with uneven work that meet after each step."""
    while True:
        end = slow.launch(0.12, TRAINING)
        fast.run(0.07, TRAINING)
        slow.synchronize(end)


def held_idle(gpu: VirtualGpu) -> None:
    """A loop that works for 12 s and then sleeps.

    More work would make it a stalled job; less would escape a new Prometheus.
    """
    end = time.monotonic() + 12.0
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
"""Number of GPUs; the last one is unallocated."""


def burn(seconds: float) -> None:
    """Use CPU time in this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(500))


def _loader(burn_seconds: float, ahead: int, wait: float = 0.0) -> Queue[bytes]:
    """The queue of a worker that prefetches `ahead` batches.

    A batch takes `wait` seconds without a CPU and then `burn_seconds` of CPU time.
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
