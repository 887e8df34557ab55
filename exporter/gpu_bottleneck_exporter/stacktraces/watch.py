"""The thread that samples the stacks of the processes an idle GPU waits for."""

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
from gpu_bottleneck_exporter.schedule import CADENCE
from gpu_bottleneck_exporter.stacktraces.lines import (
    CULPRITS,
    LineCount,
    StackSample,
    ThreadSample,
    gist,
    serves_others,
)
from gpu_bottleneck_exporter.stacktraces.model import Findings, IdleLines
from gpu_bottleneck_exporter.stacktraces.reader import StackReader, ThreadStack, UnreadableReason

log = logging.getLogger(__name__)

MIN_WAIT_NS = 2 * CADENCE.cache_ttl_ns
"""Length of a wait that starts sampling without a request. Judged."""
SESSION_SECONDS = CADENCE.cache_ttl_ns / 1e9
_SESSION_INTERVAL_NS = 10 * CADENCE.cache_ttl_ns
"""Pause between unrequested sessions, and lifetime of lines."""
_MIN_SAMPLE_INTERVAL_SECONDS = 0.2
_MAX_PENDING = 64
"""Bound on samples that await the driver's windows, and on unpopped findings."""
MIN_WAIT_SHARE = 0.1
"""Judged: minimum share of time in one wait that is worth a sample."""


@dataclass(slots=True)
class _WatchedGpu:
    count: LineCount = field(default_factory=LineCount)
    pending: deque[StackSample] = field(default_factory=lambda: deque(maxlen=_MAX_PENDING))
    """Samples that await the driver's windows."""
    began_ns: int | None = None
    """Start of the session (monotonic), followed by its end."""
    until_ns: int = -_SESSION_INTERVAL_NS
    requested: bool = False
    ended: bool = False
    """Whether the findings of the session were published."""
    mains: frozenset[Started] = frozenset()
    trouble: str | None = None
    recent_ns: dict[str, float] = field(default_factory=dict)
    """Decaying idle time by `waiting_on`."""
    waiting_on: str | None = None
    """The largest of `recent_ns`, followed by its start."""
    since_ns: int = 0

    def begin(
        self, mains: frozenset[Started], now_ns: int, seconds: float, *, requested: bool
    ) -> None:
        """Start a session, or prolong the current one."""
        if self.began_ns is None or self.until_ns < now_ns:
            self._restart(mains, now_ns)
        self.requested, self.until_ns = requested, now_ns + int(seconds * 1e9)

    def _restart(self, mains: frozenset[Started], now_ns: int) -> None:
        self.count, self.trouble, self.began_ns = LineCount(), None, now_ns
        self.ended, self.mains = False, mains
        self.pending.clear()

    def hand_over(self, mains: frozenset[Started], now_ns: int) -> Findings | None:
        """Set the holders. Returns unpublished findings of previous ones."""
        if mains == self.mains:
            return None
        findings = None if self.began_ns is None or self.ended else self.findings()
        self._restart(mains, now_ns)
        if self.until_ns < now_ns:
            self.began_ns = None
        return findings

    def findings(self) -> Findings:
        return Findings(self.count.result(self.trouble), self.mains)

    def follow(self, windows: Sequence[Window], stalls: Mapping[str, int]) -> None:
        """Update the dominant wait, and expire old lines."""
        elapsed_ns, _ = sums(windows)
        decay = math.exp(-elapsed_ns / CADENCE.recent_ns)
        for wait in {*self.recent_ns, *stalls}:
            self.recent_ns[wait] = self.recent_ns.get(wait, 0.0) * decay + stalls.get(wait, 0)
        most = max(self.recent_ns, key=lambda wait: self.recent_ns[wait], default="")
        idles = self.recent_ns.get(most, 0.0) > MIN_WAIT_SHARE * CADENCE.recent_ns
        dominant = most if idles and most in CULPRITS else None
        end_ns = windows[-1].end_ns
        if dominant != self.waiting_on:
            self.waiting_on, self.since_ns = dominant, end_ns
        if end_ns - self.until_ns > _SESSION_INTERVAL_NS:
            self.began_ns = None

    def is_due(self, now_ns: int) -> bool:
        """Whether a session is to start without a request."""
        lasts = self.waiting_on is not None and now_ns - self.since_ns >= MIN_WAIT_NS
        return lasts and now_ns - self.until_ns >= _SESSION_INTERVAL_NS


