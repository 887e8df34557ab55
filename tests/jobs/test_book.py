"""Attribution of a GPU's time, on a simulated clock: borders, neighbours, sharing, back-fill."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Iterable

import pytest

from gpu_bottleneck_exporter.accounting.stall import ASLEEP, HOST_CODE, UNALLOCATED
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.jobs import model
from gpu_bottleneck_exporter.jobs.book import BACKFILL_NS, GpuBook
from gpu_bottleneck_exporter.jobs.model import TIMELINE_STEPS, Timeline, Use

SECOND = 1_000_000_000
WINDOW = SECOND // 6
BEGAN = 1_760_000_000 * SECOND


def at(moment: float) -> int:
    return BEGAN + round(moment * SECOND)


class Gpu:
    """A GPU whose busy stretches are known, read once a tick as the exporter does."""

    def __init__(self, busy: Iterable[tuple[float, float]] = (), tick: float = 1.0) -> None:
        self.book = GpuBook(BEGAN)
        self.busy = [(at(start), at(end)) for start, end in busy]
        self.tick = tick
        self.read_ns = BEGAN

    def active(self, start_ns: int, end_ns: int) -> int:
        first = max(bisect(self.busy, (start_ns, 0)) - 1, 0)
        last = bisect(self.busy, (end_ns, 0))
        both = ((max(a, start_ns), min(b, end_ns)) for a, b in self.busy[first:last])
        return sum(max(end - start, 0) for start, end in both)

    def run(self, until: float, cause: str = HOST_CODE) -> None:
        """Let ticks come until then; what lies in no whole window yet is for later."""
        while self.read_ns + round(self.tick * SECOND) <= at(until):
            windows, tick_ends = [], self.read_ns + round(self.tick * SECOND)
            while self.read_ns + WINDOW <= tick_ends:
                self.read_ns += WINDOW
                active = self.active(self.read_ns - WINDOW, self.read_ns)
                windows.append(Window(self.read_ns, WINDOW, active))
            idle = sum(w.duration_ns - w.active_ns for w in windows)
            self.book.add_windows(windows, {cause: idle} if idle else {})

    def come(
        self, started: float, seen: float, use: model.JobGpu | None = None, pid: int = 1
    ) -> model.JobGpu:
        use = use or model.JobGpu(gpu="0", uuid="GPU-0", start_seconds=at(seen) / SECOND)
        self.book.begin(use, pid, at(started), at(seen))
        return use

    def go(self, use: model.JobGpu, moment: float) -> None:
        self.book.end(next(item for item in self.book.open() if item.gpu is use), at(moment))


@pytest.mark.parametrize("tick", [0.2, 1.0, 4.0])
def test_fifty_jobs_back_to_back_are_charged_their_own_time(tick: float) -> None:
    chance = random.Random(7)  # noqa: S311 - no secret
    jobs, moment, busy = [], 0.3, []
    for _ in range(50):
        lasts = chance.uniform(5, 90)
        bursts = []
        start = moment + 0.4  # no process opens a GPU sooner
        while start < moment + lasts - 0.5:
            bursts.append((start, start + chance.uniform(0.05, 0.4)))
            start = bursts[-1][1] + chance.uniform(0.02, 0.4)
        jobs.append((moment, moment + lasts, bursts))
        busy += bursts
        moment += lasts + chance.uniform(0, 0.05)
    gpu, result = Gpu(busy, tick), []
    for start, end, _ in jobs:
        outcome = start + chance.uniform(0.4, 2.0)
        gpu.run(outcome)
        result.append(gpu.come(start, outcome))
        gpu.run(end)
        gpu.go(result[-1], end)
    gpu.run(moment + 10)
    for use, (start, end, bursts) in zip(result, jobs, strict=True):
        worked = sum(b - a for a, b in bursts)
        assert use.observed_seconds == pytest.approx(end - start, abs=1e-6)
        assert use.busy_seconds == pytest.approx(worked, rel=0.01)
        assert use.timeline
        spent = use.timeline.spent_seconds["busy"]
        assert sum(spent) == pytest.approx(use.busy_seconds)
        assert len(spent) == TIMELINE_STEPS


def test_work_in_the_window_of_a_border_belongs_to_the_earlier_job() -> None:
    gpu = Gpu([(0.0, 1.05)])
    first = gpu.come(0.0, 0.0)
    gpu.run(1.0)
    gpu.go(first, 1.1)
    second = gpu.come(1.1, 1.2)
    gpu.run(4.0)
    assert first.busy_seconds == pytest.approx(1.05)
    assert first.observed_seconds == pytest.approx(1.1)
    assert second.busy_seconds == 0
    assert second.observed_seconds == pytest.approx(4.0 - 1.1)


def test_a_neighbour_within_a_tick_is_charged_too() -> None:
    gpu = Gpu(tick=4.0)
    short = gpu.come(1.0, 1.4)
    gpu.go(short, 2.5)
    other = gpu.come(2.6, 3.0)
    gpu.run(8.0)
    assert short.observed_seconds == pytest.approx(1.5)
    assert other.observed_seconds == pytest.approx(8.0 - 2.6)


def test_time_of_tenants_is_divided_and_adds_up() -> None:
    gpu = Gpu([(0.0, 6.0)])
    one, two = gpu.come(0.0, 0.0), gpu.come(0.0, 2.0, pid=2)
    gpu.run(6.0)
    assert two.start_seconds == at(2.0) / SECOND  # it may have come earlier, but unseen
    assert one.busy_seconds == pytest.approx(2 + 2)
    assert two.busy_seconds == pytest.approx(2)
    assert [use.observed_seconds for use in (one, two)] == pytest.approx([2 + 2, 2])
    whole = 6 * SECOND - 6 * SECOND % WINDOW
    assert one.busy_seconds + two.busy_seconds == pytest.approx(whole / SECOND, abs=1e-9)


def test_two_processes_of_one_job_do_not_share() -> None:
    gpu = Gpu()
    use = gpu.come(0.0, 0.0)
    gpu.come(0.5, 1.0, use, pid=2)
    gpu.run(4.0)
    gpu.go(use, 4.0)
    gpu.run(6.0)
    assert use.observed_seconds == pytest.approx(6.0)
    assert use.end_seconds is None


def test_unallocated_time_is_back_filled_to_the_starting_job() -> None:
    gpu = Gpu([(19.0, 21.0)])
    gpu.run(20.0, UNALLOCATED)
    use = gpu.come(12.5, 20.0)
    assert use.observed_seconds == pytest.approx(7.5)
    assert use.busy_seconds == pytest.approx(1.0)
    assert use.start_seconds == at(12.5) / SECOND
    gpu.run(21.0)
    assert use.observed_seconds == pytest.approx(8.5)


def test_an_old_process_claims_a_minute_at_most() -> None:
    gpu = Gpu()
    gpu.run(200.0, UNALLOCATED)
    use = gpu.come(-500.0, 200.0)
    assert use.start_seconds == (at(200.0) - BACKFILL_NS) / SECOND
    assert use.observed_seconds == pytest.approx(BACKFILL_NS / SECOND, abs=1.1)


def test_a_pause_between_two_processes_of_a_job_is_its_own() -> None:
    gpu = Gpu()
    use = gpu.come(0.0, 0.0)
    gpu.go(use, 2.0)
    gpu.run(10.0, UNALLOCATED)
    gpu.come(9.0, 10.0, use, pid=2)
    gpu.run(12.0, ASLEEP)
    assert use.observed_seconds == pytest.approx(12.0)
    assert use.pause_seconds is None


def test_longer_pauses_are_added_up() -> None:
    gpu = Gpu()
    use, minute = gpu.come(0.0, 0.0), BACKFILL_NS / SECOND
    for number in range(1, 3):
        gpu.run(300.0 * number - 200.0)
        gpu.go(use, 300.0 * number - 200.0)
        gpu.run(300.0 * number, UNALLOCATED)
        gpu.come(300.0 * number, 300.0 * number, use, pid=number + 1)
    gpu.run(700.0)
    assert use.pause_seconds == pytest.approx(2 * (200.0 - minute))
    assert use.observed_seconds == pytest.approx(700.0 - 2 * (200.0 - minute), abs=2.1)


@pytest.mark.parametrize("step", [-3600, 3600])
def test_a_clock_that_is_set_moves_times_and_changes_no_duration(step: int) -> None:
    book, use = GpuBook(at(0)), model.JobGpu(gpu="0", uuid="GPU-0", start_seconds=at(0) / SECOND)
    book.add_energy(at(0), 100.0)
    tenancy = book.begin(use, 1, at(0), at(0))
    book.add_windows([Window(at(160), 160 * SECOND, 0)], {ASLEEP: 160 * SECOND})
    book.end(tenancy, at(160))
    book.shift(step * SECOND)
    use.shift(step)
    book.add_energy(at(160 + step), 260.0)
    book.begin(use, 2, at(300 + step), at(300 + step))
    book.add_energy(at(300 + step), 400.0)
    book.add_windows([Window(at(310 + step), 150 * SECOND, 0)], {ASLEEP: 150 * SECOND})
    minute = BACKFILL_NS / SECOND
    assert use.start_seconds == at(step) / SECOND
    assert use.pause_seconds == pytest.approx(140 - minute)
    assert use.observed_seconds == pytest.approx(310 - 140 + minute)
    assert use.energy_joules == pytest.approx(160 + minute)
    assert use.timeline
    assert use.timeline.start_seconds == use.start_seconds
    assert sum(use.timeline.spent_seconds[ASLEEP]) == pytest.approx(use.observed_seconds)


def test_earlier_processes_are_observed_from_the_start_of_the_exporter() -> None:
    gpu = Gpu()
    one, two = gpu.come(-100.0, 0.0), gpu.come(-50.0, 0.0, pid=2)
    gpu.run(1.0)
    assert (one.start_seconds, two.start_seconds) == (at(-100) / SECOND, at(-50) / SECOND)
    assert [use.observed_seconds for use in (one, two)] == pytest.approx([0.5, 0.5])


def test_lost_windows_are_not_observed() -> None:
    gpu = Gpu()
    use = gpu.come(0.0, 0.0)
    gpu.run(2.0)
    gpu.read_ns += 3 * SECOND
    gpu.run(8.0)
    assert use.observed_seconds + 3.0 == pytest.approx((gpu.read_ns - BEGAN) / SECOND)


def test_energy_is_charged_by_time_and_memory_to_lone_holders() -> None:
    gpu = Gpu()
    gpu.book.add_energy(at(0.0), 100.0)
    one = gpu.come(0.0, 0.0)
    gpu.book.record_memory(at(0.5), 300, 1000)
    gpu.go(one, 2.0)
    two = gpu.come(2.0, 2.1)
    gpu.book.add_energy(at(4.0), 500.0)
    gpu.book.record_memory(at(4.0), 200, 1000)
    assert [one.energy_joules, two.energy_joules] == pytest.approx([200.0, 200.0])
    gpu.come(4.0, 4.0, pid=3)
    gpu.book.record_memory(at(5.0), 900, 1000)
    assert (one.memory_peak_bytes, two.memory_peak_bytes) == (300, 200)
    assert two.memory_total_bytes == 1000
    gpu.book.add_energy(at(5.0), 3.0)  # the driver was reloaded
    assert two.energy_joules == pytest.approx(200.0)


def test_windows_of_two_seconds_as_under_mig() -> None:
    gpu = Gpu()
    use = gpu.come(0.0, 0.0)
    gpu.go(use, 1.5)
    gpu.book.add_windows([Window(at(2.0), 2 * SECOND, SECOND)], {ASLEEP: SECOND})
    assert use.busy_seconds == pytest.approx(1.0)
    assert use.observed_seconds == pytest.approx(1.5)


def test_a_timeline_has_few_steps_and_loses_nothing() -> None:
    line, chance = Timeline(7.0), random.Random(1)  # noqa: S311 - no secret
    now, whole = 7.0, Use()
    for _ in range(3000):
        lasts, active = chance.uniform(0, 4), chance.random()
        use = Use(lasts, lasts * active, {ASLEEP: lasts - lasts * active})
        line.add(now, now + lasts, use)
        whole.add(use)
        now += lasts
    busy, idle = line.spent_seconds["busy"], line.spent_seconds[ASLEEP]
    assert sum(busy) == pytest.approx(whole.busy_seconds)
    assert sum(idle) == pytest.approx(whole.stall_seconds[ASLEEP])
    assert len(busy) == len(idle) == TIMELINE_STEPS
    assert all(sum(step) <= line.step_seconds + 1e-6 for step in zip(busy, idle, strict=True))


def test_a_gpu_that_many_come_to_stays_small() -> None:
    gpu = Gpu(tick=0.2)
    for pid in range(3000):
        use = gpu.come(pid * 0.2, pid * 0.2 + 0.1, pid=pid)
        gpu.go(use, pid * 0.2 + 0.15)
        gpu.run(pid * 0.2)
    assert len(gpu.book.tenancies) <= 310
