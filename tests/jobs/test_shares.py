"""Division of a shared GPU's time between its jobs, by its tenants' own time."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.accounting.stall import ASLEEP, HOST_CODE, STORAGE
from gpu_bottleneck_exporter.accounting.tick import UNATTRIBUTED, TenantTime
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.jobs.book import GpuBook
from gpu_bottleneck_exporter.jobs.model import JobGpu, Use, total

SECOND = 1_000_000_000
BEGAN = 1_760_000_000 * SECOND


def at(moment: float) -> int:
    return BEGAN + round(moment * SECOND)


def ns(**seconds: float) -> dict[str, int]:
    return {name: round(value * SECOND) for name, value in seconds.items()}


def tenant(name: str, busy: dict[int, float], **stalls: float) -> TenantTime:
    return TenantTime(name, {pid: round(s * SECOND) for pid, s in busy.items()}, ns(**stalls))


def half(end: float, busy: float) -> Window:
    """Half a second with busy time."""
    return Window(at(end), SECOND // 2, round(busy * SECOND))


class Shared:
    """A GPU of several jobs, observed second by second."""

    def __init__(self, *pids: int) -> None:
        self.book, self.until = GpuBook(BEGAN), 0.0
        self.book.add_energy(BEGAN, 0.0)
        for pid in pids:
            self.come(pid)

    def come(self, pid: int, moment: float = 0.0, use: JobGpu | None = None) -> JobGpu:
        start = at(moment) / SECOND
        use = use or JobGpu(gpu="0", uuid="u", start_seconds=start, estimated_seconds=0.0)
        self.book.begin(use, pid, at(moment), at(moment))
        return use

    def go(self, pid: int, moment: float) -> None:
        self.book.end(next(t for t in self.book.open() if t.pid == pid), at(moment))

    def spend(self, busy: float, *tenants: TenantTime) -> None:
        """Add a second of a single window."""
        self.until += 1.0
        window = Window(at(self.until), SECOND, round(busy * SECOND))
        idle = {ASLEEP: SECOND - window.active_ns}
        self.book.add_windows([window], idle if busy < 1 else {}, tenants)

    def use(self, pid: int) -> JobGpu:
        return next(t.gpu for t in self.book.tenancies if t.pid == pid)


def figures(use: Use) -> tuple[float | None, ...]:
    values = use.observed_seconds, use.busy_seconds, use.estimated_seconds
    return tuple(value and round(value, 9) for value in values)


def test_each_job_gets_its_own_time_and_waits() -> None:
    gpu = Shared(1, 2)
    rest = TenantTime(UNATTRIBUTED, {0: SECOND // 10})
    jobs = tenant("slurm-1", {1: 0.6}, host_code=0.1), tenant("slurm-2", {2: 0.1}, storage=0.1)
    gpu.spend(0.8, *jobs, rest)
    assert figures(gpu.use(1)) == (0.75, 0.65, 0.05)
    assert figures(gpu.use(2)) == (0.25, 0.15, 0.05)
    assert gpu.use(1).stall_seconds == pytest.approx({HOST_CODE: 0.1})
    assert gpu.use(2).stall_seconds == pytest.approx({STORAGE: 0.1})


def test_without_tenants_all_time_is_an_equal_share() -> None:
    gpu = Shared(1, 2)
    gpu.spend(0.4)
    assert figures(gpu.use(1)) == figures(gpu.use(2)) == (0.5, 0.2, 0.5)
    assert gpu.use(1).stall_seconds == pytest.approx({ASLEEP: 0.3})


def test_the_time_of_a_sole_job_is_no_estimate() -> None:
    gpu = Shared(1)
    gpu.come(2, use=gpu.use(1))
    gpu.spend(0.4)
    assert figures(gpu.use(1)) == (1.0, 0.4, 0.0)


def test_two_jobs_of_a_user_divide_only_its_idle_time() -> None:
    gpu = Shared(1, 2, 3)
    gpu.spend(
        0.6,
        tenant("user-ada", {1: 0.4, 2: 0.0}, host_code=0.2),
        tenant("user-bob", {3: 0.2}, storage=0.2),
    )
    assert figures(gpu.use(1)) == (0.5, 0.4, 0.1)
    assert figures(gpu.use(2)) == (0.1, 0.0, 0.1)
    assert figures(gpu.use(3)) == (0.4, 0.2, 0.0)


def test_processes_of_a_job_are_added_up() -> None:
    gpu = Shared(1, 3)
    gpu.come(2, use=gpu.use(1))
    gpu.spend(1.0, tenant("slurm-1", {1: 0.5, 2: 0.3}), tenant("slurm-3", {3: 0.2}))
    assert figures(gpu.use(1)) == (0.8, 0.8, 0.0)
    assert figures(gpu.use(3)) == (0.2, 0.2, 0.0)


def test_the_time_of_unrecorded_processes_is_divided_equally() -> None:
    gpu = Shared(1, 2)
    gpu.spend(1.0, tenant("a", {1: 0.2, 7: 0.2}), tenant("b", {2: 0.2}), tenant("c", {8: 0.4}))
    assert figures(gpu.use(1)) == figures(gpu.use(2)) == (0.5, 0.5, 0.3)


def test_jobs_that_no_tenant_has_get_equal_parts_of_the_idle_time() -> None:
    gpu = Shared(1, 2, 3, 4)
    gpu.spend(0.2, tenant("a", {1: 0.2}, host_code=0.4), tenant("b", {2: 0.0}, storage=0.4))
    for pid in (3, 4):
        assert figures(gpu.use(pid)) == (0.2, 0.0, 0.2)
        assert gpu.use(pid).stall_seconds == pytest.approx({ASLEEP: 0.2})
    assert figures(gpu.use(1)) == (0.4, 0.2, 0.0)


def test_a_job_that_leaves_within_a_tick_retains_its_busy_time() -> None:
    gpu = Shared(1, 2)
    gpu.go(1, 0.5)
    windows = [half(0.5, 0.2), half(1.0, 0.3)]
    parts = tenant("a", {1: 0.15}, host_code=0.25), tenant("b", {2: 0.35}, storage=0.25)
    gpu.book.add_windows(windows, ns(asleep=0.5), parts)
    assert figures(gpu.use(1)) == (0.3, 0.15, 0.0)
    assert figures(gpu.use(2)) == (0.7, 0.35, 0.0)
    assert gpu.use(1).end_seconds == at(0.5) / SECOND


def test_unexplained_time_is_divided_over_all_windows() -> None:
    gpu = Shared(1, 2)
    windows = [half(0.5, 0.2), half(1.5, 0.2)]
    parts = tenant("a", {1: 0.2}, asleep=0.3), tenant("b", {2: 0.0}, asleep=0.3)
    rest = TenantTime(UNATTRIBUTED, {0: SECOND // 5})
    gpu.book.add_windows(windows, ns(asleep=0.6), [*parts, rest])
    assert figures(gpu.use(1)) == (0.6, 0.3, 0.1)
    assert figures(gpu.use(2)) == (0.4, 0.1, 0.1)


def test_a_job_that_comes_within_a_tick_pays_for_none_before() -> None:
    gpu = Shared(1)
    gpu.come(2, 0.5)
    windows = [half(0.5, 0.5), half(1.0, 0.25)]
    parts = tenant("a", {1: 0.5}, host_code=0.125), tenant("b", {2: 0.25}, storage=0.125)
    gpu.book.add_windows(windows, ns(asleep=0.25), parts)
    assert figures(gpu.use(1)) == (0.625, 0.5, 0.0)
    assert figures(gpu.use(2)) == (0.375, 0.25, 0.0)


def test_energy_goes_by_observed_time() -> None:
    gpu = Shared(1, 2)
    gpu.spend(0.8, tenant("a", {1: 0.7}, host_code=0.1), tenant("b", {2: 0.1}, storage=0.1))
    gpu.book.add_energy(at(1), 100.0)
    gpu.book.add_energy(at(2), 120.0)  # its windows are late
    assert [gpu.use(pid).energy_joules for pid in (1, 2)] == pytest.approx([90.0, 30.0])
    assert gpu.book._spent == {}


def test_a_sum_with_an_older_record_has_no_estimate() -> None:
    older = JobGpu(gpu="0", uuid="u", start_seconds=0.0, observed_seconds=1.0)
    assert older.estimated_seconds is None
    assert total([Use(1.0, estimated_seconds=0.5), Use(2.0)]).estimated_seconds == 0.5
    assert total([Use(1.0, estimated_seconds=0.5), older]).estimated_seconds is None


def split(chance: random.Random, amount: int, count: int) -> list[int]:
    """`amount` in random integer parts."""
    edges = sorted(chance.randint(0, amount) for _ in range(count - 1))
    return [high - low for low, high in zip([0, *edges], [*edges, amount], strict=True)]


def tick(chance: random.Random, pids: Sequence[int], active: int, idle: int) -> list[TenantTime]:
    """The tenants of a tick: two jobs of one user, others, and unattributed time."""
    names = {1: "user-ada", 2: "user-ada", 3: "user-ada"}
    by_name: dict[str, list[int]] = {}
    for pid in pids:
        by_name.setdefault(names.get(pid, f"slurm-{pid // 2}"), []).append(pid)
    if len(by_name) < 2 or chance.random() < 0.2:
        return []
    *busy, rest = split(chance, active, len(pids) + 1)
    spent = dict(zip(pids, busy, strict=True))
    waits = split(chance, idle, len(by_name))
    tenants = [
        TenantTime(name, {pid: spent[pid] for pid in of}, {chance.choice([ASLEEP, STORAGE]): wait})
        for (name, of), wait in zip(by_name.items(), waits, strict=True)
    ]
    return [*tenants, TenantTime(UNATTRIBUTED, {0: rest})]


@given(st.randoms(use_true_random=False))
def test_jobs_and_unallocated_time_add_up_in_every_tick(chance: random.Random) -> None:
    # Shorter than the time after which unallocated time is dropped.
    ticks, lag, now = 12, chance.choice([0.0, 1.5]), 0.0
    book, jobs, clock = GpuBook(BEGAN), dict[int, JobGpu](), 0
    windows_end, observed, busy = BEGAN - round(lag * SECOND), 0, 0
    for _ in range(ticks):
        now += 1.0
        for pid in chance.sample(range(1, 8), chance.randint(0, 3)):
            moment_ns = at(now - chance.choice([0.0, 0.3, 0.9])) + clock
            tenancy = next((t for t in book.open() if t.pid == pid), None)
            if tenancy:
                book.end(tenancy, moment_ns)
                continue
            use = jobs.get(pid // 2) or JobGpu(
                gpu="0", uuid="u", start_seconds=moment_ns / 1e9, estimated_seconds=0.0
            )
            jobs[pid // 2] = use
            book.begin(use, pid, moment_ns - chance.randint(0, 5) * SECOND, moment_ns)
        if chance.random() < 0.2:
            step = chance.choice([-3600, 3600])
            clock += step * SECOND
            windows_end += step * SECOND
            book.shift(step * SECOND)
            for use in jobs.values():
                use.shift(step)
        windows = []
        for length in split(chance, SECOND, chance.randint(1, 6)):
            windows_end += length
            if length and chance.random() < 0.9:
                windows.append(Window(windows_end, length, chance.randint(0, length)))
        if not windows:
            continue
        active = sum(window.active_ns for window in windows)
        idle = sum(window.duration_ns for window in windows) - active
        pids = {t.pid for t in book.open()} | set(chance.sample([1, 5, 90, 91], 2))
        pids -= set(chance.sample(range(1, 8), 2))
        tenants = tick(chance, sorted(pids), active, idle)
        book.add_windows(windows, {ASLEEP: idle} if idle else {}, tenants)
        observed, busy = observed + active + idle, busy + active
        free = [span.use for span in book._free]
        whole = total([*jobs.values(), *free])
        assert whole.observed_seconds == pytest.approx(observed / 1e9, abs=1e-9)
        assert whole.busy_seconds == pytest.approx(busy / 1e9, abs=1e-9)
        for use in jobs.values():
            stalled = sum(use.stall_seconds.values())
            assert use.observed_seconds == pytest.approx(use.busy_seconds + stalled, abs=1e-9)
            assert min(use.busy_seconds, *use.stall_seconds.values(), 0.0) == 0.0
            assert use.estimated_seconds is not None
            assert -1e-9 <= use.estimated_seconds <= use.observed_seconds + 1e-9
            assert use.timeline
            spent = use.timeline.spent_seconds.values()
            assert sum(map(sum, spent)) == pytest.approx(use.observed_seconds, abs=1e-6)
