"""Idle seconds by line of code: pure arithmetic over looks at the stacks of a GPU's feeders.

The split of idle time says for how long a GPU waited for what; looks say which lines did that
meanwhile. As there, busy time explains first what a main did: one that sleeps in a synchronize
while its GPU works holds nothing up.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from pathlib import PurePath
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.accounting.activity import ACTIVITY_OF, Activity
from gpu_bottleneck_exporter.accounting.bucket import Role, add_up
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.host.waits import Wait
from gpu_bottleneck_exporter.stacktraces.frames import Frame
from gpu_bottleneck_exporter.stacktraces.model import CodeLine, IdleLines

_PYTHONS = r"/lib(?:64)?/python3(?:\.\d+t?)?/"
_FOLDERS = rf"{_PYTHONS}|/(?:site|dist)-packages/"
_LIBRARY = re.compile(rf"^<frozen |{_FOLDERS}")
"""Files that nobody who runs a job edits: Python's own and what was installed."""
_INSTALLED = re.compile(rf".*(?:{_FOLDERS})([^/]+)")
_PLUMBING = re.compile(
    rf"^<frozen |{_PYTHONS}(?:"
    r"(?:multiprocessing|concurrent|asyncio)/|(?:threading|socket|socketserver|selectors|queue)\.py)"
)
"""Parts of Python that pass on what others ask for."""
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_MOST_LINES = 1000
"""Of one GPU; a job may make up more. Those of further ones are not counted."""
_MOST_TOLD = 5
_RUNS = frozenset(one for one in Activity if one.runs)
_RESTS = frozenset(a for a in Activity if a.rests)
_READS = frozenset(one for one in Activity if one.on_files)
_ALL = frozenset(Activity)
_ANY, _MAIN, _HELPERS = frozenset({True, False}), frozenset({True}), frozenset({False})
_MAIN_RESTS = ((_MAIN, _RESTS), (_MAIN, _ALL))
_BLAMED: Mapping[str, Sequence[tuple[frozenset[bool], frozenset[Activity]]]] = {
    stall.HOST_CODE: ((_MAIN, _RUNS), (_HELPERS, _RUNS)),
    stall.WORKER_CPU: ((_HELPERS, _RUNS),),
    stall.CPU_QUEUE: ((_ANY, _RUNS),),
    stall.CPU_QUOTA: ((_ANY, _RUNS),),
    stall.STORAGE: ((_ANY, _READS), (_ANY, _RUNS)),
    stall.MEMORY: ((_ANY, _READS), (_ANY, _RUNS)),
    stall.NETWORK: ((_ANY, frozenset({Activity.NETWORK})), *_MAIN_RESTS),
    stall.PEER: _MAIN_RESTS,
    stall.REQUESTS: _MAIN_RESTS,
    stall.ASLEEP: _MAIN_RESTS,
}
"""By `waiting_on`: whose looks (a main's or a helper's) doing what; the first that were seen."""
ON_LINES = frozenset(_BLAMED)
"""The waits that lines of code explain."""


class Thread(NamedTuple):
    """What one thread did at one look."""

    role: str
    wait: Wait
    frames: Sequence[Frame]
    """The innermost first."""
    native: bool = False
    """Whether it ran code that needs no Python, and had let Python's lock go."""


class Look(NamedTuple):
    """The threads of a GPU's feeders at `at_ns` (monotonic)."""

    at_ns: int
    threads: Sequence[Thread]


class Line(NamedTuple):
    """A line of the job's own code, and what it had called."""

    file: str
    line: int
    function: str
    called: str = ""
    """The innermost function, if that is one of a library: `torch.stack`."""


def line_of(frames: Sequence[Frame]) -> Line | None:
    """The innermost line of the job's own code, or else the innermost; None without Python code."""
    inner = next((n for n, one in enumerate(frames) if not _LIBRARY.search(one.file)), 0)
    if not frames:
        return None
    # A comprehension is a function of its own before Python 3.12.
    names = (one.function for one in frames[inner:] if not one.function.endswith(_COMPREHENSIONS))
    function = next(names, frames[inner].function)
    called = _named(frames[0]) if inner else ""
    return Line(frames[inner].file, frames[inner].line, function, called)


def serves_others(wait: Wait, frames: Sequence[Frame]) -> bool:
    """Whether a thread waits for others to ask it, so that nothing waits for it.

    It waits in accept, or has run nothing but Python's own plumbing: multiprocessing's
    `resource_sharer`, an event loop of a library. Who asked stands where its own code asked.
    """
    if ACTIVITY_OF[wait].runs or not frames:
        return False
    accepts = frames[0].function == "accept" and _LIBRARY.search(frames[0].file)
    return bool(accepts) or all(_PLUMBING.search(one.file) for one in frames)


