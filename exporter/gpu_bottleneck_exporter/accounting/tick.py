"""One tick of one GPU: its readings, holders and time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpu_bottleneck_exporter.accounting.windows import Window, sums
from gpu_bottleneck_exporter.driver.readings import Identity, Reading

R = TypeVar("R", bound=Reading)


@dataclass(frozen=True, slots=True)
class TenantTime:
    """A tenant's part of the time of a tick, in nanoseconds."""

    name: str
    """Identifies the tenant; `UNATTRIBUTED` for busy time of no known process."""
    busy_ns: Mapping[int, int] = field(default_factory=dict)
    """Busy time by pid, for all its processes that hold the GPU."""
    stalls: Mapping[str, int] = field(default_factory=dict)
    """Its equal part of the idle time, by `waiting_on`."""


UNATTRIBUTED = "unattributed"
"""Name of the busy time that no process explains."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick of a GPU or MIG instance. All times are integer nanoseconds.

    The idle time of `windows` is that of `stalls`, exactly. Later readings have a tick of their
    own: the next call may hang.
    """

    gpu: Identity
    at_ns: int
    """Monotonic time of its publication."""
    holders: frozenset[int] | None = None
    """Pids of the processes that have the GPU; None: unknown."""
    readings: Mapping[type[Reading], tuple[int, Reading]] = field(default_factory=dict)
    """Readings by type, each with its time."""
    windows: Sequence[Window] = ()
    """Busy time; empty until the driver's samples cover some time."""
    stalls: Mapping[str, int] = field(default_factory=dict)
    """Idle time by `waiting_on`."""
    storage: Mapping[str, int] = field(default_factory=dict)
    """Idle time on storage by file system, as far as that is known."""
    tenants: Sequence[TenantTime] = ()
    """Parts of the time by tenant, which add up to it exactly; empty with fewer than two."""

    @property
    def active_ns(self) -> int:
        """The GPU's busy time."""
        return sums(self.windows)[1]

    def reading(self, kind: type[R]) -> R | None:
        """The reading of type `kind`; None if none was due or it failed."""
        _, reading = self.readings.get(kind, (0, None))
        return reading if isinstance(reading, kind) else None

    def read_ns(self, kind: type[Reading]) -> int:
        """Monotonic time of the reading of type `kind`. Raises KeyError if there is none."""
        return self.readings[kind][0]

    def shifted(self, by_ns: int) -> Tick:
        """The tick with all times `by_ns` later, on another clock."""
        readings = {kind: (at_ns + by_ns, read) for kind, (at_ns, read) in self.readings.items()}
        windows = [window._replace(end_ns=window.end_ns + by_ns) for window in self.windows]
        return replace(self, at_ns=self.at_ns + by_ns, readings=readings, windows=windows)

    def only(self, kinds: Collection[type[Reading]]) -> Tick:
        """The tick with the readings of these types only, to be retained."""
        readings = {kind: read for kind, read in self.readings.items() if kind in kinds}
        return replace(self, readings=readings)


Subscriber = Callable[[Tick], None]
"""A function called with each tick in its GPU's thread: it must return at once."""
