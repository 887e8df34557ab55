"""The loops' virtual GPUs."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from gpu_bottleneck_exporter.demo.board.board import Board, VirtualGpu
from stacks.loops.common import FOLDER, Load, placed

STEP = 0.03
"""Seconds that the GPU works on a batch."""
_LAUNCHED_AHEAD = 2


def hold(index: int = 0) -> VirtualGpu:
    """Own a context on GPU `index`."""
    gpu = Board(Path(os.environ["STACKS_BOARD"])).gpus[index]
    gpu.hold(os.getpid(), 2**30)
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


def run(loops: Mapping[str, Any], step: float = STEP) -> NoReturn:
    """Train as the command line says: FUNCTION [WHERE], one of `loops` and a place of `placed`."""
    name, *where = sys.argv[1:]
    train(placed(loops[name], *where), step)


def ready() -> None:
    """Report that the loop is running, if no GPU work shows it."""
    (FOLDER / "ready").touch()


def warm(gpu: VirtualGpu) -> None:
    """Do the GPU work of loading a model."""
    gpu.run(0.15)


def pause() -> NoReturn:
    """Do nothing forever."""
    while True:
        time.sleep(3600)
