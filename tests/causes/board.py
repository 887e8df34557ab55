"""What happens on a virtual board while jobs run: clocks, heat, links, faults.

A condition is called twice a second with the seconds since the start.
"""

from __future__ import annotations

from collections.abc import Callable

from pynvml import NVML_ERROR_GPU_IS_LOST, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_UNKNOWN

from gpu_bottleneck_exporter.demo.board.layout import CLOCKS
from support.board import Board, VirtualGpu

Condition = Callable[[Board, VirtualGpu, float], None]
AFTER_SECONDS = 10.0
"""Faults come late: Prometheus must have seen the GPU healthy first."""


def clock(share: float) -> Condition:
    """The SMs run at this share of their maximum clock."""

    def slow(_: Board, gpu: VirtualGpu, __: float) -> None:
        for name in ("graphics", "sm"):
            at = CLOCKS.index(name)
            gpu.record.clock_mhz[at] = round(share * gpu.record.clock_max_mhz[at])

    return slow


def throttled(reason: str, share: float) -> Condition:
    """Throttled for `reason` for this share of the time."""
    return lambda _, gpu, __: gpu.throttle(reason, share)


def hot(celsius: int) -> Condition:
    """The GPU has this temperature, in degrees Celsius; at 87 it slows down."""

    def heat(_: Board, gpu: VirtualGpu, __: float) -> None:
        gpu.record.temperature = celsius

    return heat


def power_limit(share: float) -> Condition:
    """The power limit is set to this share of the board's default."""

    def limit(_: Board, gpu: VirtualGpu, __: float) -> None:
        gpu.record.power_limit_mw = round(share * gpu.record.power_default_limit_mw)

    return limit


def link(*, width: int = 16, generation: int = 5) -> Condition:
    """The PCIe link has come up like this; it could be x16, generation 5."""

    def train(_: Board, gpu: VirtualGpu, __: float) -> None:
        gpu.record.pcie_width, gpu.record.pcie_generation = width, generation

    return train


def replays(per_second: float) -> Condition:
    """The link has to resend this many packets."""

    def count(_: Board, gpu: VirtualGpu, elapsed: float) -> None:
        gpu.record.pcie_replays = int(per_second * elapsed)

    return count


def xid(code: int) -> Condition:
    """The driver reports XIDs after a while, repeatedly, so that they stay current."""

    def report(board: Board, gpu: VirtualGpu, elapsed: float) -> None:
        if elapsed >= AFTER_SECONDS:
            board.raise_xid(gpu.index, code)

    return report


def remap(*, failed: bool = False, pending: bool = False) -> Condition:
    """A row of its memory could not be remapped, or will be at the next reset."""

    def tell(_: Board, gpu: VirtualGpu, elapsed: float) -> None:
        if elapsed >= AFTER_SECONDS:
            gpu.record.remap_failed, gpu.record.remap_pending = failed, pending

    return tell


def lost(_: Board, gpu: VirtualGpu, elapsed: float) -> None:
    """It falls off the bus."""
    if elapsed >= AFTER_SECONDS:
        gpu.record.device_result = NVML_ERROR_GPU_IS_LOST


def hung(_: Board, gpu: VirtualGpu, elapsed: float) -> None:
    """Calls into the driver no longer return."""
    gpu.record.hang = elapsed >= AFTER_SECONDS


def without_thermometer(_: Board, gpu: VirtualGpu, elapsed: float) -> None:
    """One driver call fails, the others work."""
    if elapsed >= AFTER_SECONDS:
        gpu.fail("DeviceGetTemperature", NVML_ERROR_UNKNOWN)


def without_gpm(_: Board, gpu: VirtualGpu, elapsed: float) -> None:
    """The driver no longer reports SM activity, though the GPU could."""
    if elapsed >= AFTER_SECONDS:
        gpu.fail("GpmSampleGet", NVML_ERROR_NOT_SUPPORTED)
