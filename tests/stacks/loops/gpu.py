"""The loops' virtual GPUs."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from gpu_bottleneck_exporter.demo.board.board import Board, VirtualGpu
from stacks.loops.common import FOLDER, Load, placed

STEP = 0.03
"""Seconds that the GPU works on a batch."""
_LAUNCHED_AHEAD = 2


def hold(index: int = 0) -> VirtualGpu:
    """Own a context on GPU `index` of ours."""
    first = int(os.environ.get("STACKS_GPU", "0"))
    gpu = Board(Path(os.environ["STACKS_BOARD"])).gpus[first + index]
    gpu.hold(os.getpid(), 2**32)
    return gpu


def train(load: Load, step: float = STEP) -> NoReturn:
    """Load a batch and work on it, forever.

    Work is launched a little ahead, as CUDA does: the loop waits for it two steps later.
    """
    gpu = hold()
    ends: deque[int] = deque()
    while True:
        load()
        ends.append(gpu.launch(step))
        if len(ends) > _LAUNCHED_AHEAD:
            gpu.synchronize(ends.popleft())


def run(loops: Mapping[str, Any], name: str, *where: str, step: float = STEP) -> NoReturn:
    """Train on one of `loops`, in a place of `placed`."""
    train(placed(loops[name], *where), step)


def ready() -> None:
    """Report that the loop is running, if no GPU work shows it."""
    (FOLDER / "ready").touch()


def warm(gpu: VirtualGpu) -> None:
    """Do the GPU work of loading a model."""
    gpu.run(0.15)


def loaded() -> Load:
    """Load a model that is served; what runs it, for one request at a time."""
    gpu = hold()
    one_at_a_time = threading.Lock()

    def infer() -> None:
        with one_at_a_time:
            gpu.run(STEP)

    warm(gpu)
    ready()
    return infer


def started() -> Callable[[float], None]:
    """Load a model; what runs it for so many seconds, in the process's only thread that does."""
    gpu = hold()
    warm(gpu)
    ready()
    return gpu.run


def pause() -> NoReturn:
    """Do nothing forever."""
    while True:
        time.sleep(3600)
