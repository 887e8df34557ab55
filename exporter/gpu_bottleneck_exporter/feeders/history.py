"""What was seen of the feeders of one GPU in the last seconds, and the sums since the start."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from gpu_bottleneck_exporter.accounting.stall import Usage
from gpu_bottleneck_exporter.accounting.state import State
from gpu_bottleneck_exporter.feeders.behind import Looked
from gpu_bottleneck_exporter.feeders.member import ProcessCounters
from gpu_bottleneck_exporter.feeders.runnable import Runnable
from gpu_bottleneck_exporter.host.places import Place

HISTORY_NS = 20_000_000_000
ROLES = ("main", "worker")
_RESTS = frozenset({State.QUEUE, State.SLEEP, State.TIMER, State.REQUESTS, State.UNKNOWN})
T = TypeVar("T", "Moment", "Tick")
K = TypeVar("K", State, Place)


class CgroupCounters(NamedTuple):
    """How a control group held its tasks back, so far or in a tick."""

    throttled_ns: int = 0
    refault_bytes: int = 0
    periods: int = 0
    throttled_periods: int = 0

    def less(self, before: CgroupCounters) -> CgroupCounters:
        """What was added since `before`; never negative."""
        return CgroupCounters(*(max(now - old, 0) for now, old in zip(self, before, strict=True)))


class Moment(NamedTuple):
    """States seen in one pass, which stand for the time since the last one."""

    at_ns: int
    elapsed_ns: int
    main: Mapping[State, int]
    workers: Mapping[State, int]
    counts: tuple[int, int]
    """How many mains and workers there were; not all workers are looked at, nor each time."""
    looked: Looked | None = None
    """What closer looks at the mains found, if there were any."""
    kin: Mapping[State, int] = {}
    kin_count: int = 0
    runnable: Runnable | None = None
    """How long the mains' first threads were runnable; None where that is not known."""
    place: Place | None = None
    """Where the file is for which one of them all was seen to wait."""


@dataclass(slots=True)
class Looks:
    """What the workers and kin were seen doing in several moments."""

    states: dict[State, int] = field(default_factory=dict)
    workers: int = 0
    """How many there were, summed over the moments."""
    moments: int = 0
    kin_states: dict[State, int] = field(default_factory=dict)
    kin: int = 0
    """As `workers`."""
    places: dict[Place, int] = field(default_factory=dict)
    """Where the files were that somebody waited for, mains included."""

    def add(self, moment: Moment) -> None:
        """Take one moment in."""
        add_up(self.states, moment.workers)
        add_up(self.kin_states, moment.kin)
        self.workers += moment.counts[1]
        self.kin += moment.kin_count
        if moment.place is not None:
            add_up(self.places, {moment.place: 1})
        self.moments += 1

    @property
    def active(self) -> float:
        """How many workers ran or were in D state, on average."""
        seen = sum(self.states.values())
        if not seen:
            return 0.0
        active = self.states.get(State.RUN, 0) + self.states.get(State.DISK, 0)
        return active / seen * self.workers / self.moments

    @property
    def anybody_active(self) -> bool:
        """Whether a worker or kin was seen doing anything."""
        return not _RESTS.issuperset(self.states) or not _RESTS.issuperset(self.kin_states)

    def merge(self, other: Looks) -> None:
        """Take the moments of `other` in."""
        add_up(self.states, other.states)
        add_up(self.kin_states, other.kin_states)
        self.workers += other.workers
        self.kin += other.kin
        add_up(self.places, other.places)
        self.moments += other.moments


@dataclass(slots=True)
class Tick:
    """Counters of one tick."""

    at_ns: int
    elapsed_ns: int
    main: ProcessCounters = field(default_factory=ProcessCounters)
    workers: ProcessCounters = field(default_factory=ProcessCounters)
    held: list[CgroupCounters] = field(default_factory=list)
    """How each control group held them back in this tick."""
    looks: Looks = field(default_factory=Looks)
    """What its workers were seen doing."""
    kin: ProcessCounters = field(default_factory=ProcessCounters)
    threads: Usage = field(default_factory=Usage)
    """What loading threads of the mains used."""


@dataclass(slots=True)
class FeederTotals:
    """Running sums of a GPU's feeders, by role where they are of processes."""

    counters: dict[str, ProcessCounters] = field(
        default_factory=lambda: {role: ProcessCounters() for role in ROLES}
    )
    wait_ns: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By role and what was waited on (`State.value`)."""
    worker_starts: int = 0
    throttled_ns: int = 0
    refault_bytes: int = 0


def summed(counts: Iterable[Mapping[State, int]]) -> dict[State, int]:
    """Samples by state, added up."""
    total: dict[State, int] = {}
    for states in counts:
        add_up(total, states)
    return total


def add_up(total: dict[K, int], counts: Mapping[K, int]) -> None:
    """Add `counts` to `total`."""
    for key, number in counts.items():
        total[key] = total.get(key, 0) + number


def since(history: deque[T], start_ns: int, end_ns: int) -> list[T]:
    """Those after `start_ns` up to `end_ns`, the newest first: mostly few out of many."""
    found: list[T] = []
    for entry in reversed(list(history)):
        if entry.at_ns <= start_ns:
            break
        if entry.at_ns <= end_ns:
            found.append(entry)
    return found


def forget(history: deque[Moment] | deque[Tick], now_ns: int) -> None:
    """Drop what is older than `HISTORY_NS`."""
    while history and history[0].at_ns < now_ns - HISTORY_NS:
        history.popleft()
