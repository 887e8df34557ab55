"""Idle time by line of code, from samples of the stacks of a GPU's feeders. No I/O.

The split by cause gives the seconds, the samples their lines. As in the split, busy time is first
subtracted from the mains.
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

_STANDARD_LIBRARY = r"/lib(?:64)?/python3(?:\.\d+t?)?/"
_LIBRARY_FOLDERS = rf"{_STANDARD_LIBRARY}|/(?:site|dist)-packages/"
_LIBRARY_FILE = re.compile(rf"^<frozen |{_LIBRARY_FOLDERS}")
"""Files of the standard library and installed packages, not the job's own."""
_MODULE_NAME = re.compile(rf".*(?:{_LIBRARY_FOLDERS})([^/]+)")
_PLUMBING = re.compile(
    rf"^<frozen |{_STANDARD_LIBRARY}(?:"
    r"(?:multiprocessing|concurrent|asyncio)/|(?:threading|socket|socketserver|selectors|queue)\.py)"
)
"""Standard modules that pass on requests."""
_MAX_CODE_LINES = 1000
"""Bound per GPU: a job can make up lines."""
_RUNNING = frozenset(a for a in Activity if a.runs)
_FILE_IO = frozenset(a for a in Activity if a.on_files)


class _Culprits(NamedTuple):
    """The threads to blame for a wait."""

    activities: frozenset[Activity]
    mains: bool | None = None
    """Whether only mains count, or only others; None: all."""

    def has(self, key: _LineKey) -> bool:
        """Whether the thread of `key` is one of them."""
        is_main = key.role == Role.MAIN
        return key.activity in self.activities and self.mains in (None, is_main)


_RESTING_MAINS = (
    _Culprits(frozenset(a for a in Activity if a.rests), mains=True),
    _Culprits(frozenset(Activity), mains=True),
)
CULPRITS: Mapping[str, Sequence[_Culprits]] = {
    stall.HOST_CODE: (_Culprits(_RUNNING, mains=True), _Culprits(_RUNNING, mains=False)),
    stall.WORKER_CPU: (_Culprits(_RUNNING, mains=False),),
    stall.CPU_QUEUE: (_Culprits(_RUNNING),),
    stall.CPU_QUOTA: (_Culprits(_RUNNING),),
    stall.STORAGE: (_Culprits(_FILE_IO), _Culprits(_RUNNING)),
    stall.MEMORY: (_Culprits(_FILE_IO), _Culprits(_RUNNING)),
    stall.NETWORK: (_Culprits(frozenset({Activity.NETWORK})), *_RESTING_MAINS),
    stall.PEER: _RESTING_MAINS,
    stall.REQUESTS: _RESTING_MAINS,
    stall.ASLEEP: _RESTING_MAINS,
}
"""Threads to blame by `waiting_on`; the first sampled ones count."""


class ThreadSample(NamedTuple):
    """A thread's state at one time."""

    role: str
    wait: Wait
    frames: Sequence[Frame]
    """Calls, the innermost first."""
    native: bool = False
    """Whether it ran native code without the GIL."""


class StackSample(NamedTuple):
    """The threads of a GPU's feeders at `at_ns` (monotonic)."""

    at_ns: int
    threads: Sequence[ThreadSample]


class Line(NamedTuple):
    """A line of the job's code, and the library function it called."""

    file: str
    line: int
    function: str
    called: str = ""
    """The innermost function if it is a library's, such as `torch.stack`."""


def line_of(frames: Sequence[Frame]) -> Line | None:
    """The innermost line of the job's code, else of the stack; None if empty."""
    inner = next((n for n, f in enumerate(frames) if not _LIBRARY_FILE.search(f.file)), 0)
    if not frames:
        return None
    # Before Python 3.12 a comprehension is a function.
    comprehensions = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
    names = (f.function for f in frames[inner:] if not f.function.endswith(comprehensions))
    function = next(names, frames[inner].function)
    called = _qualified_name(frames[0]) if inner else ""
    return Line(frames[inner].file, frames[inner].line, function, called)


def serves_others(wait: Wait, frames: Sequence[Frame]) -> bool:
    """Whether a thread only awaits requests of others, so that nothing waits for it.

    It is in accept, or its stack is plumbing, such as an event loop. The requesting thread shows
    the job's own line.
    """
    if ACTIVITY_OF[wait].runs or not frames:
        return False
    accepts = frames[0].function == "accept" and _LIBRARY_FILE.search(frames[0].file)
    return bool(accepts) or all(_PLUMBING.search(f.file) for f in frames)


