"""Virtual boards with what only tests need: faults, throttling, processes that end.

The stand-in for the driver's library has all of it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from gpu_bottleneck_exporter.demo.board import board
from gpu_bottleneck_exporter.demo.board import create as demo
from gpu_bottleneck_exporter.demo.board.create import H100, Model
from gpu_bottleneck_exporter.demo.board.layout import MAX_EVENTS, Event

CALLS = (
    *("DeviceGetHandleByIndex", "DeviceGetUUID", "DeviceGetName", "DeviceGetPciInfo"),
    *("DeviceGetArchitecture", "DeviceGetSamples", "DeviceGetUtilizationRates"),
    *("DeviceGetFieldValues", "DeviceGetTotalEnergyConsumption", "DeviceGetPowerUsage"),
    *("DeviceGetEnforcedPowerLimit", "DeviceGetPowerManagementDefaultLimit"),
    *("DeviceGetTemperature", "DeviceGetMemoryTemperature", "DeviceGetTemperatureThreshold"),
    *("DeviceGetMarginTemperature", "DeviceGetClockInfo", "DeviceGetMaxClockInfo"),
    *("DeviceGetCurrentClocksEventReasons", "DeviceGetViolationStatus", "DeviceGetMemoryInfo"),
    *("DeviceGetTotalEccErrors", "DeviceGetRemappedRows", "DeviceGetPcieReplayCounter"),
    *("DeviceGetCurrPcieLinkGeneration", "DeviceGetCurrPcieLinkWidth"),
    *("DeviceGetMaxPcieLinkGeneration", "DeviceGetMaxPcieLinkWidth"),
    *("DeviceGetComputeRunningProcesses", "DeviceGetGraphicsRunningProcesses"),
    *("DeviceGetMPSComputeRunningProcesses", "DeviceGetMigMode", "DeviceRegisterEvents"),
    *("GpmSampleGet", "GpmMetricsGet", "DeviceGetEngineUtilization"),
    *("DeviceGetGpuFabricInfoV", "DeviceGetRepairStatus", "DeviceGetNvLinkState"),
    *("DeviceGetProcessUtilization", "DeviceGetProcessesUtilizationInfo"),
)
"""Calls whose result and latency can be set per GPU; NVML's names without versions."""
CALL = {name: position for position, name in enumerate(CALLS)}
THROTTLE_REASONS = (
    *("power_cap", "sw_thermal", "hw_thermal", "hw_power_brake"),
    *("sync_boost", "board_limit", "reliability", "app_clocks"),
)
GRAPHICS = 1
"""The kind of a process that only draws."""


class VirtualGpu(board.VirtualGpu):
    """One GPU of a board: run work on it, hold it, break it."""

    def release(self, pid: int) -> None:
        """Drop the context of process `pid`."""
        with self._locked():
            for entry in self.record.processes:
                if entry.pid == pid:
                    entry.pid, entry.used_bytes = 0, 0

    def throttle(self, reason: str, ratio: float) -> None:
        """Throttle by `reason` for `ratio` of the time from now on."""
        now = time.monotonic_ns()
        with self._locked():
            record, passed = self.record, now - self.record.throttle_since_ns
            for at, name in enumerate(THROTTLE_REASONS):
                record.throttle_base_ns[at] += passed * record.throttle_ppm[at] // 1_000_000
                if name == reason:
                    record.throttle_ppm[at] = round(ratio * 1e6)
            record.throttle_since_ns = now

    def fail(self, call: str, result: int) -> None:
        """Make NVML call `call` (a name of `CALLS`) return `result` from now on."""
        self.record.call_result[CALL[call]] = result


class Board(board.Board):
    """A board whose GPUs can be broken."""

    gpus: tuple[VirtualGpu, ...]

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gpus = tuple(VirtualGpu(self, index) for index in range(len(self.gpus)))

    def __enter__(self) -> Board:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def raise_xid(self, gpu: int, xid: int) -> None:
        """Report an XID of GPU `gpu` to all processes that wait for events."""
        position = self.header.event_count
        self.header.events[position % MAX_EVENTS] = Event(gpu=gpu, xid=xid)
        self.header.event_count = position + 1


def create(path: Path, gpus: Sequence[Model] = (H100,), **driver_version: str) -> Board:
    """A new board file with GPUs of these models, opened."""
    demo.create(path, gpus, **driver_version).close()
    return Board(path)
