"""Divides the time of a shared GPU among its tenants: pure arithmetic over the driver's samples.

Busy time goes to processes by their samples (nvmlDeviceGetProcessUtilization) in the same window,
idle time in equal parts to the tenants, each by what its own processes waited for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from gpu_bottleneck_exporter.accounting.bucket import Bucket
from gpu_bottleneck_exporter.accounting.stall import Carry, apportion, split_part
from gpu_bottleneck_exporter.accounting.tick import UNATTRIBUTED, TenantTime, Tick
from gpu_bottleneck_exporter.accounting.windows import MAX_PERIOD_NS, ClockMap, Window, sums
from gpu_bottleneck_exporter.driver.readings import ProcessUse
from gpu_bottleneck_exporter.schedule import CADENCE

_NO_PID = 0
"""Pid of busy time without a process."""
_MAX_LAG_NS = 2 * MAX_PERIOD_NS
"""Lag of samples after which a window has none."""
_MAX_PIDS = 256
"""Bound on processes with a balance: drivers list 100."""


class BusyMeter:
    """Divides the busy time of one GPU among pids.

    Drivers give an entry per process and window, or one for all windows since the last call, so
    entries are weights of the windows up to the newest. Those of later windows are divided as the
    last ones, and the difference is settled once their samples arrive.
    """

    def __init__(self, clock: ClockMap) -> None:
        """`clock`: of the GPU's ring, usually that of the samples."""
        self._of_ring, self._own = clock, ClockMap()
        self._weights: Counter[int] = Counter()
        """Percents by pid since windows were last settled."""
        self._pending: list[Window] = []
        self._balance: dict[int, float] = {}
        """Nanoseconds by pid that samples prove, less those given."""
        self._last: Mapping[int, float] = {_NO_PID: 1.0}
        """Shares in the last windows with samples."""

    def divide(
        self, now_ns: int, windows: Sequence[Window], use: ProcessUse | None
    ) -> dict[int, int]:
        """Nanoseconds by pid, 0 for unexplained ones; they add up to the busy time of `windows`."""
        self._pending += windows
        if use and use.samples:
            self._settle(now_ns, use)
        self._credit([w for w in self._pending if w.end_ns < now_ns - _MAX_LAG_NS], {_NO_PID: 1.0})
        expected = defaultdict[int, float](float, self._balance)
        pending_ns = sums(self._pending)[1]
        for pid, share in self._last.items():
            expected[pid] += share * pending_ns
        parts = apportion(sums(windows)[1], expected, _NO_PID)
        for pid, nanoseconds in parts.items():
            self._balance[pid] = self._balance.get(pid, 0.0) - nanoseconds
        return parts

    def forget(self, living: Collection[int]) -> None:
        """Write off the surplus of exited processes."""
        self._balance = {
            pid: max(min(balance, _MAX_LAG_NS), -_MAX_LAG_NS)
            for pid, balance in self._balance.items()
            if pid in living or pid == _NO_PID or balance > 1
        }
        if len(self._balance) > _MAX_PIDS:
            self._balance = {}

    def _settle(self, now_ns: int, use: ProcessUse) -> None:
        for sample in use.samples:
            self._weights[sample.pid] += sample.percent
        newest_us, clock = max(sample.timestamp_us for sample in use.samples), self._of_ring
        if not clock.covers(now_ns, newest_us):
            clock = self._own
            clock.note(now_ns, newest_us)
        at_ns = clock.monotonic_ns(newest_us)
        windows = [w for w in self._pending if w.end_ns <= at_ns + w.duration_ns // 2]
        if windows and (whole := self._weights.total()):
            self._last = {pid: weight / whole for pid, weight in self._weights.items() if weight}
            self._credit(windows, self._last)
            self._weights.clear()

    def _credit(self, windows: Sequence[Window], shares: Mapping[int, float]) -> None:
        """Credit pids with pending `windows`."""
        active_ns = sums(windows)[1]
        self._pending = [window for window in self._pending if window not in windows]
        for pid, share in shares.items() if active_ns else ():
            self._balance[pid] = self._balance.get(pid, 0.0) + share * active_ns


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
