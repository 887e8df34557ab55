"""A GPU or MIG instance that is open: its readings, and the idle time that is charged to causes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.stall import Carry, by_file_system, split
from gpu_bottleneck_exporter.accounting.windows import Window, sums
from gpu_bottleneck_exporter.driver.protocol import (
    GPU_WIDE_ERRORS,
    Device,
    DriverError,
    Unsupported,
)
from gpu_bottleneck_exporter.driver.refusals import Refusals
from gpu_bottleneck_exporter.sampling.ledger import GpuLedger
from gpu_bottleneck_exporter.sampling.watching import HostSampler


class Outcome(NamedTuple):
    """The last result of a collector on one GPU or MIG instance."""

    seconds: float
    """Time the last read took."""
    last_success: float | None
    """Unix time of the last read that succeeded."""
    error: str | None = None
    down: bool = False
    """Whether it failed with the whole GPU, and not by itself."""

    @property
    def success(self) -> bool:
        """Whether nothing went wrong."""
        return self.error is None


@dataclass(slots=True)
class Opened:
    """A device under observation: what is due when, and what it does not have."""

    device: Device
    ledger: GpuLedger
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    due_ns: dict[str, int] = field(default_factory=dict)
    refusals: Refusals = field(default_factory=Refusals)
    """By the collectors' names."""
    forbidden: dict[str, str] = field(default_factory=dict)
    """By collector that wants a permission: what the driver said."""
    free_bytes: int | None = None
    """The least memory that was in use while nobody held it; None until that is certain."""
    used_bytes: int | None = None
    """In use when it was read last; None if somebody has held it since."""
    carry: Carry = field(default_factory=dict)
    """What the split of idle time keeps from tick to tick."""

    def what_failed(self, error: DriverError | None) -> str | None:
        """What went wrong with one reading, in words; raises what concerns the whole GPU."""
        if isinstance(error, GPU_WIDE_ERRORS):
            with suppress(Unsupported):
                self.device.check()
        return str(error) if error else None


class Spent(NamedTuple):
    """The time of one tick."""

    windows: Sequence[Window]
    stalls: Mapping[str, int]
    """Their idle nanoseconds by what the GPU waited on."""


def charge(watch: HostSampler, opened: Opened, windows: list[Window]) -> None:
    """Book the idle time of `windows` by cause.

    Whatever goes wrong, all of it is booked, then as unknown, and the error is raised.
    """
    ledger, gpu = opened.ledger, opened.ledger.identity
    holders = ledger.holders(time.monotonic_ns())
    watch.hold(gpu.uuid, holders, gpu.parent_uuid)
    if not windows:
        return
    observed, active = sums(windows)
    known = None if holders is None else len(holders)
    engine = ledger.engine_share(time.monotonic_ns())
    did, stalls = None, split(windows, known, None, engine=engine)
    try:
        if holders and active < observed:  # else nothing is to be explained, or nobody there
            start = windows[0].end_ns - windows[0].duration_ns
            did = watch.explaining(gpu.uuid, start, windows[-1].end_ns)
            stalls = split(windows, known, did, opened.carry, engine)
    finally:
        ledger.add_stall(stalls, by_file_system(stalls, did))
        watch.note_split(gpu.uuid, active, stalls)
        if watch.lines and (found := watch.lines.note(gpu.uuid, windows, stalls)):
            watch.note(gpu, windows[-1].end_ns, found)
        watch.note(gpu, windows[-1].end_ns, Spent(windows, stalls))
