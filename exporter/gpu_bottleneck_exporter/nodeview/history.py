"""The last few minutes of a node's counters, as shares and a verdict."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock
from types import MappingProxyType
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.tick import UNATTRIBUTED
from gpu_bottleneck_exporter.host.machine import Machine
from gpu_bottleneck_exporter.nodeview.model import KEPT_BUSY, Key, Parts, named, parts_of
from gpu_bottleneck_exporter.nodeview.thresholds import KEPT_BUSY_RATIO
from gpu_bottleneck_exporter.sampling.ledger import TenantTotals

TREND_STEPS = 60
"""Steps of a trend: 60 columns of a pixel or more."""


@dataclass(frozen=True, slots=True)
class GpuTime:
    """Cumulative time of one GPU in seconds, since the exporter started."""

    observed: float
    busy: float
    stalls: Mapping[str, float]
    sm_active: float | None = None
    engines: Mapping[str, float] = field(default_factory=dict)
    """Busy time by video engine."""
    tenants: Mapping[str, TenantTotals] = field(default_factory=dict)


class Moment(NamedTuple):
    """The counters of a node at one time; a GPU without counters is absent."""

    gpus: Mapping[Key, GpuTime]
    machine: Machine = Machine()


class Shares(NamedTuple):
    """The time shares of a GPU, with the fields of `GpuStatus`."""

    observed_seconds: float
    busy_ratio: float
    stall_ratios: Parts
    """Largest first, without zeros."""
    sm_active_ratio: float | None = None
    engine_ratios: Parts | None = None
    verdict_seconds: float | None = None
    """Minimum age of the verdict; None without one."""
    trend: tuple[Parts, ...] = ()
    tenants: Mapping[str, TenantTotals] = MappingProxyType({})
    """Time of each tenant over the trend; empty with fewer than two."""

    @property
    def verdict(self) -> str | None:
        """The largest wait, or `KEPT_BUSY`; None if unknown."""
        return (
            KEPT_BUSY if self.busy_ratio >= KEPT_BUSY_RATIO else next(iter(self.stall_ratios), None)
        )


class RecentShares(NamedTuple):
    """The shares of a node over its last `seconds`."""

    seconds: float
    gpus: Mapping[Key, Shares]
    cpu_busy: float | None
    """Share of all CPUs."""
    pressure: Parts
    """PSI "some" share by resource."""


@dataclass(slots=True)
class _Track:
    """The counters of one GPU by monotonic seconds, and its current verdict."""

    points: deque[tuple[float, GpuTime]] = field(default_factory=deque)
    verdict: str | None = None
    verdict_since: float = 0.0


class CounterHistory:
    """The recent counters of a node. Thread-safe."""

    def __init__(self, window_seconds: float, trend_seconds: float) -> None:
        """Shares cover `window_seconds`, trends `trend_seconds`."""
        self._window = window_seconds
        self._trend_seconds = trend_seconds
        self._lock = Lock()
        self._tracks: dict[Key, _Track] = {}
        self._hosts: deque[tuple[float, Machine]] = deque()
        self._began: float | None = None

    def add(self, at: float, moment: Moment) -> None:
        """Record the counters at `at` (monotonic seconds, increasing).

        A GPU without counters is evicted.
        """
        with self._lock:
            self._began = at if self._began is None else self._began
            self._tracks = {key: self._follow(at, key, now) for key, now in moment.gpus.items()}
            if moment.machine != Machine():
                self._hosts.append((at, moment.machine))
            while self._hosts and at - self._hosts[0][0] > self._window:
                self._hosts.popleft()

    def recent(self, at: float, moment: Moment) -> RecentShares:
        """The shares of the window that ends at `at`, with the counters `moment`."""
        with self._lock:
            since, before = self._hosts[0] if self._hosts else (at, moment.machine)
            shares = ((key, self._shares(at, key, now)) for key, now in moment.gpus.items())
            gpus = {
                key: self._timed(at, key, share, moment.gpus[key]) for key, share in shares if share
            }
            return RecentShares(
                min(self._window, at - (at if self._began is None else self._began)),
                gpus,
                _cpu_busy(before, moment.machine, at - since),
                _pressure(before, moment.machine, at - since),
            )

    def _follow(self, at: float, key: Key, now: GpuTime) -> _Track:
        track = self._tracks.get(key, _Track())
        if track.points and now.observed < track.points[-1][1].observed:
            track = _Track()  # the GPU was reopened
        track.points.append((at, now))
        while at - track.points[0][0] > self._trend_seconds:
            track.points.popleft()
        self._tracks[key] = track
        shares = self._shares(at, key, now)
        verdict = shares.verdict if shares else None
        if verdict != track.verdict:
            track.verdict, track.verdict_since = verdict, at
        return track

    def _shares(self, at: float, key: Key, now: GpuTime) -> Shares | None:
        if key not in self._tracks:
            return None
        points = self._tracks[key].points
        recent = (counters for then, counters in points if at - then <= self._window)
        # Without a point in the window, the last one.
        return between(next(recent, points[-1][1]), now)

    def _timed(self, at: float, key: Key, shares: Shares, now: GpuTime) -> Shares:
        track, verdict = self._tracks[key], shares.verdict
        lasted = at - track.verdict_since if verdict == track.verdict else 0.0
        trend = tuple(_step(*times) for times in pairwise(time for _, time in track.points))
        return shares._replace(
            verdict_seconds=lasted if verdict else None,
            trend=trend[-TREND_STEPS:],
            tenants=_by_tenant(track.points[0][1], now),
        )


def between(before: GpuTime, now: GpuTime) -> Shares | None:
    """The shares between two times; None if nothing was observed."""
    observed = now.observed - before.observed
    if observed <= 0:
        return None
    waited = {name: value - before.stalls.get(name, 0.0) for name, value in now.stalls.items()}
    largest_first = sorted(waited.items(), key=lambda wait: -wait[1])
    sm_active = None
    if now.sm_active is not None and before.sm_active is not None:
        sm_active = _ratio(now.sm_active - before.sm_active, observed)
    stalls = {name: _ratio(seconds, observed) for name, seconds in largest_first if seconds > 0}
    engines = {
        name: _ratio(seconds - before.engines.get(name, seconds), observed)
        for name, seconds in now.engines.items()
    }
    busy = _ratio(now.busy - before.busy, observed)
    return Shares(observed, busy, stalls, sm_active, engines or None)


def _by_tenant(before: GpuTime, now: GpuTime) -> Mapping[str, TenantTotals]:
    times = {}
    for name, total in now.tenants.items():
        earlier = before.tenants.get(name, TenantTotals())
        waited = {wait: ns - earlier.stall_ns.get(wait, 0) for wait, ns in total.stall_ns.items()}
        part = TenantTotals(total.busy_ns - earlier.busy_ns, waited)
        if min((part.busy_ns, *waited.values())) < 0:
            part = total  # it left and came back
        if part.busy_ns or any(part.stall_ns.values()):
            times[name] = part
    return times if len(times.keys() - {UNATTRIBUTED}) > 1 else {}


def _step(before: GpuTime, now: GpuTime) -> Parts:
    shares = between(before, now)
    parts = named(parts_of(shares.busy_ratio, shares.stall_ratios)) if shares else {}
    return {name: round(part, 3) for name, part in parts.items()}


def _cpu_busy(before: Machine, now: Machine, seconds: float) -> float | None:
    if now.cpus is None or now.cpu_busy_seconds is None or before.cpu_busy_seconds is None:
        return None
    spent = now.cpu_busy_seconds - before.cpu_busy_seconds
    return _ratio(spent, seconds * now.cpus) if seconds > 0 else None


def _pressure(before: Machine, now: Machine, seconds: float) -> Parts:
    return {
        resource: _ratio(ns - before.pressure_ns[resource, kind], seconds * 1e9)
        for (resource, kind), ns in now.pressure_ns.items()
        if kind == "some" and (resource, kind) in before.pressure_ns and seconds > 0
    }


def _ratio(part: float, whole: float) -> float:
    """`part / whole`, clamped to 0-1: counters are not read simultaneously."""
    return min(max(part / whole, 0.0), 1.0)
