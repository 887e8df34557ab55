"""The last few minutes of readings: turns counters into shares and a verdict."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

from gpu_bottleneck_exporter.nodeview.model import (
    GpuReading,
    GpuTime,
    GpuView,
    HostReading,
    Key,
    NodeView,
    Reading,
    Shares,
)

_NOTHING_YET = GpuTime(0.0, 0.0, {})
"""What a GPU had counted that was in the earlier reading, but without counters."""


class Point(NamedTuple):
    """Counters of one GPU at one time (monotonic seconds)."""

    at: float
    counters: GpuTime


@dataclass(slots=True)
class _Track:
    """The history of one GPU."""

    points: deque[Point] = field(default_factory=deque)
    verdict: str | None = None
    verdict_since: float = 0.0


class History:
    """Keeps readings; any thread may add and view."""

    def __init__(self, window_seconds: float, kept_seconds: float) -> None:
        """Shares are over `window_seconds`, trends over `kept_seconds`."""
        self._window = window_seconds
        self._kept = kept_seconds
        self._lock = Lock()
        self._tracks: dict[Key, _Track] = {}
        self._hosts: deque[tuple[float, HostReading]] = deque()

    def add(self, at: float, reading: Reading) -> None:
        """Keep a reading taken at `at` (monotonic seconds), later than the one before.

        A GPU without counters is forgotten: its past says nothing about what it does now.
        """
        with self._lock:
            self._tracks = {
                gpu.key: self._follow(at, gpu.key, gpu.counters)
                for gpu in reading.gpus
                if gpu.counters is not None
            }
            if reading.host != HostReading():
                self._hosts.append((at, reading.host))
            while self._hosts and at - self._hosts[0][0] > self._window:
                self._hosts.popleft()

    def view(self, at: float, reading: Reading) -> NodeView:
        """`reading`, taken at `at`, with shares and trends from the kept ones."""
        with self._lock:
            host = self._hosts[0] if self._hosts else (at, reading.host)
            return NodeView(
                now=reading,
                gpus=tuple(self._gpu(at, gpu) for gpu in reading.gpus),
                cpu_busy=_cpu_busy(host[1], reading.host, at - host[0]),
                pressure=_pressure(host[1], reading.host, at - host[0]),
            )

    def _follow(self, at: float, key: Key, counters: GpuTime) -> _Track:
        track = self._tracks.get(key, _Track())
        if track.points and counters.observed < track.points[-1].counters.observed:
            track = _Track()  # the exporter has restarted
        track.points.append(Point(at, counters))
        while at - track.points[0].at > self._kept:
            track.points.popleft()
        shares = self._shares(at, track, counters)
        verdict = shares.verdict if shares else None
        if verdict != track.verdict:
            track.verdict, track.verdict_since = verdict, at
        return track

    def _gpu(self, at: float, gpu: GpuReading) -> GpuView:
        track = self._tracks.get(gpu.key)
        if track is None or gpu.counters is None:
            return GpuView(gpu)
        shares = self._shares(at, track, gpu.counters)
        return GpuView(
            now=gpu,
            shares=shares,
            trend=tuple(between(a.counters, b.counters) for a, b in pairwise(track.points)),
            verdict_seconds=_lasted(track, shares, at),
        )

    def _shares(self, at: float, track: _Track, counters: GpuTime) -> Shares | None:
        recent = (point for point in track.points if at - point.at <= self._window)
        # If no point is that recent, from the last one on.
        start = next(recent, track.points[-1])
        return between(start.counters, counters)


def _lasted(track: _Track, shares: Shares | None, at: float) -> float | None:
    if shares is None or shares.verdict is None:
        return None
    return at - track.verdict_since if shares.verdict == track.verdict else 0.0


def since(before: Reading, now: Reading) -> tuple[GpuView, ...]:
    """The GPUs of `now`, with what each did since `before`; without a trend."""
    start = {gpu.key: gpu.counters or _NOTHING_YET for gpu in before.gpus}
    return tuple(GpuView(gpu, between(start.get(gpu.key), gpu.counters)) for gpu in now.gpus)


def between(before: GpuTime | None, now: GpuTime | None) -> Shares | None:
    """What a GPU did between two readings; None if nothing was observed."""
    if before is None or now is None or now.observed <= before.observed:
        return None
    observed = now.observed - before.observed
    parts = {
        name: (value - before.stalls.get(name, 0.0)) / observed
        for name, value in now.stalls.items()
    }
    largest_first = sorted(parts.items(), key=lambda part: -part[1])
    sm_active = None
    if now.sm_active is not None and before.sm_active is not None:
        sm_active = min((now.sm_active - before.sm_active) / observed, 1.0)
    return Shares(
        seconds=observed,
        busy=(now.busy - before.busy) / observed,
        stalls={name: part for name, part in largest_first if part > 0},
        sm_active=sm_active,
    )


def _cpu_busy(before: HostReading, now: HostReading, seconds: float) -> float | None:
    if None in (now.cpus, now.cpu_busy_seconds, before.cpu_busy_seconds) or seconds <= 0:
        return None
    spent = (now.cpu_busy_seconds or 0.0) - (before.cpu_busy_seconds or 0.0)
    return min(max(spent / seconds / (now.cpus or 1.0), 0.0), 1.0)


def _pressure(before: HostReading, now: HostReading, seconds: float) -> Mapping[str, float]:
    if seconds <= 0:
        return {}
    return {
        resource: min(max((value - before.pressure_seconds[resource]) / seconds, 0.0), 1.0)
        for resource, value in now.pressure_seconds.items()
        if resource in before.pressure_seconds
    }