class LineWatch:
    """Samples the stacks of GPUs' feeders, on request or in a long wait. Thread-safe."""

    def __init__(
        self,
        feeding: Callable[[str], Feeding | None],
        open_reader: Callable[[], AbstractContextManager[StackReader]],
    ) -> None:
        """`feeding`: the feeders of a GPU by its uuid."""
        self._feeding = feeding
        self._open_reader = open_reader
        self._gpus: dict[str, _WatchedGpu] = {}
        self._ended: deque[tuple[str, Findings]] = deque(maxlen=_MAX_PENDING)
        self._lock = threading.Lock()
        self.loop = Loop("stacks", self._sample_if_due, _MIN_SAMPLE_INTERVAL_SECONDS, log=log)

    def request(self, uuid: str, seconds: float = SESSION_SECONDS) -> None:
        """Sample GPU `uuid` for this time from now; prolongs a session."""
        with self._lock:
            gpu = self._gpus.setdefault(uuid, _WatchedGpu())
            gpu.begin(self._mains(uuid), time.monotonic_ns(), seconds, requested=True)
        self.loop.wake()

    def add_tick(self, tick: Tick) -> None:
        """Count a tick. Publishes findings at the end of a session or of its holders."""
        if not tick.windows:
            return
        uuid, windows, stalls = tick.gpu.uuid, tick.windows, tick.stalls
        end_ns, mains = windows[-1].end_ns, self._mains(uuid)
        with self._lock:
            gpu = self._gpus.setdefault(uuid, _WatchedGpu())
            findings = gpu.hand_over(mains, time.monotonic_ns())
            gpu.follow(windows, stalls)
            samples = [sample for sample in gpu.pending if sample.at_ns <= end_ns]
            for _ in samples:
                gpu.pending.popleft()
            if gpu.began_ns is not None:
                gpu.count.add(*_between(windows, stalls, gpu.began_ns, gpu.until_ns), samples)
                if gpu.until_ns < end_ns and not gpu.ended:
                    gpu.ended, findings = True, gpu.findings()
            due = gpu.is_due(end_ns)
        if findings:
            self._ended.append((uuid, findings))
        if due:
            self.loop.wake()

    def pop_ended(self) -> Iterator[tuple[str, Findings]]:
        """Uuid and findings of sessions that ended since the last call. Single consumer."""
        while self._ended:
            yield self._ended.popleft()

    def forget(self, uuid: str) -> None:
        """Drop GPU `uuid` after its removal."""
        with self._lock:
            self._gpus.pop(uuid, None)

    def result(self, uuid: str) -> IdleLines:
        """The lines of GPU `uuid`; empty once its holders change."""
        mains = self._mains(uuid)
        with self._lock:
            gpu = self._gpus.get(uuid)
            if gpu is None or gpu.began_ns is None or gpu.mains != mains:
                return IdleLines()
            age_ns = max(time.monotonic_ns() - gpu.until_ns, 0)
            lines, _ = gpu.findings()
            return replace(lines, looking=not age_ns, age_seconds=age_ns / 1e9)

    def _mains(self, uuid: str) -> frozenset[Started]:
        feeding = self._feeding(uuid)
        return feeding.mains if feeding else frozenset()

    def _sample_if_due(self) -> float:
        if not self._watched(time.monotonic_ns()):
            return math.inf
        with self._open_reader() as reader:
            before = reader.cpu_seconds + time.thread_time()
            while not self.loop.stopping and (watched := self._watched(time.monotonic_ns())):
                for uuid in watched:
                    self._sample(uuid, reader)
                # Timed-out reads use CPU during the pause, too.
                used = reader.cpu_seconds + time.thread_time() - before
                before += used
                # A twentieth or a hundredth of a core.
                idle_ratio = 19 if any(gpu.requested for gpu in watched.values()) else 99
                pause = max(_MIN_SAMPLE_INTERVAL_SECONDS, idle_ratio * used)
                self.loop.rest(pause * random.uniform(0.7, 1.3))  # noqa: S311
        return _MIN_SAMPLE_INTERVAL_SECONDS

    def _watched(self, now_ns: int) -> dict[str, _WatchedGpu]:
        """The GPUs to sample now: the requested ones, or else a due one."""
        with self._lock:
            active = {uuid: gpu for uuid, gpu in self._gpus.items() if now_ns < gpu.until_ns}
            requested = {uuid: gpu for uuid, gpu in active.items() if gpu.requested}
            if active:
                return requested or active
            due = [uuid for uuid, gpu in self._gpus.items() if gpu.is_due(now_ns)]
            for uuid in due[:1]:
                self._gpus[uuid].begin(self._mains(uuid), now_ns, SESSION_SECONDS, requested=False)
            return {uuid: self._gpus[uuid] for uuid in due[:1]}

    def _sample(self, uuid: str, reader: StackReader) -> None:
        feeding = self._feeding(uuid)
        mains, helpers = feeding.busiest if feeding else ((), ())
        at_ns, stacks = time.monotonic_ns(), reader.read(mains, helpers)
        holders = dict(mains)
        threads = [
            thread
            for pid, of_process in stacks.items()
            if not isinstance(of_process, UnreadableReason)
            for thread in _threads(pid, of_process, is_main=pid in holders)
        ]
        reasons = (
            f"process {pid}: {reason}"
            for pid, reason in stacks.items()
            if isinstance(reason, UnreadableReason)
        )
        with self._lock:
            gpu = self._gpus.get(uuid)
            if gpu and gpu.mains == frozenset(mains):
                gpu.pending.append(StackSample(at_ns, threads))
                unseen = "none of its processes can be seen"
                gpu.trouble = next(reasons, None) if stacks else unseen


def _between(
    windows: Sequence[Window], stalls: Mapping[str, int], start_ns: int, end_ns: int
) -> tuple[list[Window], dict[str, int]]:
    """The windows that end in this interval, and their part of the idle time."""
    inside = [window for window in windows if start_ns < window.end_ns <= end_ns]
    (all_ns, all_busy_ns), (ns, busy_ns) = sums(windows), sums(inside)
    idle_ns = max(all_ns - all_busy_ns, 1)
    return inside, {wait: stall_ns * (ns - busy_ns) // idle_ns for wait, stall_ns in stalls.items()}


def _threads(pid: int, stacks: Iterable[ThreadStack], *, is_main: bool) -> Iterator[ThreadSample]:
    """Threads that may delay the GPU. A main's other threads are helpers."""
    for stack in stacks:
        first = stack.tid == pid
        role = Role.MAIN if is_main and first else Role.THREAD if is_main else Role.WORKER
        if role != Role.MAIN and serves_others(stack.wait, stack.frames):
            continue
        yield ThreadSample(role, stack.wait, gist(stack.frames), native=stack.native)
