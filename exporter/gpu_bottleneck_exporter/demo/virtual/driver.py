"""The virtual board as a driver in pure Python, for `demo`."""

from __future__ import annotations

import time
from dataclasses import replace

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.layout import MAX_EVENTS
from gpu_bottleneck_exporter.demo.virtual.device import VirtualDevice
from gpu_bottleneck_exporter.driver.nvml.kubernetes import gpus_of_device
from gpu_bottleneck_exporter.driver.nvml.remedies import NVIDIA
from gpu_bottleneck_exporter.driver.protocol import Device, Driver
from gpu_bottleneck_exporter.driver.readings import ErrorEvent, System

_POLL_SECONDS = 0.05


class VirtualDriver(Driver):
    """A board as a driver, without MIG; the board must stay open while the driver is used."""

    name = "virtual"
    calls = 0
    seconds = 0.0
    gpus_of_device = staticmethod(gpus_of_device)
    about = replace(NVIDIA, title="virtual board", simulated=True, sees_all_namespaces=True)

    def __init__(self, board: Board) -> None:
        self._board = board
        self._next_event = board.header.event_count
        cuda = board.header.cuda_version
        self.system = System(
            board.header.driver_version.decode(), f"{cuda // 1000}.{cuda % 1000 // 10}"
        )

    def count(self) -> int:
        """Number of GPUs."""
        return len(self._board.gpus)

    def open(self, index: int) -> list[Device]:
        """GPU `index`."""
        device = VirtualDevice(self._board, index)
        device.inject_faults("DeviceGetHandleByIndex")
        return [device]

    def wait_error(self, timeout_seconds: float) -> ErrorEvent | None:
        """The next event on the board; None after `timeout_seconds`."""
        deadline = time.monotonic() + timeout_seconds
        while self._next_event >= self._board.header.event_count:
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_SECONDS)
        event = self._board.header.events[self._next_event % MAX_EVENTS]
        self._next_event += 1
        return ErrorEvent(int(event.gpu), int(event.xid))
