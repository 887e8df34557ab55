"""The feeders of GPUs, with real processes that come and go."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.bucket import Counters, less, plus
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.job import Networks
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.feeders.snapshot import Feeding, FeedingReader
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.process import TICK_NS
from support.children import Parent
from support.waiting import until

PROC, SYSFS = Path("/proc"), Path("/sys")
BURN_SECONDS = 0.3
Start = Callable[[], Parent]


class Watched:
    """A feed as the watching thread drives it, and the snapshots that come of it."""

    def __init__(self, *mains: Parent) -> None:
        self._groups = Cgroups(SYSFS)
        self.feed = FeederGroup(PROC, self._groups)
        self._reader = FeedingReader(Networks(PROC))
        self._mains = {main.pid for main in mains}
        self.discover()

    def discover(self, *workers: int) -> None:
        self.feed.adopt(self._mains, set(workers), frozenset(self._mains))

    def end_of_mains(self) -> None:
        self._mains = set()
        self.discover()

    def tick(self) -> tuple[bool, Feeding]:
        """Whether the tree is up to date, and what a scrape would show."""
        self._groups.look()
        current = self.feed.sample(time.monotonic_ns())
        current &= not self.feed.family.has_unknown_children()
        current &= self.feed.advance(time.monotonic_ns())
        return current, self._reader.read(self.feed, time.monotonic_ns(), queue_known=True)

    def tick_until_workers_used(self, seconds: float) -> Feeding:
        """What a scrape shows once they have had so much CPU time; nothing falls until then."""
        seen = [self.tick()[1]]

        def used() -> bool:
            current, now = self.tick()
            assert current
            assert_grown(seen[-1], now)
            seen.append(now)
            return now.counters.get("worker", Counters()).cpu_ns >= seconds * 1e9

        until(used, "some workers' CPU time")
        return seen[-1]


def values(feeding: Feeding) -> dict[str, int]:
    """All that must never fall."""
    found = {
        "starts": feeding.worker_starts or 0,
        "throttled": feeding.throttled_ns or 0,
        "refaults": feeding.refault_bytes or 0,
    }
    for role, counters in feeding.counters.items():
        found[f"cpu {role}"] = counters.cpu_ns
        found[f"queue {role}"] = counters.queue_ns
        found[f"faults {role}"] = counters.major_faults
        found[f"read {role}"] = counters.read_bytes or 0
        found[f"written {role}"] = counters.written_bytes or 0
    for (role, what), waited in feeding.wait_ns.items():
        found[f"wait {role} {what}"] = waited
    return found


def assert_grown(before: Feeding, now: Feeding) -> None:
    old, new = values(before), values(now)
    assert old.keys() <= new.keys()
    assert {name for name in old if new[name] < old[name]} == set()


@pytest.mark.parametrize(("after_ns", "known"), [(300_000_000, True), (2_000_000_000, False)])
def test_a_look_holds_until_the_next_one_but_not_for_long(
    start: Start, after_ns: int, *, known: bool
) -> None:
    watched = Watched(start())
    now_ns = time.monotonic_ns()
    watched.feed.sample(now_ns)
    window = now_ns + after_ns - 200_000_000, now_ns + after_ns
    assert (watched.feed.history.explaining(*window) is not None) is known


def test_a_main_without_workers_has_no_worker_series(start: Start) -> None:
    watched = Watched(start())
    current, feeding = watched.tick()
    assert current
    assert feeding.processes == {"main": 1}
    assert feeding.counters.keys() == {"main"}


def test_what_a_main_uses_is_counted(start: Start) -> None:
    main = start()
    main.burn(0)
    watched = Watched(main)
    _, before = watched.tick()
    main.burn(BURN_SECONDS)
    _, now = watched.tick()
    used = now.counters["main"].cpu_ns - before.counters["main"].cpu_ns
    assert used >= BURN_SECONDS * 1e9 - 2 * TICK_NS
    assert_grown(before, now)


def test_the_busiest_are_those_that_run(start: Start) -> None:
    main = start()
    watched = Watched(main)
    workers = [main.fork(60) for _ in range(3)]
    watched.discover(*workers)
    for worker in workers[1:]:
        main.let_burn(worker)
    until(lambda: {*watched.tick()[1].busiest[1]} == {*workers[1:]}, "both that run")
    assert watched.tick()[1].busiest[0] == (main.pid,)
    for worker in workers:
        main.end_child(worker)


def test_workers_come_and_go_and_nothing_falls(start: Start) -> None:
    main = start()
    main.burn(0)
    watched = Watched(main)
    _, before = watched.tick()
    for number in (1, 2, 3):
        worker = main.fork(BURN_SECONDS)
        current, now = watched.tick()
        assert not current, "a new child calls for a discovery"
        watched.discover(worker)
        main.let_burn(worker)
        now = watched.tick_until_workers_used(number * 0.8 * BURN_SECONDS)
        assert now.processes == {"main": 1, "worker": 1}
        assert_grown(before, now)
        assert now.worker_starts == number
        main.end_child(worker)
        current, gone = watched.tick()
        assert not current, "a child that ended calls for a discovery"
        assert_grown(now, gone)
        watched.discover()
        current, before = watched.tick()
        assert current
        assert before.processes == {"main": 1, "worker": 0}
        assert_grown(gone, before)
        assert before.counters["worker"].read_bytes is not None


def test_many_workers_are_counted_in_turn_and_none_is_left_out(start: Start) -> None:
    main = start()
    workers = [main.fork(BURN_SECONDS) for _ in range(7)]
    watched = Watched(main)
    watched.discover(*workers)
    for worker in workers:
        main.let_burn(worker)
    watched.tick_until_workers_used(0.8 * len(workers) * BURN_SECONDS)
    for worker in workers:
        main.end_child(worker)


def test_workers_that_were_there_before_are_no_starts(start: Start) -> None:
    main = start()
    worker = main.fork()
    watched = Watched()
    watched.feed.adopt({main.pid}, {worker}, frozenset({main.pid}))
    _, feeding = watched.tick()
    assert feeding.processes == {"main": 1, "worker": 1}
    assert feeding.worker_starts == 0
    main.end_child(worker)


def test_a_process_on_two_gpus_feeds_both(start: Start) -> None:
    main = start()
    main.burn(0)
    one, two = Watched(main), Watched(main)
    one.tick()
    two.tick()
    main.burn(BURN_SECONDS)
    for watched in (one, two):
        current, feeding = watched.tick()
        assert current
        assert feeding.counters["main"].cpu_ns >= BURN_SECONDS * 1e9 - 2 * TICK_NS
        assert feeding.processes["main"] == 1
    one.feed.close()
    current, _ = two.tick()
    assert current, "the other's descriptors are its own"


def test_a_main_that_started_another_has_no_worker_in_it(start: Start) -> None:
    main = start()
    rank = main.fork()
    watched = Watched(main)
    watched.feed.adopt({main.pid}, set(), frozenset({main.pid, rank}))
    current, feeding = watched.tick()
    assert current
    assert feeding.processes == {"main": 1}
    main.end_child(rank)


def test_when_all_mains_have_ended_sums_stay_and_gauges_go(start: Start) -> None:
    main = start()
    main.burn(0)
    watched = Watched(main)
    main.burn(BURN_SECONDS)
    _, before = watched.tick()
    main.end()
    current, ending = watched.tick()
    assert not current
    assert_grown(before, ending)
    watched.end_of_mains()
    _, after = watched.tick()
    assert_grown(ending, after)
    assert after.processes == {"main": 0}
    assert after.job.age_seconds is None
    assert after.job.limits.cpus_allowed is None
    assert after.job.received_bytes == before.job.received_bytes
    assert after.counters["main"].read_bytes is not None


def test_what_surrounds_a_job(start: Start) -> None:
    main = start()
    main.burn(0)
    job = Watched(main).tick()[1].job
    assert job.age_seconds is not None
    assert 0 <= job.age_seconds < 60
    assert job.limits.cpus_allowed == len(os.sched_getaffinity(0))
    assert job.limits.shared_memory is not None
    size = os.statvfs("/dev/shm")  # noqa: S108 - looked at only
    assert job.limits.shared_memory.size_bytes == size.f_blocks * size.f_frsize
    assert job.pressure_ns.keys() <= {
        (resource, kind) for resource in ("cpu", "io", "memory") for kind in ("some", "full")
    }


@pytest.mark.parametrize("times", [1, 3])
def test_two_mains_in_one_place_count_it_once(start: Start, times: int) -> None:
    mains = [start() for _ in range(times)]
    single, together = Watched(mains[0]).tick()[1].job, Watched(*mains).tick()[1].job
    alone, all_of_them = single.limits, together.limits
    assert alone.cpus_allowed == all_of_them.cpus_allowed
    assert alone.memory_bytes == all_of_them.memory_bytes
    assert alone.shared_memory is not None
    assert all_of_them.shared_memory is not None
    assert alone.shared_memory.size_bytes == all_of_them.shared_memory.size_bytes


def test_nobody_feeds() -> None:
    _, feeding = Watched().tick()
    assert feeding.processes == {"main": 0}
    assert feeding.counters["main"].read_bytes is None
    assert feeding.throttled_ns is None
    assert feeding.refault_bytes is None


def test_sums_of_what_may_not_be_known() -> None:
    total = plus(Counters(), Counters(cpu_ns=5, read_bytes=None, written_bytes=None))
    total = plus(total, Counters(cpu_ns=5, read_bytes=7, written_bytes=None))
    assert total == Counters(cpu_ns=10, read_bytes=7, written_bytes=0)


def test_what_was_added_is_never_negative() -> None:
    before = Counters(cpu_ns=10, queue_ns=10, read_bytes=None, written_bytes=10)
    now = Counters(cpu_ns=12, queue_ns=3, read_bytes=10, written_bytes=None)
    assert less(now, before) == Counters(cpu_ns=2, read_bytes=None, written_bytes=None)


def test_a_member_that_ended_is_gone_for_good(start: Start) -> None:
    main = start()
    main.burn(0)
    member = Process(PROC, main.pid)
    assert member.count() is not None
    assert not member.gone
    main.end()
    assert member.count() is None
    assert member.gone
    assert member.count() is None
    assert not member.has_unknown_child(frozenset())
    member.close()