def gist(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The one or two frames with the same `line_of` as `frames`."""
    line = line_of(frames)
    if line is None:
        return ()
    own = Frame(line.function, line.file, line.line)
    return (frames[0], own) if line.called else (own,)


def _qualified_name(frame: Frame) -> str:
    """The function with its package or module: `torch.stack`."""
    match = _MODULE_NAME.match(frame.file)
    module = match.group(1).removesuffix(".py") if match else PurePath(frame.file).stem
    return f"{module}.{frame.function}"


class _LineKey(NamedTuple):
    line: Line
    role: str
    activity: Activity


class _Attribution(NamedTuple):
    key: _LineKey
    waiting_on: str
    nanoseconds: float


@dataclass(slots=True)
class _Weight:
    """Samples; all fields but the first are weighted by the GPU's idle share."""

    all: float = 0.0
    idle: float = 0.0
    lock: float = 0.0
    native: float = 0.0


@dataclass
class LineCount:
    """Counts stack samples of one GPU by line. Not thread-safe."""

    idle_ns: dict[str, int] = field(default_factory=dict)
    """Idle time by `waiting_on`."""
    looks: int = 0
    _busy: float = 0.0
    _sampled: dict[_LineKey, _Weight] = field(default_factory=dict)

    def add(
        self, windows: Sequence[Window], stalls: Mapping[str, int], samples: Iterable[StackSample]
    ) -> None:
        """Add a tick: windows, idle time by `waiting_on`, stack samples."""
        add_up(self.idle_ns, stalls)
        for sample in samples if windows else ():
            self.looks += 1
            idle = _idle_share(windows, sample.at_ns)
            self._busy += 1 - idle
            for thread in sample.threads:
                self._count(thread, idle, len(sample.threads))

    def _count(self, thread: ThreadSample, idle: float, threads: int) -> None:
        line = line_of(thread.frames)
        if line is None:
            return
        key = _LineKey(line, thread.role, ACTIVITY_OF[thread.wait])
        if key not in self._sampled and len(self._sampled) >= _MAX_CODE_LINES:
            return
        weight = self._sampled.setdefault(key, _Weight())
        share = idle / threads
        weight.all += 1 / threads
        weight.idle += share
        weight.lock += share * (thread.wait is Wait.LOCK)
        weight.native += share * thread.native

    def result(self, trouble: str | None = None) -> IdleLines:
        """Idle time by line: each cause's is attributed to its samples."""
        weights = self._weights()
        whole_ns = sum(self.idle_ns.values())
        lines = [
            attribution
            for wait, idle_ns in self.idle_ns.items()
            if idle_ns
            for attribution in _attribute(idle_ns, wait, _culprits(wait, weights))
        ]
        mains = {key: weight for key, weight in weights.items() if key.role == Role.MAIN}
        waits = _attribute(whole_ns, "", mains)
        return IdleLines(
            seconds=whole_ns / 1e9,
            looks=self.looks,
            lines=tuple(self._largest(lines, whole_ns)),
            waits=tuple(self._largest(waits, whole_ns)),
            trouble=trouble,
        )

    def _largest(self, attributions: Iterable[_Attribution], whole_ns: int) -> Iterator[CodeLine]:
        """The five lines with most time."""
        by_line: dict[tuple[str, int, str], list[_Attribution]] = defaultdict(list)
        for attribution in attributions:
            line = attribution.key.line
            by_line[line.file, line.line, attribution.key.role].append(attribution)
        for of_line in nlargest(5, by_line.values(), key=_nanoseconds):
            if not (ns := _nanoseconds(of_line)):  # too little to divide by
                break
            most = max(of_line, key=lambda attribution: attribution.nanoseconds)
            weights = [(a.nanoseconds / ns, self._sampled[a.key]) for a in of_line]
            yield CodeLine(
                **most.key.line._asdict(),
                role=most.key.role,
                waiting_on=most.waiting_on,
                seconds=ns / 1e9,
                ratio=min(ns / whole_ns, 1.0),
                lock_ratio=min(sum(share * w.lock / w.idle for share, w in weights), 1.0),
                native_ratio=min(sum(share * w.native / w.idle for share, w in weights), 1.0),
            )

    def _weights(self) -> dict[_LineKey, float]:
        """Idle samples by key, less the mains' busy time in order of `Activity`."""
        weights = {key: weight.idle for key, weight in self._sampled.items()}
        busy, mains = self._busy, [key for key in weights if key.role == Role.MAIN]
        whole = sum(self._sampled[key].all for key in mains)
        busy *= whole / self.looks if self.looks else 0.0
        for activity in Activity:
            keys = [key for key in mains if key.activity is activity]
            total = sum(self._sampled[key].all for key in keys)
            explained = min(total, busy)
            busy -= explained
            idle = sum(weights[key] for key in keys)
            for key in keys:
                weights[key] *= (total - explained) / idle if idle else 0.0
        return weights


def _idle_share(windows: Sequence[Window], at_ns: int) -> float:
    """Idle share of the window nearest to `at_ns`."""
    window = min(windows, key=lambda w: abs(w.end_ns - w.duration_ns // 2 - at_ns))
    return 1 - window.active_ns / window.duration_ns if window.duration_ns else 0.0


def _nanoseconds(attributions: Iterable[_Attribution]) -> float:
    return sum(attribution.nanoseconds for attribution in attributions)


def _attribute(idle_ns: int, wait: str, weights: Mapping[_LineKey, float]) -> list[_Attribution]:
    whole = sum(weights.values())
    return [
        _Attribution(key, wait, idle_ns * weight / whole)
        for key, weight in weights.items()
        if weight > 0
    ]


def _culprits(wait: str, weights: Mapping[_LineKey, float]) -> dict[_LineKey, float]:
    for culprits in CULPRITS.get(wait, ()):
        selected = {
            key: weight for key, weight in weights.items() if weight > 0 and culprits.has(key)
        }
        if selected:
            return selected
    return {}
