"""The virtual board as a driver in pure Python, for `demo`."""

from __future__ import annotations

import time
from dataclasses import replace

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.virtual.device import VirtualDevice
from gpu_bottleneck_exporter.driver.nvml.kubernetes import gpus_of_device
from gpu_bottleneck_exporter.driver.nvml.remedies import NVIDIA
from gpu_bottleneck_exporter.driver.protocol import Device, Driver
from gpu_bottleneck_exporter.driver.readings import ErrorEvent, System


class VirtualDriver(Driver):
    """A board as a driver, without MIG; the board must stay open while the driver is used."""

    name = "virtual"
    calls = 0
    seconds = 0.0
    gpus_of_device = staticmethod(gpus_of_device)
    about = replace(NVIDIA, title="virtual board", simulated=True, sees_all_namespaces=True)

    def __init__(self, board: Board) -> None:
        self.board = board
        cuda = board.header.cuda_version
        self.system = System(
            board.header.driver_version.decode(), f"{cuda // 1000}.{cuda % 1000 // 10}"
        )

    def count(self) -> int:
        """Number of GPUs."""
        return len(self.board.gpus)

    def open(self, index: int) -> list[Device]:
        """GPU `index`."""
        return [VirtualDevice(self.board, index)]

    def wait_error(self, timeout_seconds: float) -> ErrorEvent | None:
        """None after `timeout_seconds`: its GPUs have no errors."""
        time.sleep(timeout_seconds)
        return None
