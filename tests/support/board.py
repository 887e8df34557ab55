"""Virtual boards with what only tests need: faults, throttling, processes that end.

The stand-in for the driver's library has all of it; `FaultyDriver` is the demo's driver with the
part that rules and causes are tested with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml

from gpu_bottleneck_exporter.demo.board import board
from gpu_bottleneck_exporter.demo.board import create as demo
from gpu_bottleneck_exporter.demo.board.create import H100, Model
from gpu_bottleneck_exporter.demo.board.layout import MAX_EVENTS, Event, GpuRecord
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDevice, VirtualDriver
from gpu_bottleneck_exporter.driver.nvml.kubernetes import gpus_of_device
from gpu_bottleneck_exporter.driver.nvml.throttle import EVENT_REASONS
from gpu_bottleneck_exporter.driver.protocol import Device, DeviceLost, DriverError, Unsupported
from gpu_bottleneck_exporter.driver.readings import ErrorEvent, Health, Throttle

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
    *("GpmSampleGet", "GpmMetricsGet"),
)
"""Calls whose result and latency can be set per GPU; NVML's names without versions."""
CALL = {name: position for position, name in enumerate(CALLS)}
THROTTLE_REASONS = (
    *("power_cap", "sw_thermal", "hw_thermal", "hw_power_brake"),
    *("sync_boost", "board_limit", "reliability", "app_clocks"),
)
_ERRORS = ("corrected", "uncorrected")
GRAPHICS = 1
"""The kind of a process that only draws."""
_POLL_SECONDS = 0.01


def throttled_ns(record: GpuRecord, reason: int, now: int) -> int:
    """Nanoseconds for which GPU `record` was throttled so far by `THROTTLE_REASONS[reason]`."""
    grown = (now - record.throttle_since_ns) * record.throttle_ppm[reason] // 1_000_000
    return int(record.throttle_base_ns[reason] + grown)


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
            for at, name in enumerate(THROTTLE_REASONS):
                self.record.throttle_base_ns[at] = throttled_ns(self.record, at, now)
                if name == reason:
                    self.record.throttle_ppm[at] = round(ratio * 1e6)
            self.record.throttle_since_ns = now

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


class FaultyDevice(VirtualDevice):
    """A virtual GPU that hangs, fails or lacks GPM as its board says."""

    def __init__(self, board: board.Board, index: int) -> None:
        super().__init__(board, index)
        if not self._record.gpm_supported:
            self.identity = replace(self.identity, architecture="ampere")

    def check(self) -> None:
        if self._record.device_result:
            raise DeviceLost("GPU is lost")

    def meet_faults(self, call: str) -> None:
        while self._record.hang:
            time.sleep(_POLL_SECONDS)
        code = self._record.device_result or self._record.call_result[CALL[call]]
        if call == "GpmSampleGet" and not self._record.gpm_supported:
            code = pynvml.NVML_ERROR_NOT_SUPPORTED
        if code == pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise Unsupported(f"{call}: not supported")
        if code:
            kind = DeviceLost if code == pynvml.NVML_ERROR_GPU_IS_LOST else DriverError
            raise kind(f"{call}: NVML error {code}")

    def throttle(self) -> Throttle:
        now, bits = time.monotonic_ns(), self._record.event_reasons
        reasons = enumerate(THROTTLE_REASONS)
        return Throttle(
            {reason: throttled_ns(self._record, at, now) for at, reason in reasons},
            {reason: bool(bits & bit) for reason, bit in EVENT_REASONS.items()},
        )

    def health(self) -> Health:
        record = self._record
        return Health(
            {kind: getattr(record, f"ecc_{kind}") for kind in _ERRORS},
            {kind: getattr(record, f"remapped_{kind}") for kind in _ERRORS},
            remap_pending=bool(record.remap_pending),
            remap_failed=bool(record.remap_failed),
        )


def _faulty(reading: str, call: str) -> Callable[[FaultyDevice], Any]:
    answer = getattr(FaultyDevice, reading)

    def read(device: FaultyDevice) -> Any:  # noqa: ANN401 - any reading
        device.meet_faults(call)
        return answer(device)

    return read


for _reading, _call in {
    "utilization": "DeviceGetUtilizationRates",
    "activity": "GpmSampleGet",
    "power": "DeviceGetPowerUsage",
    "thermal": "DeviceGetTemperature",
    "clocks": "DeviceGetClockInfo",
    "throttle": "DeviceGetFieldValues",
    "memory": "DeviceGetMemoryInfo",
    "health": "DeviceGetTotalEccErrors",
    "link": "DeviceGetCurrPcieLinkGeneration",
    "processes": "DeviceGetComputeRunningProcesses",
}.items():
    setattr(FaultyDevice, _reading, _faulty(_reading, _call))


class FaultyDriver(VirtualDriver):
    """The demo's driver over a board with faults and XIDs, and GPUs that pods hold."""

    gpus_of_device = staticmethod(gpus_of_device)

    def __init__(self, board: board.Board) -> None:
        super().__init__(board)
        self._next_event = board.header.event_count

    def open(self, index: int) -> list[Device]:
        device = FaultyDevice(self.board, index)
        device.meet_faults("DeviceGetHandleByIndex")
        return [device]

    def wait_error(self, timeout_seconds: float) -> ErrorEvent | None:
        deadline = time.monotonic() + timeout_seconds
        while self._next_event >= self.board.header.event_count:
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_SECONDS)
        event = self.board.header.events[self._next_event % MAX_EVENTS]
        self._next_event += 1
        return ErrorEvent(int(event.gpu), int(event.xid))
