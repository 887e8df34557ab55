"""The thread that looks at the stacks of whoever a GPU waits for."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from gpu_bottleneck_exporter.accounting.bucket import Role
from gpu_bottleneck_exporter.accounting.tick import Tick
from gpu_bottleneck_exporter.accounting.windows import Window, sums
from gpu_bottleneck_exporter.feeders.snapshot import Feeding
from gpu_bottleneck_exporter.host.process import Started
from gpu_bottleneck_exporter.loop import Loop
from gpu_bottleneck_exporter.schedule import LATELY_NS, LONG_NS
from gpu_bottleneck_exporter.stacktraces.lines import (
    ON_LINES,
    LineCount,
    Look,
    Thread,
    gist,
    serves_others,
)
from gpu_bottleneck_exporter.stacktraces.model import Findings, IdleLines
from gpu_bottleneck_exporter.stacktraces.reader import Refusal, StackReader, ThreadStack

log = logging.getLogger(__name__)

LASTED_NS = 2 * LONG_NS
"""A GPU that has waited for one thing for so long is looked at unasked."""
SESSION_SECONDS = LONG_NS / 1e9
"""How long one GPU is looked at, unasked or for somebody who opened a page."""
_AGAIN_NS = 10 * LONG_NS
"""Between two times that a GPU is looked at unasked; so long lines are told that were found."""
_REST_UNASKED, _REST_ASKED = 99, 19
"""Pauses, in units of the CPU time of the look before: a hundredth of a core, and a twentieth."""
_APART_SECONDS = 0.2
"""Between two looks, at least."""
_LOOKS_KEPT = 64
"""Until the driver tells of the windows in which they fell: those of 9 s or more."""
_FINDINGS_KEPT = 64
"""Until somebody asks what was found: of eight GPUs, each of which ends often."""
WORTH_A_LOOK = 0.1
"""Share of the time that a GPU waits for one thing: less costs less than looking may tell."""
_NOBODY = "none of its processes can be seen"


@dataclass(slots=True)
class _Watched:
    """What is known of one GPU."""

    count: LineCount = field(default_factory=LineCount)
    looks: deque[Look] = field(default_factory=lambda: deque(maxlen=_LOOKS_KEPT))
    """Those in windows of which the driver has not told yet."""
    began_ns: int | None = None
    """When somebody began to look (monotonic), until when, and whether that was asked for."""
    until_ns: int = -_AGAIN_NS
    asked: bool = False
    ended: bool = False
    """Whether it was noted that nobody looks any more."""
    mains: frozenset[Started] = frozenset()
    """The processes that have had the GPU since then, and of which the count is."""
    trouble: str | None = None
    lately: dict[str, float] = field(default_factory=dict)
    """Idle time of the last seconds by `waiting_on`: older time fades."""
    waiting_on: str | None = None
    """The largest of these, and since when."""
    since_ns: int = 0

    def begin(self, mains: frozenset[Started], now_ns: int, seconds: float, *, asked: bool) -> None:
        """Begin to look at what `mains` do, or go on for longer."""
        if self.began_ns is None or self.until_ns < now_ns:
            self._restart(mains, now_ns)
        self.asked, self.until_ns = asked, now_ns + int(seconds * 1e9)

    def _restart(self, mains: frozenset[Started], now_ns: int) -> None:
        self.count, self.trouble, self.began_ns = LineCount(), None, now_ns
        self.ended, self.mains = False, mains
        self.looks.clear()

    def hand_over(self, mains: frozenset[Started], now_ns: int) -> Findings | None:
        """Note which processes have the GPU; what was found of others, unless that is known."""
        if mains == self.mains:
            return None
        found = None if self.began_ns is None or self.ended else self.findings()
        self._restart(mains, now_ns)
        if self.until_ns < now_ns:
            self.began_ns = None
        return found

    def findings(self) -> Findings:
        """What was found so far."""
        return Findings(self.count.found(self.trouble), self.mains)

    def follow(self, windows: Sequence[Window], stalls: Mapping[str, int]) -> None:
        """Note what it waits on; lines that were found are told for a while."""
        elapsed_ns, _ = sums(windows)
        fading = math.exp(-elapsed_ns / LATELY_NS)
        for one in {*self.lately, *stalls}:
            self.lately[one] = self.lately.get(one, 0.0) * fading + stalls.get(one, 0)
        most = max(self.lately, key=lambda one: self.lately[one], default="")
        idles = self.lately.get(most, 0.0) > WORTH_A_LOOK * LATELY_NS
        wait = most if idles and most in ON_LINES else None
        end_ns = windows[-1].end_ns
        if wait != self.waiting_on:
            self.waiting_on, self.since_ns = wait, end_ns
        if end_ns - self.until_ns > _AGAIN_NS:
            self.began_ns = None

    def is_due(self, now_ns: int) -> bool:
        """Whether it has waited for so long that somebody should look, though nobody asks."""
        lasts = self.waiting_on is not None and now_ns - self.since_ns >= LASTED_NS
        return lasts and now_ns - self.until_ns >= _AGAIN_NS


class LineWatch:
    """Looks at the feeders of GPUs that somebody asks for, or of those that wait for long."""

    def __init__(
        self,
        feeding: Callable[[str], Feeding | None],
        open_reader: Callable[[], AbstractContextManager[StackReader]],
    ) -> None:
        """`feeding`: who feeds a GPU."""
        self._feeding = feeding
        self._open_reader = open_reader
        self._gpus: dict[str, _Watched] = {}
        self._ended: deque[tuple[str, Findings]] = deque(maxlen=_FINDINGS_KEPT)
        self._lock = threading.Lock()
        self.loop = Loop("stacks", self._look_if_due, _APART_SECONDS, log=log)
        """It sleeps while there is nothing to look at."""

    def ask(self, uuid: str, seconds: float = SESSION_SECONDS) -> None:
        """Look at GPU `uuid` for so long from now; who asks again prolongs that."""
        with self._lock:
            gpu = self._gpus.setdefault(uuid, _Watched())
            gpu.begin(self._mains(uuid), time.monotonic_ns(), seconds, asked=True)
        self.loop.wake()

    def note(self, tick: Tick) -> None:
        """Note what a GPU did. What was found is kept once others have it, or nobody looks on."""
        if not tick.windows:
            return
        uuid, windows, stalls = tick.gpu.uuid, tick.windows, tick.stalls
        end_ns, mains = windows[-1].end_ns, self._mains(uuid)
        with self._lock:
            gpu = self._gpus.setdefault(uuid, _Watched())
            found = gpu.hand_over(mains, time.monotonic_ns())
            gpu.follow(windows, stalls)
            within = [look for look in gpu.looks if look.at_ns <= end_ns]
            for _ in within:
                gpu.looks.popleft()
            if gpu.began_ns is not None:
                gpu.count.add(*_between(windows, stalls, gpu.began_ns, gpu.until_ns), within)
                if gpu.until_ns < end_ns and not gpu.ended:
                    gpu.ended, found = True, gpu.findings()
            due = gpu.is_due(end_ns)
        if found:
            self._ended.append((uuid, found))
        if due:
            self.loop.wake()

    def ended(self) -> Iterator[tuple[str, Findings]]:
        """What was found of whom since the last call, by the GPU's uuid. For one caller."""
        while self._ended:
            yield self._ended.popleft()

    def forget(self, uuid: str) -> None:
        """Drop GPU `uuid`, which is no more."""
        with self._lock:
            self._gpus.pop(uuid, None)

    def told(self, uuid: str) -> IdleLines:
        """What was found of GPU `uuid`; nothing once others have it."""
        mains = self._mains(uuid)
        with self._lock:
            gpu = self._gpus.get(uuid)
            if gpu is None or gpu.began_ns is None or gpu.mains != mains:
                return IdleLines()
            age_ns = max(time.monotonic_ns() - gpu.until_ns, 0)
            found, _ = gpu.findings()
            return replace(found, looking=not age_ns, age_seconds=age_ns / 1e9)

    def _mains(self, uuid: str) -> frozenset[Started]:
        feeding = self._feeding(uuid)
        return feeding.mains if feeding else frozenset()

    def _look_if_due(self) -> float:
        if not self._watched(time.monotonic_ns()):
            return math.inf
        with self._open_reader() as reader:
            before = reader.cpu_seconds + time.thread_time()
            while not self.loop.stopping and (watched := self._watched(time.monotonic_ns())):
                for uuid in watched:
                    self._look(uuid, reader)
                # Reads that were abandoned go on during the pause.
                spent = reader.cpu_seconds + time.thread_time() - before
                before += spent
                rest = _REST_ASKED if any(gpu.asked for gpu in watched.values()) else _REST_UNASKED
                pause = max(_APART_SECONDS, rest * spent) * random.uniform(0.7, 1.3)  # noqa: S311
                self.loop.rest(pause)
        return _APART_SECONDS

    def _watched(self, now_ns: int) -> dict[str, _Watched]:
        """The GPUs to look at now: those that somebody asked for, or else one."""
        with self._lock:
            found = {uuid: gpu for uuid, gpu in self._gpus.items() if now_ns < gpu.until_ns}
            asked = {uuid: gpu for uuid, gpu in found.items() if gpu.asked}
            if found:
                return asked or found
            due = [uuid for uuid, gpu in self._gpus.items() if gpu.is_due(now_ns)]
            for uuid in due[:1]:
                self._gpus[uuid].begin(self._mains(uuid), now_ns, SESSION_SECONDS, asked=False)
            return {uuid: self._gpus[uuid] for uuid in due[:1]}

    def _look(self, uuid: str, reader: StackReader) -> None:
        feeding = self._feeding(uuid)
        mains, helpers = feeding.busiest if feeding else ((), ())
        at_ns, found = time.monotonic_ns(), reader.read(mains, helpers)
        holders = dict(mains)
        threads = [
            thread
            for pid, stacks in found.items()
            if not isinstance(stacks, Refusal)
            for thread in _threads(pid, stacks, is_main=pid in holders)
        ]
        refused = (f"process {p}: {why}" for p, why in found.items() if isinstance(why, Refusal))
        with self._lock:
            gpu = self._gpus.get(uuid)
            if gpu and gpu.mains == frozenset(mains):
                gpu.looks.append(Look(at_ns, threads))
                gpu.trouble = next(refused, None) if found else _NOBODY


def _between(
    windows: Sequence[Window], stalls: Mapping[str, int], start_ns: int, end_ns: int
) -> tuple[list[Window], dict[str, int]]:
    """The windows that end in that time, and their part of the idle time."""
    kept = [window for window in windows if start_ns < window.end_ns <= end_ns]
    (all_ns, busy_ns), (kept_ns, kept_busy_ns) = sums(windows), sums(kept)
    idle_ns = max(all_ns - busy_ns, 1)
    return kept, {wait: ns * (kept_ns - kept_busy_ns) // idle_ns for wait, ns in stalls.items()}


def _threads(pid: int, stacks: Iterable[ThreadStack], *, is_main: bool) -> Iterator[Thread]:
    """What a process's threads did; helpers of a main are its other threads."""
    for one in stacks:
        first = one.tid == pid
        role = Role.MAIN if is_main and first else Role.THREAD if is_main else Role.WORKER
        if role != Role.MAIN and serves_others(one.wait, one.frames):
            continue
        yield Thread(role, one.wait, gist(one.frames), native=one.native)
