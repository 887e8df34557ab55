"""Whose the time of a GPU is, on a simulated clock: borders, neighbours, sharing, claims."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Iterable

import pytest

from gpu_bottleneck_exporter.accounting.stall import ASLEEP, HOST_CODE, UNALLOCATED
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.jobs.book import CLAIMED_NS, GpuBook
from gpu_bottleneck_exporter.jobs.records import STEPS, Span, Timeline, Use

SECOND = 1_000_000_000
WINDOW = SECOND // 6
BEGAN = 1000 * SECOND


def seconds(ns: int) -> float:
    return ns / SECOND


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
            self.book.spend(windows, {cause: idle} if idle else {})

    def come(self, started: float, seen: float, use: Use | None = None, pid: int = 1) -> Use:
        use = use or Use({"gpu": "0"}, at(seen), at(seen))
        self.book.begin(use, (pid, pid), at(started), at(seen))
        return use

    def go(self, use: Use, moment: float) -> None:
        for stay in self.book.stays:
            if stay.use is use and stay.end_ns is None:
                stay.end(at(moment))
                return


def observed(use: Use) -> float:
    return seconds(use.busy_ns + sum(use.stall_ns.values()))


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
    gpu, found = Gpu(busy, tick), []
    for start, end, _ in jobs:
        seen = start + chance.uniform(0.4, 2.0)
        gpu.run(seen)
        found.append(gpu.come(start, seen))
        gpu.run(end)
        gpu.go(found[-1], end)
    gpu.run(moment + 10)
    for use, (start, end, bursts) in zip(found, jobs, strict=True):
        worked = sum(b - a for a, b in bursts)
        assert observed(use) == pytest.approx(end - start, abs=1e-6)
        assert seconds(use.busy_ns) == pytest.approx(worked, rel=0.01)
        assert use.unobserved_ns == use.shared_ns == 0
        assert sum(use.timeline.busy) == use.busy_ns
        assert len(use.timeline.busy) <= STEPS


def test_work_in_the_window_of_a_border_is_of_who_was_there_first() -> None:
    gpu = Gpu([(0.0, 1.05)])
    first = gpu.come(0.0, 0.0)
    gpu.run(1.0)
    gpu.go(first, 1.1)
    second = gpu.come(1.1, 1.2)
    gpu.run(4.0)
    assert seconds(first.busy_ns) == pytest.approx(1.05)
    assert observed(first) == pytest.approx(1.1)
    assert second.busy_ns == 0
    assert observed(second) == pytest.approx(4.0 - 1.1)


def test_a_neighbour_within_a_tick_is_charged_too() -> None:
    gpu = Gpu(tick=4.0)
    short = gpu.come(1.0, 1.4)
    gpu.go(short, 2.5)
    other = gpu.come(2.6, 3.0)
    gpu.run(8.0)
    assert observed(short) == pytest.approx(1.5)
    assert observed(other) == pytest.approx(8.0 - 2.6)
    assert short.unobserved_ns == other.unobserved_ns == 0


def test_time_of_those_who_share_is_divided_and_adds_up() -> None:
    gpu = Gpu([(0.0, 6.0)])
    one, two = gpu.come(0.0, 0.0), gpu.come(0.0, 2.0, pid=2)
    gpu.run(6.0)
    assert two.start_ns == at(2.0)  # it may have come earlier, but nobody saw it
    assert seconds(one.busy_ns) == pytest.approx(2 + 2)
    assert seconds(two.busy_ns) == pytest.approx(2)
    assert [seconds(use.shared_ns) for use in (one, two)] == pytest.approx([2, 2])
    assert one.busy_ns + two.busy_ns == 6 * SECOND - 6 * SECOND % WINDOW


def test_two_processes_of_one_job_do_not_share() -> None:
    gpu = Gpu()
    use = gpu.come(0.0, 0.0)
    gpu.come(0.5, 1.0, use, pid=2)
    gpu.run(4.0)
    gpu.go(use, 4.0)
    gpu.run(6.0)
    assert observed(use) == pytest.approx(6.0)
    assert use.shared_ns == 0
    assert use.held == 1


def test_time_of_nobody_is_claimed_by_who_was_on_the_way() -> None:
    gpu = Gpu([(19.0, 21.0)])
    gpu.run(20.0, UNALLOCATED)
    use = gpu.come(12.5, 20.0)
    assert observed(use) == pytest.approx(7.5)
    assert seconds(use.busy_ns) == pytest.approx(1.0)
    assert use.start_ns == at(12.5)
    gpu.run(21.0)
    assert observed(use) == pytest.approx(8.5)


def test_an_old_process_claims_a_minute_at_most() -> None:
    gpu = Gpu()
    gpu.run(200.0, UNALLOCATED)
    use = gpu.come(-500.0, 200.0)
    assert use.start_ns == at(200.0) - CLAIMED_NS
    assert observed(use) == pytest.approx(seconds(CLAIMED_NS), abs=1.1)
    assert use.unobserved_ns == 0


def test_a_pause_between_two_processes_of_a_job_is_its_own() -> None:
    gpu = Gpu()
    use = gpu.come(0.0, 0.0)
    gpu.go(use, 2.0)
    gpu.run(10.0, UNALLOCATED)
    gpu.come(9.0, 10.0, use, pid=2)
    gpu.run(12.0, ASLEEP)
    assert observed(use) == pytest.approx(12.0)


def test_what_was_there_before_the_exporter_is_unobserved_until_then() -> None:
    gpu = Gpu()
    one, two = gpu.come(-100.0, 0.0), gpu.come(-50.0, 0.0, pid=2)
    gpu.run(1.0)
    assert (one.start_ns, two.start_ns) == (at(-100), at(-50))
    assert (seconds(one.unobserved_ns), seconds(two.unobserved_ns)) == (100, 50)
    assert observed(one) == pytest.approx(0.5)


def test_lost_windows_are_unobserved() -> None:
    gpu = Gpu()
    use = gpu.come(0.0, 0.0)
    gpu.run(2.0)
    gpu.read_ns += 3 * SECOND
    gpu.run(8.0)
    assert seconds(use.unobserved_ns) == pytest.approx(3.0)
    assert observed(use) + 3.0 == pytest.approx(seconds(gpu.read_ns) - seconds(BEGAN))


def test_energy_is_charged_by_time_and_memory_to_who_is_alone() -> None:
    gpu = Gpu()
    gpu.book.power(at(0.0), 100.0)
    one = gpu.come(0.0, 0.0)
    gpu.book.memory(at(0.5), 300, 1000)
    gpu.go(one, 2.0)
    two = gpu.come(2.0, 2.1)
    gpu.book.power(at(4.0), 500.0)
    gpu.book.memory(at(4.0), 200, 1000)
    assert [one.joules, two.joules] == pytest.approx([200.0, 200.0])
    gpu.come(4.0, 4.0, pid=3)
    gpu.book.memory(at(5.0), 900, 1000)
    assert (one.peak_bytes, two.peak_bytes, two.total_bytes) == (300, 200, 1000)
    gpu.book.power(at(5.0), 3.0)  # the driver was reloaded
    assert two.joules == pytest.approx(200.0)


def test_windows_of_two_seconds_as_under_mig() -> None:
    book = GpuBook(BEGAN)
    use = Use({}, at(0.0), at(0.0))
    book.begin(use, (1, 1), at(0.0), at(0.0))
    book.stays[0].end(at(1.5))
    book.spend([Window(at(2.0), 2 * SECOND, SECOND)], {ASLEEP: SECOND})
    assert seconds(use.busy_ns) == pytest.approx(1.0)
    assert observed(use) == pytest.approx(1.5)


def test_a_timeline_has_few_steps_and_loses_nothing() -> None:
    line, chance = Timeline(BEGAN), random.Random(1)  # noqa: S311 - no secret
    now, busy, idle = BEGAN, 0, 0
    for _ in range(3000):
        lasts, active = chance.randrange(1, 4 * SECOND), chance.random()
        span = Span(now, now + lasts, int(lasts * active), {ASLEEP: lasts - int(lasts * active)})
        line.add(span)
        now, busy, idle = now + lasts, busy + span.active_ns, idle + span.stalls[ASLEEP]
    assert sum(line.busy) == busy
    assert sum(by[ASLEEP] for by in line.stall) == idle
    assert len(line.busy) <= STEPS
    assert all(
        b + i[ASLEEP] <= line.step_ns + 1000 for b, i in zip(line.busy, line.stall, strict=True)
    )


def test_a_gpu_that_many_come_to_stays_small() -> None:
    gpu = Gpu(tick=0.2)
    for pid in range(3000):
        use = gpu.come(pid * 0.2, pid * 0.2 + 0.1, pid=pid)
        gpu.go(use, pid * 0.2 + 0.15)
        gpu.run(pid * 0.2)
    assert len(gpu.book.stays) <= 310
    assert len(gpu.book._free) <= 512
