"""Measures the variance of the time between batches, for a main with one worker.

Batches can be faster than passes, so a separate thread samples the pair.
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
from gpu_bottleneck_exporter.prescription.thresholds import ADVICE
from gpu_bottleneck_exporter.schedule import CADENCE, SMALL_GROUP


class Pair(NamedTuple):
    """A main and its only worker."""

    main: Started
    worker: Started


class BatchTimes:
    """Statistics of the time between batches. No I/O."""

    def __init__(self, at: float) -> None:
        """`at`: the start, in seconds."""
        self.count = 0
        self._sum = self._moment = 0.0
        self._began = self._sampled = at
        self._last: float | None = None
        """Arrival of the last batch; None if unknown."""
        self._arriving = False
        """Whether the last sample saw an arrival: a batch has several parts."""

    @property
    def pause(self) -> float:
        """Seconds until the next sample."""
        mean = (self._sampled - self._began) / (self.count + 1)
        return min(max(mean / ADVICE.samples_per_batch, ADVICE.min_pause_seconds), 0.25)

    def add(self, at: float, *, arrived: bool) -> None:
        """Add a sample: whether a part of a batch arrived since the last."""
        # A thread without CPU missed the time of arrival.
        if at - self._sampled > self.pause * ADVICE.samples_per_batch / 2:
            self._last = None
        elif arrived and not self._arriving:
            if self._last is not None:
                self.count += 1
                self._sum += at - self._last
                self._moment += math.pow(at - self._last, ADVICE.moment_order)
            self._last = at
        self._sampled, self._arriving = at, arrived

    @property
    def is_enough(self) -> bool:
        """Whether the batches suffice, or took a minute: 128 more per unit of spread."""
        count = ADVICE.min_batches + 128 * (self.spread or 0.0)
        return self.count >= count or self._sampled - self._began > CADENCE.cache_ttl_ns / 1e9

    @property
    def spread(self) -> float | None:
        """Variance of the logarithm of lognormal times; None if unknown."""
        # Shorter batches pass between samples.
        if self.count < ADVICE.min_batches or self._sum < 4 * ADVICE.min_pause_seconds * self.count:
            return None
        ratio = self._moment / self.count / math.pow(self._sum / self.count, ADVICE.moment_order)
        return max(2 * math.log(ratio) / (ADVICE.moment_order * (ADVICE.moment_order - 1)), 0.0)


class _Measurement:
    def __init__(self, proc: Path, pair: Pair, now_ns: int, stop: threading.Event) -> None:
        self.times = BatchTimes(time.monotonic())
        self.began_ns = self.used_ns = now_ns
        self._main, self._worker = (_CallCount(proc, pid) for pid, _ in pair)
        self._stop = stop
        self.thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        """Sample until there are enough batches.

        A batch raises the main's reads and the worker's writes; logs raise one of them.
        """
        with suppress(FileLimitError):
            reads, writes = self._main.count("syscr"), self._worker.count("syscw")
            while not (self._stop.wait(self.times.pause) or self.times.is_enough):
                at, before = time.monotonic(), (reads, writes)
                reads = self._main.count("syscr")
                if reads != before[0]:
                    writes = self._worker.count("syscw")
                if reads is None or writes is None:
                    return
                self.times.add(at, arrived=writes != before[1])


class SpreadMeter:
    """Measures the spread of pairs, `SMALL_GROUP` at a time. Not thread-safe."""

    def __init__(self, proc: Path) -> None:
        """`proc`: the host's."""
        self._proc = proc
        self._measured: dict[Pair, _Measurement] = {}
        self._stop = threading.Event()

    def stop(self) -> None:
        """Stop the measurements."""
        self._stop.set()

    def spread(self, pair: Pair, now_ns: int) -> float | None:
        """The spread of `pair` as measured by `now_ns` (monotonic), None if unknown.

        Measured on first use and every half hour; dropped after a minute without use.
        """
        oldest_ns = now_ns - CADENCE.cache_ttl_ns
        self._measured = {
            other: it for other, it in self._measured.items() if it.used_ns >= oldest_ns
        }
        measurement = self._measured.get(pair)
        if measurement is None or now_ns - measurement.began_ns > 30 * CADENCE.cache_ttl_ns:
            running = sum(other.thread.is_alive() for other in self._measured.values())
            if running < SMALL_GROUP:
                self._measured[pair] = _Measurement(self._proc, pair, now_ns, self._stop)
        if measurement is None:
            return None
        measurement.used_ns = now_ns
        return measurement.times.spread


class _CallCount:
    def __init__(self, proc: Path, pid: int) -> None:
        self._pid = pid
        self._file = KeptFile(f"{proc}/{pid}/io")

    def count(self, name: str) -> int | None:
        """The count of calls `name`; read aside, as an execve can delay it."""
        return calls_in(proc_reads.call(self._pid, self._file.read), name)
