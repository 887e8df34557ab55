"""Divides the time of a shared GPU among its tenants: pure arithmetic over the driver's samples.

Busy time goes to processes by their samples (nvmlDeviceGetProcessUtilization) in the same window,
idle time in equal parts to the tenants, each by what its own processes waited for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from gpu_bottleneck_exporter.accounting.bucket import Bucket
from gpu_bottleneck_exporter.accounting.stall import Carry, apportion, split_part
from gpu_bottleneck_exporter.accounting.tick import UNATTRIBUTED, TenantTime, Tick
from gpu_bottleneck_exporter.accounting.windows import MAX_PERIOD_NS, ClockMap, Window, sums
from gpu_bottleneck_exporter.driver.readings import ProcessUse
from gpu_bottleneck_exporter.schedule import CADENCE

_NO_PID = 0
"""Pid of busy time without a process."""
_MAX_WAIT_NS = 2 * MAX_PERIOD_NS
"""Time after which a window without samples has none."""
_MAX_PIDS = 256
"""Bound on processes with a balance: drivers list 100."""


class BusyMeter:
    """Divides the busy time of one GPU among pids.

    Samples may arrive after the window that they explain. It is divided as the one before, and the
    difference is settled with later windows.
    """

    def __init__(self, clock: ClockMap) -> None:
        """`clock`: of the GPU's ring, usually that of the samples."""
        self._of_ring, self._own = clock, ClockMap()
        self._samples: dict[int, dict[int, int]] = {}
        """Percent by pid, by monotonic end of the driver's window; in order."""
        self._pending: list[Window] = []
        """Windows whose samples may still arrive."""
        self._balance: dict[int, float] = {}
        """Nanoseconds by pid that samples prove, less those given."""
        self._last: Mapping[int, float] = {_NO_PID: 1.0}
        """Shares in the newest window with samples."""

    def divide(
        self, now_ns: int, windows: Sequence[Window], use: ProcessUse | None
    ) -> dict[int, int]:
        """Nanoseconds by pid, 0 for unexplained ones; they add up to the busy time of `windows`."""
        if use:
            self._record(now_ns, use)
        self._pending += windows
        self._settle(now_ns)
        expected = defaultdict[int, float](float, self._balance)
        unsettled = sums(self._pending)[1]
        for pid, share in self._last.items():
            expected[pid] += share * unsettled
        parts = apportion(sums(windows)[1], expected, _NO_PID)
        for pid, nanoseconds in parts.items():
            self._balance[pid] = self._balance.get(pid, 0.0) - nanoseconds
        return parts

    def forget(self, living: Collection[int]) -> None:
        """Write off what exited processes got too much."""
        self._balance = {
            pid: max(min(balance, _MAX_WAIT_NS), -_MAX_WAIT_NS)
            for pid, balance in self._balance.items()
            if pid in living or pid == _NO_PID or balance > 1
        }
        if len(self._balance) > _MAX_PIDS:
            self._balance = {}

    def _record(self, now_ns: int, use: ProcessUse) -> None:
        newest_us = max((sample.timestamp_us for sample in use.samples), default=0)
        clock = self._of_ring
        if use.samples and not clock.covers(now_ns, newest_us):
            clock = self._own
            clock.note(now_ns, newest_us)
        for sample in use.samples:
            at_ns = clock.monotonic_ns(sample.timestamp_us)
            percents = self._samples.setdefault(at_ns, {})
            percents[sample.pid] = percents.get(sample.pid, 0) + sample.percent
        since_ns = now_ns - 2 * _MAX_WAIT_NS
        self._samples = {at: row for at, row in sorted(self._samples.items()) if at > since_ns}

    def _settle(self, now_ns: int) -> None:
        """Credit pids with the pending windows that newer samples follow, or that are too old."""
        newest_ns = max(self._samples, default=0)
        while self._pending:
            window = self._pending[0]
            waits = window.end_ns > max(newest_ns, now_ns - _MAX_WAIT_NS)
            if waits and len(self._pending) <= _MAX_PIDS:
                return
            self._pending.pop(0)
            shares = self._shares(window)
            if _NO_PID not in shares:
                self._last = shares
            for pid, share in shares.items():
                self._balance[pid] = self._balance.get(pid, 0.0) + share * window.active_ns

    def _shares(self, window: Window) -> Mapping[int, float]:
        """Shares by pid of the samples in a window, else of the next: it is of a longer one."""
        start_ns = window.end_ns - window.duration_ns
        inside = [row for at, row in self._samples.items() if start_ns < at <= window.end_ns]
        later = (
            row
            for at, row in self._samples.items()
            if window.end_ns < at <= window.end_ns + MAX_PERIOD_NS
        )
        weights = defaultdict[int, float](float)
        for row in inside or [next(later, {})]:
            for pid, percent in row.items():
                weights[pid] += percent
        whole = sum(weights.values())
        return {pid: w / whole for pid, w in weights.items() if w} if whole else {_NO_PID: 1.0}


class TenantMeter:
    """The parts of one GPU's time by tenant."""

    def __init__(self, clock: ClockMap) -> None:
        """`clock`: of the GPU's ring."""
        self._meter = BusyMeter(clock)
        self._names: dict[int, tuple[str, int]] = {}
        """Tenant by pid, with the monotonic time until which its samples may arrive."""
        self._carries: dict[str, Carry] = {}

    def divide(
        self, tick: Tick, names: Mapping[int, str], bucket: Bucket | None, engine: float
    ) -> tuple[TenantTime, ...]:
        """The parts of the time of `tick`, which add up exactly.

        `names`: tenants by pid of holder. `bucket` and `engine`: see `split`.
        """
        now_ns, windows = tick.at_ns, tick.windows
        recent = {pid: entry for pid, entry in self._names.items() if entry[1] > now_ns}
        until_ns = now_ns + CADENCE.recent_ns
        self._names = recent | {pid: (name, until_ns) for pid, name in names.items()}
        tenants = sorted({*names.values()})
        busy: dict[str, dict[int, int]] = {name: {} for name in tenants}
        for pid, name in names.items():
            busy[name][pid] = 0
        unknown_ns = 0
        by_pid = self._meter.divide(now_ns, windows, tick.reading(ProcessUse))
        for pid, nanoseconds in by_pid.items():
            name, _ = self._names.get(pid, ("", 0))
            if name:
                busy.setdefault(name, {})[pid] = nanoseconds
            else:
                unknown_ns += nanoseconds
        self._meter.forget(self._names.keys())
        self._carries = {name: self._carries.get(name, {}) for name in tenants}
        duration_ns, active_ns = sums(windows)
        idle = _equal_parts(duration_ns - active_ns, len(tenants))
        stalls = {}
        for name, idle_ns in zip(tenants, idle, strict=True):
            own = Window(now_ns, duration_ns, sum(busy[name].values()))
            part = bucket.tenants.get(name) if bucket else None
            stalls[name] = split_part(idle_ns, own, part, self._carries[name], engine=engine)
        parts = [TenantTime(name, pids, stalls.get(name, {})) for name, pids in busy.items()]
        rest = [TenantTime(UNATTRIBUTED, {_NO_PID: unknown_ns})] if unknown_ns else []
        return (*parts, *rest)


def _equal_parts(total: int, count: int) -> list[int]:
    return [(total + at) // count for at in range(count)]
