"""Both drivers over a virtual board: the one in Python, and pynvml over the C stand-in."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from fake_nvml.build import build
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.driver.nvml.driver import NvmlDriver
from gpu_bottleneck_exporter.driver.protocol import Device, Driver

KINDS = ("virtual", pytest.param("nvml", marks=pytest.mark.processes))
"""Kinds of drivers, for fixtures; NVML's takes a compiler."""


class Libraries:
    """Stand-in libraries by driver branch, compiled once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies = 0

    def path(self, branch: int) -> Path:
        """The library with the symbols of driver `branch`."""
        library = self._folder / str(branch) / "libnvidia-ml.so.1"
        return library if library.exists() else build(library.parent, branch)

    def load(self, branch: int) -> None:
        """Make pynvml load a fresh instance of the library, as in a new process."""
        self._copies += 1
        copy = self._folder / f"copy{self._copies}.so"
        shutil.copy(self.path(branch), copy)
        pynvml.nvmlLib = ctypes.CDLL(str(copy))
        pynvml._nvmlGetFunctionPointer_cache.clear()

    def variables(self, board: Board) -> dict[str, str]:
        """Variables with which another process's pynvml finds the GPUs of `board`."""
        return {"LD_LIBRARY_PATH": f"{self.path(580).parent}", "FAKE_NVML_BOARD": f"{board.path}"}

    def open(self, board: Board, branch: int | None = None) -> NvmlDriver:
        """pynvml on `board`, with the symbols of `branch` (the board's own by default)."""
        os.environ["FAKE_NVML_BOARD"] = str(board.path)
        self.load(branch or int(board.header.driver_branch))
        return NvmlDriver()


def opener(request: pytest.FixtureRequest) -> Callable[[Board], Driver]:
    """Opens the driver of the fixture's kind on a board."""
    if request.param == "virtual":
        return VirtualDriver
    libraries: Libraries = request.getfixturevalue("libraries")
    return libraries.open


def first(driver: Driver) -> Device:
    """The first GPU."""
    return driver.open(0)[0]
