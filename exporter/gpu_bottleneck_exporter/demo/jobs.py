"""Little training loops, one for each way in which a GPU is (not) kept busy.

Real processes all the way: a main process that drives a virtual GPU and, where a
data loader would have them, workers that feed it through a multiprocessing queue.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.queues import Queue

from gpu_bottleneck_exporter.demo.orphans import die_with_parent
from gpu_bottleneck_exporter.driver.board import VirtualGpu, Work

GIB = 2**30
TRAINING = Work()
INPUT = replace(TRAINING, pcie_receive_bytes_per_second=6e9)
SMALL_KERNELS = Work(memory=0.15, sm_active=0.2, sm_occupancy=0.1, tensor=0.03, watts=90)
_QUEUE_LENGTH = 4


@dataclass(frozen=True, slots=True)
class Job:
    """One loop: what it shows, the memory it holds, and what it does for ever."""

    name: str
    shows: str
    memory_bytes: int
    loop: Callable[[VirtualGpu], None]


def healthy(gpu: VirtualGpu) -> None:
    """Batches are ready before the GPU wants them."""
    batches = _workers(1, seconds_per_batch=0.004)
    end = 0
    while True:
        batches.get()
        gpu.synchronize(end)
        end = gpu.launch(0.12, TRAINING)


def cpu_preprocessing(gpu: VirtualGpu) -> None:
    """A worker needs longer to decode a batch than the GPU to train on it."""
    batches = _workers(1, seconds_per_batch=0.15)
    while True:
        batches.get()
        gpu.run(0.03, INPUT)


def python_loop(gpu: VirtualGpu) -> None:
    """The main loop computes metrics in Python between short kernels."""
    while True:
        burn(0.06)
        gpu.run(0.015, SMALL_KERNELS)


def held_idle(gpu: VirtualGpu) -> None:
    """A notebook that ran one cell and was left open."""
    gpu.run(3.0, TRAINING)
    while True:
        time.sleep(3600)


JOBS = (
    Job("healthy", "kept busy by its data loader", 52 * GIB, healthy),
    Job("cpu-preprocessing", "waits for a worker that burns CPU", 24 * GIB, cpu_preprocessing),
    Job("python-loop", "waits for Python code in the main loop", 9 * GIB, python_loop),
    Job("held-idle", "held by a process that does nothing", 30 * GIB, held_idle),
)


def run(job: Job, gpu: VirtualGpu) -> None:
    """Hold the GPU and loop until killed."""
    gpu.hold(os.getpid(), job.memory_bytes)
    job.loop(gpu)


def burn(seconds: float) -> None:
    """Use so much CPU time of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(500))


def _workers(count: int, seconds_per_batch: float) -> Queue[bytes]:
    context = multiprocessing.get_context("fork")
    batches: Queue[bytes] = context.Queue(_QUEUE_LENGTH)
    for _ in range(count):
        context.Process(
            target=_produce, args=(batches, seconds_per_batch, os.getpid()), daemon=True
        ).start()
    return batches


def _produce(batches: Queue[bytes], seconds_per_batch: float, parent: int) -> None:
    die_with_parent(parent)
    while True:
        burn(seconds_per_batch)
        batches.put(bytes(64))
