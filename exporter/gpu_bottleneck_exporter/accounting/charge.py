"""Charges the idle time of one tick to what the GPU waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from gpu_bottleneck_exporter.accounting.stall import Feeders, Owed, by_file_system, split
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.driver.readings import Identity


class Watch(Protocol):
    """What sees the processes that feed GPUs (`sampling.host.HostSampler`)."""

    def hold(self, uuid: str, pids: frozenset[int] | None, parent_uuid: str | None = None) -> None:
        """Tell which processes hold GPU `uuid`, None when nobody knows."""

    def feeders(self, uuid: str, start_ns: int, end_ns: int) -> Feeders | None:
        """What the feeders of GPU `uuid` did between two monotonic times."""

    def tell_busy(self, uuid: str, ratio: float) -> None:
        """Tell how busy GPU `uuid` was in its last tick, 0-1."""

    def tell_split(self, uuid: str, active_ns: int, stalls: Mapping[str, int]) -> None:
        """Tell how the last tick of GPU `uuid` was split."""


def charge(  # noqa: PLR0913 - one tick of one GPU
    watch: Watch,
    gpu: Identity,
    holders: frozenset[int] | None,
    windows: list[Window],
    *,
    owed: Owed,
    book: Callable[[Mapping[str, int], Mapping[str, int]], None],
) -> None:
    """Split the idle time of `windows`, and `book` the nanoseconds by cause, and by file system.

    `holders`: the pids that have the GPU open; None when they could not be read. `owed`: see
    `split`. Whatever goes wrong, all of the idle time is booked, then as unknown, and the error
    is raised.
    """
    watch.hold(gpu.uuid, holders, gpu.parent_uuid)
    if not windows:
        return
    observed = sum(window.duration_ns for window in windows)
    active = sum(window.active_ns for window in windows)
    watch.tell_busy(gpu.uuid, active / observed)
    known = None if holders is None else len(holders)
    feeders = None
    try:
        if holders and active < observed:  # else nothing is to be explained, or nobody there
            start = windows[0].end_ns - windows[0].duration_ns
            feeders = watch.feeders(gpu.uuid, start, windows[-1].end_ns)
        stalls = split(windows, known, feeders, owed)
    except Exception:
        book(split(windows, known, None), {})
        raise
    book(stalls, by_file_system(stalls, feeders))
    watch.tell_split(gpu.uuid, active, stalls)
