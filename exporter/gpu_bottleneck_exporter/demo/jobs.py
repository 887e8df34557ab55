"""Small training loops, one for each way in which a GPU is, or is not, kept busy.

All of them are real processes: a main process that drives a virtual GPU and, where a data loader
would have them, workers that feed it through a multiprocessing queue.

They are light enough for two cores along with Prometheus and other work, so that none starves
another. The two that burn CPU keep their GPU busy for just less than half of the time, and burn
CPU only while it waits.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.queues import Queue

from gpu_bottleneck_exporter.demo.board.board import VirtualGpu
from gpu_bottleneck_exporter.demo.board.work import TRAINING, Work
from gpu_bottleneck_exporter.demo.orphans import die_with_parent

GIB = 2**30
INPUT = Work(pcie_receive_bytes_per_second=6e9)
SMALL_KERNELS = Work(memory=0.15, sm_active=0.2, sm_occupancy=0.1, tensor=0.03, watts=90)
_BURN_SECONDS, _STEP_SECONDS = 0.05, 0.042
"""46 % busy: a GPU below 50 % counts as underused (gpu:threshold:underused)."""
_FETCH_SECONDS, _DECODE_SECONDS = 0.05, 0.04
"""As much together. Fetching overlaps with the GPU's step, so that it waits for the decoding; and
two cores have room for a second worker."""
_FIRST_WORK_SECONDS = 12.0
"""Long enough for a Prometheus that starts at the same time to see it."""


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One loop: what it demonstrates, the memory it holds, and its code, which never returns."""

    name: str
    shows: str
    memory_bytes: int
    loop: Callable[[VirtualGpu], None]


def healthy(gpu: VirtualGpu) -> None:
    """A loop whose batches are ready before the GPU needs them."""
    batches = _loader(0.004, ahead=4)
    end = 0
    while True:
        batches.get()
        gpu.synchronize(end)
        end = gpu.launch(0.12, TRAINING)


def cpu_preprocessing(gpu: VirtualGpu) -> None:
    """A loop whose only worker fetches and decodes batches, too slowly for the GPU."""
    batches = _loader(_DECODE_SECONDS, ahead=1, wait=_FETCH_SECONDS)
    while True:
        batches.get()
        gpu.run(_STEP_SECONDS, INPUT)


def python_loop(gpu: VirtualGpu) -> None:
    """A loop that computes metrics in Python between short kernels."""
    while True:
        burn(_BURN_SECONDS)
        gpu.run(_STEP_SECONDS, SMALL_KERNELS)


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
    DemoJob("healthy", "kept busy by its data loader", 52 * GIB, healthy),
    DemoJob("cpu-preprocessing", "waits for a worker that burns CPU", 24 * GIB, cpu_preprocessing),
    DemoJob("python-loop", "waits for Python code in the main loop", 9 * GIB, python_loop),
    DemoJob("held-idle", "held by a process that does nothing", 30 * GIB, held_idle),
)


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
    while True:
        time.sleep(wait)
        burn(burn_seconds)
        batches.put(bytes(64))
