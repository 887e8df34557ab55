"""When a GPU did nothing at all, to the tick: a start-up is shorter than what else is watched."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

_IDLE = 0.05
"""Share of a tick in which an idle GPU works at most."""
_WORK_NS = 300_000_000
"""So much work ends a pause: a model that is copied to the GPU is not enough."""
_REMEMBERED = 32
_FOLLOWS = 0.1


@dataclass(slots=True)
class Time:
    """How the time of one GPU was split since the start."""

    active_ns: int = 0
    stall_ns: dict[str, int] = field(default_factory=dict)

    def add(self, active_ns: int, stalls: Mapping[str, int]) -> None:
        """Add a tick."""
        self.active_ns += active_ns
        for cause, ns in stalls.items():
            self.stall_ns[cause] = self.stall_ns.get(cause, 0) + ns

    def copy(self) -> Time:
        """As it is now. For any thread."""
        return Time(self.active_ns, dict(self.stall_ns))

    @property
    def ns(self) -> int:
        """All of it; of a copy, as another thread may be adding to the original."""
        return self.active_ns + sum(self.stall_ns.values())


@dataclass(slots=True)
class Pause:
    """The GPU's time when it began and when it ended."""

    begin: Time
    end: Time | None = None
    """None: it goes on."""


class Pauses:
    """Those of one GPU; one thread adds, another one reads."""

    def __init__(self) -> None:
        self.time = Time()
        self._latest: deque[Pause] = deque(maxlen=_REMEMBERED)
        self._current: Pause | None = None
        self._usual = 1.0
        """Share that the GPU works in a tick while it works."""
        self._last: tuple[float, Mapping[str, int]] = (1.0, {})
        """The same in the last tick of work, and what it waited for."""

    def add(self, active_ns: int, stalls: Mapping[str, int]) -> None:
        """Add a tick."""
        if self._current is None:
            self._look(active_ns, stalls)
        self.time.add(active_ns, stalls)
        pause = self._current
        if pause and self.time.active_ns - pause.begin.active_ns >= _WORK_NS:
            pause.end, self._current, self._last = self.time.copy(), None, (1.0, {})

    def _look(self, active_ns: int, stalls: Mapping[str, int]) -> None:
        """Whether a pause begins with this tick."""
        ns = active_ns + sum(stalls.values())
        if active_ns > _IDLE * ns:
            share = active_ns / ns
            self._usual += _FOLLOWS * (share - self._usual)
            self._last = (share, stalls)
        elif ns > 0:
            begin = self.time.copy()
            begin.add(0, self._excess())
            self._current = Pause(begin)
            self._latest.append(self._current)

    def _excess(self) -> dict[str, int]:
        """What it waited more than usual in the last tick of work: the pause began in it.

        To be added to what was before the pause, thus negative.
        """
        share, stalls = self._last
        if share >= self._usual:
            return {}
        part = (1 - share / self._usual) / (1 - share)
        return {cause: -round(ns * part) for cause, ns in stalls.items()}

    def between(self, since: Time, until: Time) -> list[Pause]:
        """Those that touch this time, as far as they are remembered."""
        return [
            pause
            for pause in tuple(self._latest)
            if pause.begin.ns < until.ns and (pause.end is None or pause.end.ns > since.ns)
        ]
