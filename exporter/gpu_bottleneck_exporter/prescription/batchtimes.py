"""How much the time from batch to batch varies, where a main has one worker.

Many batches may come between two passes over the feeders. So a thread of its own looks at a main
and its worker, several times per batch, until enough batches have come.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import proc_reads
from gpu_bottleneck_exporter.host.files import FileLimitError, KeptFile
from gpu_bottleneck_exporter.host.process import Started, calls_in
from gpu_bottleneck_exporter.schedule import FEW, LONG_NS

_LOOKS_PER_BATCH = 6
"""Looks at a count in the mean time of a batch, which is thus known to a sixth of that."""
_PAUSES_SECONDS = 0.005, 0.25
"""The shortest and the longest pause between two looks."""
_MIN_BATCH_SECONDS = 4 * _PAUSES_SECONDS[0]
"""Mean time of a batch below which looks would miss batches."""
_MIN_BATCHES = 32
"""Count of batches below which their spread is unknown."""
_MORE_BATCHES = 128
"""Count of batches, per unit of spread, that are looked at beyond that: the heavier the tail, the
rarer the batches that make it."""
_MAX_SECONDS = LONG_NS / 1e9
"""Duration of a measurement, at most: batches may be slow."""
_VALID_NS = 30 * LONG_NS
"""Age at which a spread is measured again: a thousand looks in half an hour cost nothing."""
_ORDER = 1.5
"""Order of the moment that the spread is taken from: a second one takes far more batches, and the
logarithm misses rare batches that are slow."""


class Pair(NamedTuple):
    """A main and its only worker."""

    main: Started
    worker: Started


class BatchTimes:
    """The times between batches, from looks at whether one came. Pure arithmetic."""

    def __init__(self, at: float) -> None:
        """`at`: when looking began, in seconds, as all times."""
        self.count = 0
        self._sum = self._moment = 0.0
        self._began = self._looked = at
        self._last: float | None = None
        """When the last batch came; None if unknown."""
        self._arriving = False
        """Whether a batch came at the last look: its parts may come one after the other."""

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        mean = (self._looked - self._began) / (self.count + 1)
        shortest, longest = _PAUSES_SECONDS
        return min(max(mean / _LOOKS_PER_BATCH, shortest), longest)

    def note(self, at: float, *, came: bool) -> None:
        """Note whether a batch, or a part of one, came since the last look."""
        # A thread that gets no CPU looks too late to know when a batch came.
        if at - self._looked > self.pause * _LOOKS_PER_BATCH / 2:
            self._last = None
        elif came and not self._arriving:
            if self._last is not None:
                self.count += 1
                self._sum += at - self._last
                self._moment += math.pow(at - self._last, _ORDER)
            self._last = at
        self._looked, self._arriving = at, came

    @property
    def is_enough(self) -> bool:
        """Whether looking on would add little, or take too long."""
        count = _MIN_BATCHES + _MORE_BATCHES * (self.spread or 0.0)
        return self.count >= count or self._looked - self._began > _MAX_SECONDS

    @property
    def spread(self) -> float | None:
        """Variance of the logarithm, of times with a lognormal distribution; None if unknown."""
        if self.count < _MIN_BATCHES or self._sum < _MIN_BATCH_SECONDS * self.count:
            return None
        ratio = self._moment / self.count / math.pow(self._sum / self.count, _ORDER)
        return max(2 * math.log(ratio) / (_ORDER * (_ORDER - 1)), 0.0)


class _Measurement:
    """The measurement of one pair, on a thread of its own."""

    def __init__(self, proc: Path, pair: Pair, now_ns: int, stop: threading.Event) -> None:
        self.times = BatchTimes(time.monotonic())
        self.began_ns = self.asked_ns = now_ns
        self._main, self._worker = (_CallCount(proc, pid) for pid, _ in pair)
        self._stop = stop
        self.thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        """Look on until enough batches have come.

        At a batch both counts rise, of what the main reads and of what the worker writes: either
        alone also rises for log files and for encrypted requests.
        """
        with suppress(FileLimitError):
            reads, writes = self._main.of("syscr"), self._worker.of("syscw")
            while not (self._stop.wait(self.times.pause) or self.times.is_enough):
                at, before = time.monotonic(), (reads, writes)
                reads = self._main.of("syscr")
                if reads != before[0]:
                    writes = self._worker.of("syscw")
                if reads is None or writes is None:
                    return
                self.times.note(at, came=writes != before[1])


class SpreadMeter:
    """Measures the spread of pairs, a few at a time. Not thread-safe."""

    def __init__(self, proc: Path) -> None:
        """`proc`: the host's."""
        self._proc = proc
        self._measured: dict[Pair, _Measurement] = {}
        self._stop = threading.Event()

    def stop(self) -> None:
        """End the measurements."""
        self._stop.set()

    def spread(self, pair: Pair, now_ns: int) -> float | None:
        """The spread of `pair` as far as it is measured at monotonic `now_ns`, None if unknown.

        A pair is measured when it is first asked for, or once few others are, and again later.
        What is not asked for any longer is dropped after a minute.
        """
        oldest_ns = now_ns - LONG_NS
        self._measured = {
            known: one for known, one in self._measured.items() if one.asked_ns >= oldest_ns
        }
        one = self._measured.get(pair)
        if one is None or now_ns - one.began_ns > _VALID_NS:
            running = sum(other.thread.is_alive() for other in self._measured.values())
            if running < FEW:
                self._measured[pair] = _Measurement(self._proc, pair, now_ns, self._stop)
        if one is None:
            return None
        one.asked_ns = now_ns
        return one.times.spread


class _CallCount:
    """The counts of calls of process `pid` that its I/O counters have."""

    def __init__(self, proc: Path, pid: int) -> None:
        self._pid = pid
        self._file = KeptFile(f"{proc}/{pid}/io")

    def of(self, name: str) -> int | None:
        """The count of calls `name`; aside, as an execve may hold its file up."""
        return calls_in(proc_reads.call(self._pid, self._file.read), name)
