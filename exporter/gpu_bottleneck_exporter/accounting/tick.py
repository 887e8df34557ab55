"""One tick of one GPU: what was read, who had it, and what it did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpu_bottleneck_exporter.accounting.windows import Window, sums
from gpu_bottleneck_exporter.driver.readings import Identity, Reading

R = TypeVar("R", bound=Reading)


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick of a GPU or MIG instance. All times are integer nanoseconds.

    The idle time of `windows` is that of `stalls`, exactly. What is read after them is told by a
    tick of its own, without windows: the next call of the driver may hang.
    """

    gpu: Identity
    at_ns: int
    """Monotonic; when it was published."""
    holders: frozenset[int] | None = None
    """Pids of the processes that have the GPU; None: unknown."""
    readings: Mapping[type[Reading], tuple[int, Reading]] = field(default_factory=dict)
    """What was due and could be read, by type, each with its time: the next one may have hung."""
    windows: Sequence[Window] = ()
    """Of busy time; none until the driver's samples cover some time."""
    stalls: Mapping[str, int] = field(default_factory=dict)
    """Idle time by what the GPU waited on (`WAITING_ON`)."""
    storage: Mapping[str, int] = field(default_factory=dict)
    """That of storage by file system, as far as that is known."""

    @property
    def active_ns(self) -> int:
        """Time in which the GPU worked."""
        return sums(self.windows)[1]

    def reading(self, kind: type[R]) -> R | None:
        """The reading of type `kind`; None if none was due or it failed."""
        _, found = self.readings.get(kind, (0, None))
        return found if isinstance(found, kind) else None

    def read_ns(self, kind: type[Reading]) -> int:
        """When the reading of type `kind` was made. Raises KeyError if there is none."""
        return self.readings[kind][0]

    def shifted(self, by_ns: int) -> Tick:
        """The tick with all times `by_ns` later: those of another clock."""
        readings = {kind: (at_ns + by_ns, one) for kind, (at_ns, one) in self.readings.items()}
        windows = [one._replace(end_ns=one.end_ns + by_ns) for one in self.windows]
        return replace(self, at_ns=self.at_ns + by_ns, readings=readings, windows=windows)

    def only(self, kinds: Collection[type[Reading]]) -> Tick:
        """It with the readings of these types, for who keeps it for long."""
        kept = {kind: one for kind, one in self.readings.items() if kind in kinds}
        return replace(self, readings=kept)


Subscriber = Callable[[Tick], None]
"""Learns of each tick of each GPU, in the thread that reads that GPU: it must return at once."""
