"""Ticks of a GPU that no driver has read."""

from __future__ import annotations

import time
from collections.abc import Mapping

from gpu_bottleneck_exporter.accounting.tick import Tick
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.sampling.watching import HostSampler


def tick(
    active_ns: int, stalls: Mapping[str, int], at_ns: int | None = None, uuid: str = "a"
) -> Tick:
    """One in which the GPU worked for `active_ns`, and waited as `stalls` say."""
    at_ns = time.monotonic_ns() if at_ns is None else at_ns
    window = Window(at_ns, active_ns + sum(stalls.values()), active_ns)
    return Tick(Identity(0, uuid), at_ns, windows=[window], stalls=stalls)


def note_split(watch: HostSampler, uuid: str, active_ns: int, stalls: Mapping[str, int]) -> None:
    """Let the feeders of GPU `uuid` know how a tick was split, if there are any."""
    if feed := watch.feed(uuid):
        feed.note(tick(active_ns, stalls, uuid=uuid))