def gist(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The two frames at most that make the same line as `frames`, which may be long."""
    line = line_of(frames)
    if line is None:
        return ()
    own = Frame(line.function, line.file, line.line)
    return (frames[0], own) if line.called else (own,)


def _named(frame: Frame) -> str:
    """`torch.stack`: the function with the package or module that it is of."""
    found = _INSTALLED.match(frame.file)
    module = found.group(1).removesuffix(".py") if found else PurePath(frame.file).stem
    return f"{module}.{frame.function}"


class _Known(NamedTuple):
    """What is counted together."""

    line: Line
    role: str
    activity: Activity


class _Part(NamedTuple):
    """Idle time that is charged to something."""

    of: _Known
    waiting_on: str
    nanoseconds: float


@dataclass(slots=True)
class _Seen:
    """Looks at one line, weighed by how idle the GPU was: 1 where it did nothing."""

    all: float = 0.0
    idle: float = 0.0
    lock: float = 0.0
    native: float = 0.0


@dataclass
class LineCount:
    """The lines of one GPU."""

    idle_ns: dict[str, int] = field(default_factory=dict)
    """Of the ticks that were added, by what the GPU waited on."""
    looks: int = 0
    _busy: float = 0.0
    """Looks that busy time explains."""
    _seen: dict[_Known, _Seen] = field(default_factory=dict)

    def add(
        self, windows: Sequence[Window], stalls: Mapping[str, int], looks: Iterable[Look]
    ) -> None:
        """Add a tick: its windows, their idle time by `waiting_on`, and the looks within it."""
        add_up(self.idle_ns, stalls)
        for look in looks if windows else ():
            self.looks += 1
            idle = _idle_share(windows, look.at_ns)
            self._busy += 1 - idle
            for thread in look.threads:
                self._note(thread, idle, len(look.threads))

    def _note(self, thread: Thread, idle: float, of: int) -> None:
        line = line_of(thread.frames)
        if line is None:
            return
        activity = ACTIVITY_OF[thread.wait]
        known = _Known(line, thread.role, activity)
        if known not in self._seen and len(self._seen) >= _MOST_LINES:
            return
        seen = self._seen.setdefault(known, _Seen())
        share = idle / of
        seen.all += 1 / of
        seen.idle += share
        seen.lock += share * (thread.wait is Wait.LOCK)
        seen.native += share * thread.native

    def found(self, trouble: str | None = None) -> IdleLines:
        """Idle time by line: all time of a wait is charged to what was seen of it."""
        weights = self._weights()
        whole_ns = sum(self.idle_ns.values())
        lines = [
            part
            for wait, idle_ns in self.idle_ns.items()
            if idle_ns
            for part in _shared_out(idle_ns, wait, _blamed(wait, weights))
        ]
        mains = {known: weight for known, weight in weights.items() if known.role == Role.MAIN}
        waits = _shared_out(whole_ns, "", mains)
        return IdleLines(
            seconds=whole_ns / 1e9,
            looks=self.looks,
            lines=tuple(self._told(lines, whole_ns)),
            waits=tuple(self._told(waits, whole_ns)),
            trouble=trouble,
        )

    def _told(self, parts: Iterable[_Part], whole_ns: int) -> Iterator[CodeLine]:
        """The lines of `parts` that make up most."""
        by_line: dict[tuple[str, int, str], list[_Part]] = defaultdict(list)
        for part in parts:
            line = part.of.line
            by_line[line.file, line.line, part.of.role].append(part)
        for of_line in nlargest(_MOST_TOLD, by_line.values(), key=_nanoseconds):
            if not (ns := _nanoseconds(of_line)):  # too little to divide by
                break
            most = max(of_line, key=lambda part: part.nanoseconds)
            seen = [(part.nanoseconds / ns, self._seen[part.of]) for part in of_line]
            yield CodeLine(
                **most.of.line._asdict(),
                role=most.of.role,
                waiting_on=most.waiting_on,
                seconds=ns / 1e9,
                ratio=min(ns / whole_ns, 1.0),
                lock_ratio=min(sum(share * one.lock / one.idle for share, one in seen), 1.0),
                native_ratio=min(sum(share * one.native / one.idle for share, one in seen), 1.0),
            )

    def _weights(self) -> dict[_Known, float]:
        """Weights of what was seen while the GPU idled: what busy time explains is subtracted.

        In the order of `Activity`, from what mains did.
        """
        weights = {known: seen.idle for known, seen in self._seen.items()}
        busy, mains = self._busy, [known for known in weights if known.role == Role.MAIN]
        whole = sum(self._seen[known].all for known in mains)
        busy *= whole / self.looks if self.looks else 0.0
        for activity in Activity:
            of_it = [known for known in mains if known.activity is activity]
            seen = sum(self._seen[known].all for known in of_it)
            taken = min(seen, busy)
            busy -= taken
            idle = sum(weights[known] for known in of_it)
            for known in of_it:
                weights[known] *= (seen - taken) / idle if idle else 0.0
        return weights


def _idle_share(windows: Sequence[Window], at_ns: int) -> float:
    """Share of the window around `at_ns` in which the GPU idled; the nearest, if there is none."""
    window = min(windows, key=lambda one: abs(one.end_ns - one.duration_ns // 2 - at_ns))
    return 1 - window.active_ns / window.duration_ns if window.duration_ns else 0.0


def _nanoseconds(parts: Iterable[_Part]) -> float:
    return sum(part.nanoseconds for part in parts)


def _shared_out(idle_ns: int, wait: str, weights: Mapping[_Known, float]) -> list[_Part]:
    """`idle_ns` in proportion to `weights`."""
    whole = sum(weights.values())
    return [_Part(known, wait, idle_ns * one / whole) for known, one in weights.items() if one > 0]


def _blamed(wait: str, weights: Mapping[_Known, float]) -> dict[_Known, float]:
    """The part of `weights` that did what the GPU waited on."""
    for mains, activities in _BLAMED.get(wait, ()):
        found = {
            known: weight
            for known, weight in weights.items()
            if weight > 0 and (known.role == Role.MAIN) in mains and known.activity in activities
        }
        if found:
            return found
    return {}
