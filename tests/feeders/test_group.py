"""The feeders of GPUs from recorded files: what comes and goes, is denied, limits, adds up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, Counters, Role, less, plus
from gpu_bottleneck_exporter.accounting.stall import PEER, STORAGE, UNKNOWN
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.job import JobLimits, Networks, facts_of
from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.feeders.snapshot import Feeding, FeedingReader
from gpu_bottleneck_exporter.feeders.tree import ProcessTree
from gpu_bottleneck_exporter.feeders.usage import free_bytes, private_bytes
from gpu_bottleneck_exporter.host.cgroup import PAGE_BYTES, Cgroups, MemoryLevel, cgroup_of
from gpu_bottleneck_exporter.host.mounts import Place
from gpu_bottleneck_exporter.host.process import TICK_NS
from gpu_bottleneck_exporter.workload.owners import Groups
from support.programs import program
from support.rows import rows
from support.ticks import tick
from support.trees import cgroup_v2, end, lay, links, process

SECOND = 1_000_000_000
PSI = "some avg10=0 avg60=0 avg300=0 total={total}\n"
RANK = "MASTER_ADDR=10.0.0.1\0MASTER_PORT=29500\0WORLD_SIZE=2\0"
JOB = {
    "job/cpu.stat": "throttled_usec 1000\n",
    "job/cpu.max": "max 100000\n",
    "job/memory.stat": "workingset_refault_file 1\nactive_file 150\ninactive_file 50\n",
    "job/memory.current": "1200\n",
    "job/memory.max": "2000\n",
    "job/cpu.pressure": PSI.format(total=500),
}


class Recorded:
    """Recorded feeders of one GPU as the watching thread drives them; no sum ever falls."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sysfs = root / "proc", root / "sys"
        self._groups = Cgroups(self.sysfs)
        self.feed = FeederGroup(self.proc, self._groups)
        self._reader = FeedingReader(Networks(self.proc))
        self._now_ns = 0
        self._before: dict[str, int] = {}
        self.current = False
        """Whether, at the last tick, the tree was up to date."""

    def adopt(
        self, *mains: int, workers: tuple[int, ...] = (), others: tuple[int, ...] = ()
    ) -> None:
        self.feed.adopt(ProcessTree({*mains}, {*workers}, {*mains, *others}))

    def tick(self, seconds: int = 1) -> Feeding:
        self._now_ns += seconds * SECOND
        self._groups.read_counters()
        self.current = self.feed.sample(self._now_ns)
        self.current &= not self.feed.family.is_outdated()
        self.current &= self.feed.advance(self._now_ns)
        result = self._reader.read(self.feed, self._now_ns, queue_known=True)
        now, before = sums(result), self._before
        assert {name for name in before.keys() & now.keys() if now[name] < before[name]} == set()
        self._before = before | now
        return result


def sums(feeding: Feeding) -> dict[str, int]:
    """All that must never fall, as far as it is known."""
    fields = {
        f"{role} {name}": used
        for role, counters in feeding.counters.items()
        for name, used in counters._asdict().items()
    }
    fields |= {f"wait {role} {what}": ns for (role, what), ns in feeding.wait_ns.items()}
    fields |= {"throttled": feeding.throttled_ns, "refaults": feeding.refault_bytes}
    fields |= {"starts": feeding.worker_starts}
    return {name: value for name, value in fields.items() if value is not None}


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    cgroup_v2(tmp_path / "sys", JOB)
    process(tmp_path / "proc", 7)
    return Recorded(tmp_path)


def main_read(feeding: Feeding) -> int | None:
    return feeding.counters["main"].read_bytes


@pytest.mark.parametrize(("after_ns", "known"), [(300_000_000, True), (2_000_000_000, False)])
def test_a_sample_holds_until_the_next_one_but_expires(
    recorded: Recorded, after_ns: int, *, known: bool
) -> None:
    recorded.adopt(7)
    recorded.feed.sample(SECOND)
    window = SECOND + after_ns - 200_000_000, SECOND + after_ns
    assert (recorded.feed.history.explaining(*window) is not None) is known


def test_workers_come_and_go(recorded: Recorded) -> None:
    recorded.adopt(7)
    alone = recorded.tick()
    assert recorded.current
    assert alone.processes.keys() == alone.counters.keys() == {"main"}
    for number in (1, 2, 3):
        worker = 10 + number
        process(recorded.proc, worker)
        process(recorded.proc, 7, children=[worker])
        recorded.tick()
        assert not recorded.current, "a new child calls for a discovery"
        recorded.adopt(7, workers=(worker,))
        process(recorded.proc, worker, cpu_ticks=45)
        now = recorded.tick()
        assert recorded.current
        assert now.processes == {"main": 1, "worker": 1}
        assert (now.worker_starts, now.counters["worker"].cpu_ns) == (number, number * 30 * TICK_NS)
        end(recorded.proc, worker)
        recorded.tick()
        assert not recorded.current, "a child that ended calls for a discovery"
        process(recorded.proc, 7)
        recorded.adopt(7)
        now = recorded.tick()
        assert recorded.current
        assert now.processes == {"main": 1, "worker": 0}
        assert now.counters["worker"].read_bytes is not None


@rows("late, new", {"at once": (0, 5), "a second later": (1, 27.5), "much later": (20, 50)})
def test_usage_of_a_worker_is_not_counted_again_in_its_parent(
    recorded: Recorded, late: int, new: float
) -> None:
    process(recorded.proc, 8)
    recorded.adopt(7, workers=(8,))
    recorded.tick()
    process(recorded.proc, 8, cpu_ticks=45)
    recorded.tick()
    end(recorded.proc, 8)
    recorded.adopt(7)
    for _ in range(late):
        recorded.tick()
    process(recorded.proc, 7, ended_ticks=50)
    recorded.tick()
    process(recorded.proc, 7, ended_ticks=60)
    recorded.tick()
    result = recorded.feed.history.total.of(Role.MAIN).used.children_ns
    assert result == pytest.approx((new + 10) * TICK_NS), "of which nobody knew before"


def test_ended_workers_of_one_tenant_hide_no_children_of_another(recorded: Recorded) -> None:
    for pid in (8, 9):
        process(recorded.proc, pid)
    below = {7: {8}}
    recorded.feed.adopt(ProcessTree({7, 9}, {8}, {7, 9}, below=below))
    recorded.feed.family.name_tenants({7: "pod-a", 9: "pod-b"})
    recorded.tick()
    process(recorded.proc, 8, cpu_ticks=45)
    recorded.tick()
    end(recorded.proc, 8)
    recorded.adopt(7, 9)
    process(recorded.proc, 9, ended_ticks=20)
    recorded.tick()
    bucket = recorded.feed.history.explaining(2 * SECOND, 3 * SECOND)
    assert bucket
    used = {name: tenant.of(Role.MAIN).used for name, tenant in bucket.tenants.items()}
    assert used["pod-b"].children_ns == 20 * TICK_NS
    assert bucket.of(Role.MAIN).used.children_ns == 20 * TICK_NS


def test_activity_and_usage_of_kin_belong_to_the_gpu(recorded: Recorded) -> None:
    process(recorded.proc, 8, state="R")
    recorded.adopt(7)
    recorded.feed.family.adopt_kin({8})
    recorded.feed.note(tick(0, {UNKNOWN: 1}, 1))
    process(recorded.proc, 8, state="R", cpu_ticks=45)
    recorded.tick()
    kin = recorded.feed.history.total.of(Role.RELATED)
    assert (kin.by_activity, kin.processes) == ({Activity.RUN: 1}, 1)
    assert kin.used.cpu_ns == 30 * TICK_NS


def test_kin_are_searched_sooner_once_one_has_ended_but_not_at_every_sample(
    recorded: Recorded,
) -> None:
    process(recorded.proc, 8)
    family = recorded.feed.family
    family.adopt_kin({8})
    sought = [family.is_kin_search_due(at * SECOND, frozenset()) for at in (100, 101, 106)]
    assert sought == [True, False, False]
    end(recorded.proc, 8)
    recorded.tick()
    sought = [family.is_kin_search_due(at * SECOND, frozenset()) for at in (106, 107)]
    assert sought == [True, False]


@pytest.mark.parametrize(("state", "causes"), [("D", [STORAGE]), ("S", [])])
def test_files_are_named_only_while_a_feeder_waits_for_them(
    recorded: Recorded, state: str, causes: list[str]
) -> None:
    process(recorded.proc, 7, state=state)
    lay(recorded.proc, {"7/mountinfo": "21 1 0:21 / /data rw - nfs4 x rw\n"})
    links(recorded.proc / "7/fd", "/data/x")
    recorded.adopt(7)
    recorded.feed.note(tick(0, {UNKNOWN: 1}, 1))
    evidence = recorded.tick().evidence
    assert [cause for cause, text in evidence if "/data" in text] == causes
    assert recorded.feed.history.total.places == dict.fromkeys([Place.UNKNOWN] if causes else [], 1)


def test_a_lock_of_the_driver_is_named(recorded: Recorded) -> None:
    process(recorded.proc, 7, state="D")
    lay(recorded.proc, {"7/wchan": "os_acquire_rwlock_write"})
    recorded.adopt(7)
    recorded.feed.note(tick(0, {UNKNOWN: 1}, 1))
    ((cause, text),) = recorded.tick().evidence
    assert cause == UNKNOWN
    assert text.endswith("the GPU's driver (100%): os_acquire_rwlock_write")
    assert recorded.feed.history.total.of(Role.MAIN).by_activity == {Activity.DRIVER: 1}


@pytest.mark.parametrize("gap", [False, True], ids=["at once", "after a while"])
def test_evidence_is_of_those_that_have_the_gpu_now(recorded: Recorded, *, gap: bool) -> None:
    for pid, channel in ((7, "do_wait"), (8, "hrtimer_nanosleep")):
        process(recorded.proc, pid, state="S")
        lay(recorded.proc, {f"{pid}/wchan": channel})

    def ticks(number: int) -> str:
        text = ""
        for _ in range(number):
            recorded.feed.note(tick(0, {UNKNOWN: 1}, recorded._now_ns))
            text += f"{recorded.tick().evidence}"
        return text

    recorded.adopt(7)
    assert "child process" in ticks(5)
    if gap:
        recorded.adopt()
        assert "sleeps" not in ticks(2)
    recorded.adopt(8)
    others = ticks(9)
    assert "on a timer" in others
    assert "child process" not in others


def test_a_gpu_is_engaged_while_it_works_or_is_held_up_by_its_own_rank(recorded: Recorded) -> None:
    recorded.feed.note(tick(2 * SECOND, {STORAGE: SECOND, PEER: SECOND}, 1))
    assert recorded.feed.engaged == (0.75, 1)


def test_a_process_that_sleeps_by_itself_does_not_wait_for_its_next_task(
    recorded: Recorded,
) -> None:
    for worker, channel in ((8, "futex_wait"), (9, "hrtimer_nanosleep")):
        process(recorded.proc, worker)
        lay(recorded.proc, {f"{worker}/wchan": channel})
    recorded.adopt(7, workers=(8, 9))
    recorded.feed.note(tick(0, {UNKNOWN: 1}, 1))
    recorded.tick()
    result = recorded.feed.history.total.of(Role.WORKER).by_activity
    assert result == {Activity.QUEUE: 1, Activity.TIMER: 1}


def test_many_workers_are_counted_in_turn_and_none_is_left_out(recorded: Recorded) -> None:
    workers = tuple(range(11, 18))
    for worker in workers:
        process(recorded.proc, worker)
    recorded.adopt(7, workers=workers)
    for worker in workers:
        process(recorded.proc, worker, cpu_ticks=45)
    result = [recorded.tick() for _ in range(3)][-1]
    assert result.counters["worker"].cpu_ns == len(workers) * 30 * TICK_NS
    assert result.processes["worker"] == len(workers)
    assert result.worker_starts == 0, "they were there before"


def test_the_busiest_are_those_that_run(recorded: Recorded) -> None:
    for worker, state in ((11, "S"), (12, "R"), (13, "R"), (14, "S")):
        process(recorded.proc, worker, state=state)
    recorded.adopt(7, workers=(11, 12, 13, 14))
    mains, others = [recorded.tick() for _ in range(4)][-1].busiest
    assert ([pid for pid, _ in mains], {pid for pid, _ in others}) == ([7], {12, 13})


def test_evidence_is_not_that_of_processes_that_have_left(recorded: Recorded) -> None:
    recorded.adopt(7)
    recorded.tick()
    recorded._reader._evidence = (("network", "waits for 10.0.0.7"),)
    assert recorded.tick().evidence
    process(recorded.proc, 8)
    recorded.adopt(8)
    assert recorded.tick().evidence == ()


def test_a_main_that_started_another_has_no_worker_in_it(recorded: Recorded) -> None:
    process(recorded.proc, 7, children=[8])
    recorded.adopt(7, others=(8,))
    assert recorded.tick().processes == {"main": 1}
    assert recorded.current


def test_bytes_are_unknown_while_one_main_denies_them(recorded: Recorded) -> None:
    recorded.adopt(7)
    process(recorded.proc, 7, read_bytes=50)
    assert main_read(recorded.tick()) == 50
    process(recorded.proc, 8, read_bytes=None)
    recorded.adopt(7, 8)
    process(recorded.proc, 7, read_bytes=75)
    assert main_read(recorded.tick()) is None
    recorded.adopt(7)
    assert main_read(recorded.tick()) == 75


def test_bytes_that_were_never_known_are_no_zero(recorded: Recorded) -> None:
    process(recorded.proc, 7, read_bytes=None)
    recorded.adopt(7)
    assert main_read(recorded.tick()) is None
    recorded.adopt()
    assert main_read(recorded.tick()) is None


def test_a_process_that_ends_while_it_is_read_denies_nothing(recorded: Recorded) -> None:
    recorded.adopt(7)
    assert main_read(recorded.tick()) == 0
    member = recorded.feed.mains[7]
    end(recorded.proc, 7)
    assert main_read(recorded.tick()) == 0
    assert not recorded.current
    assert member.gone
    assert member.count() is None, "for good"
    assert not member.has_unknown_child(frozenset())
    recorded.adopt()
    assert main_read(recorded.tick()) == 0


def test_a_successor_of_a_pid_counts_from_its_own_beginning(recorded: Recorded) -> None:
    recorded.adopt(7)
    first = recorded.feed.mains[7]
    process(recorded.proc, 7, started_seconds=60, read_bytes=9000)
    assert main_read(recorded.tick()) == 0
    assert first.gone
    recorded.adopt(7)
    assert recorded.feed.mains[7] is not first
    process(recorded.proc, 7, started_seconds=60, read_bytes=9005)
    assert main_read(recorded.tick()) == 5


def test_a_group_that_cannot_be_read_for_a_while_takes_nothing_away(recorded: Recorded) -> None:
    recorded.adopt(7)
    stat = recorded.sysfs / "fs/cgroup/job/cpu.stat"
    stat.write_text("throttled_usec 1500\n")
    assert recorded.tick().throttled_ns == 500_000
    stat.write_text("")
    assert recorded.feed.history.total.held.throttled_ns == 500_000
    recorded.feed.advance(2 * SECOND)
    stat.write_text("throttled_usec 1600\n")
    assert recorded.tick().throttled_ns == 600_000


def test_when_all_mains_have_ended_sums_stay_and_gauges_go(recorded: Recorded) -> None:
    process(recorded.proc, 7, received_bytes=1000)
    recorded.adopt(7)
    recorded.tick()
    lay(recorded.sysfs, {"fs/cgroup/job/cpu.pressure": PSI.format(total=700)})
    process(recorded.proc, 7, received_bytes=1010)
    before = recorded.tick().job
    end(recorded.proc, 7)
    recorded.adopt()
    after = recorded.tick()
    for job in (before, after.job):
        assert job.pressure_ns == {("cpu", "some"): 200_000}
        assert (job.received_bytes, job.sent_bytes) == (10, 20)
    assert after.processes == {"main": 0}
    assert after.job.age_seconds is None
    assert after.job.limits == JobLimits()
    assert main_read(after) is not None


@pytest.mark.parametrize("uptime", ["0.01 0.01\n", ""])
def test_the_start_of_a_process_does_not_depend_on_uptime_of_lxcfs(
    uptime: str, tmp_path: Path
) -> None:
    proc, before = lay(tmp_path, {"uptime": uptime}), time.monotonic_ns()
    with program("ready(); told()") as child:
        after = time.monotonic_ns()
        (proc / f"{child.pid}").symlink_to(f"/proc/{child.pid}")
        mains = {child.pid: FeederProcess(proc, child.pid)}
        started = facts_of(proc, mains, [], Groups(proc)).started_ns
    assert started is not None
    assert before - TICK_NS <= started <= after


def test_traffic_in_the_hosts_network_is_shared(recorded: Recorded) -> None:
    recorded.adopt(7)
    assert recorded.tick().job.shares_network is None, "process 1 is not there"
    process(recorded.proc, 1)
    groups = Groups(recorded.proc)

    def shares(pid: int) -> bool | None:
        mains = {pid: FeederProcess(recorded.proc, pid)}
        return facts_of(recorded.proc, mains, [], groups).shares_network

    assert (shares(1), shares(7)) == (True, False)


def test_limits(recorded: Recorded) -> None:
    recorded.adopt(7)
    limits = recorded.tick().job.limits
    assert (limits.cpus_allowed, limits.cpu_cores) == (4, None)
    assert (limits.memory_used_bytes, limits.memory_bytes) == (1000, 2000)
    assert limits.shared_memory is None  # /proc/PID/root is not there
    assert limits.interactive is False
    lay(recorded.sysfs, {"fs/cgroup/job/memory.current": "1700\n"})
    lay(recorded.proc, {"7/cmdline": "python\0-m\0ipykernel_launcher\0", "7/environ": RANK})
    assert recorded.tick().job.limits == limits
    assert not recorded.feed.facts.has_rank_variables
    later = recorded.tick(seconds=10).job.limits
    assert (later.memory_used_bytes, later.interactive) == (1500, True), "after a while"
    assert recorded.feed.facts.has_rank_variables


def test_limits_of_two_groups_add_up_and_a_shared_one_counts_once(tmp_path: Path) -> None:
    files = {
        "pod/memory.current": "900\n",
        "pod/memory.max": "1000\n",
        "pod/memory.stat": "active_file 30\nslab 7\ninactive_file 200\n",
        "pod/a/cpu.max": "100000 100000\n",
        "pod/b/cpu.max": "200000 100000\n",
        "pod/a/memory.current": "400\n",
        "pod/b/memory.current": "500\n",
        "free/cpu.max": "max 100000\n",
    }
    cgroup_v2(tmp_path / "sys", files)
    proc = tmp_path / "proc"
    for pid, group in ((1, "/pod/a"), (2, "/pod/b"), (3, "/free")):
        process(proc, pid, cgroup=group)
    members = {pid: FeederProcess(proc, pid) for pid in (1, 2, 3)}

    def limits(*pids: int) -> tuple[float | None, int | None, int | None]:
        texts = [(proc / f"{pid}/cgroup").read_text() for pid in pids]
        groups = [cgroup_of(text, tmp_path / "sys") for text in texts]
        mains = {pid: members[pid] for pid in pids}
        result = facts_of(proc, mains, groups, Groups(proc)).limits
        return result.cpu_cores, result.memory_used_bytes, result.memory_bytes

    assert limits(1) == (1.0, 670, 1000)
    assert limits(1, 2) == (3.0, 670, 1000)
    assert limits(1, 3) == (None, 670, 1000)
    assert limits(3) == (None, None, None)
    (tmp_path / "sys/fs/cgroup/pod/memory.stat").unlink()
    assert limits(1) == (1.0, None, 1000), "it is not known how much of it is page cache"


def test_page_cache_of_a_v1_group_counts_those_below_it(tmp_path: Path) -> None:
    stat = "inactive_file 5\nactive_file 7\ntotal_inactive_file 50\ntotal_active_file 70\n"
    lay(tmp_path, {"memory.stat": stat, "unread/memory.stat": "inactive_file 5\n"})
    assert MemoryLevel(tmp_path, 200, None).cache_bytes("active_file", "inactive_file") == 120
    unread = MemoryLevel(tmp_path / "unread", 200, None)
    assert unread.cache_bytes("active_file", "inactive_file") is None


def test_free_memory_under_a_limit_includes_the_page_cache(tmp_path: Path) -> None:
    files = {"memory.current": "700\n", "memory.max": "1000\n", "memory.stat": "inactive_file 50\n"}
    cgroup_v2(tmp_path, {f"job/{name}": text for name, text in files.items()})
    group = cgroup_of("0::/job\n", tmp_path)
    assert group is not None
    assert free_bytes(frozenset({group}), 9000.0) == 350.0
    assert free_bytes(frozenset({group}), 300.0) == 300.0
    assert free_bytes(frozenset(), None) is None


def test_memory_of_its_own_is_added_up_unless_there_is_too_much(tmp_path: Path) -> None:
    rollup = "Rss: 2400 kB\nPrivate_Clean:        8 kB\nPrivate_Dirty:      100 kB\n"
    for resident, result in ((600, 108 * 1024), (2**31, (2**31 - 500) * PAGE_BYTES)):
        lay(tmp_path / "7", {"statm": f"9 {resident} 500 1 0 1 0\n", "smaps_rollup": rollup})
        assert private_bytes(tmp_path, 7) == result


def test_a_network_that_many_share_is_read_once_a_tick(tmp_path: Path) -> None:
    networks = Networks(tmp_path)
    process(tmp_path, 7, received_bytes=1000)
    assert networks.traffic(1, 7, SECOND) == (1000, 2000)
    process(tmp_path, 7, received_bytes=1500)
    assert networks.traffic(1, 7, SECOND) == (1000, 2000)
    assert networks.traffic(1, 7, 2 * SECOND) == (1500, 3000)
    assert networks.traffic(2, 8, 2 * SECOND) is None


def test_waits_of_workers_count_the_passes_that_sampled_mains_only(recorded: Recorded) -> None:
    process(recorded.proc, 8)
    recorded.adopt(7, workers=(8,))
    for number in range(11):
        recorded.feed.sample(number * SECOND // 10 + 1, mains_only=number % 2 == 1)
    recorded.feed.advance(SECOND + 2)
    waited = recorded.feed.states.wait_ns
    assert waited["main", "queue"] == waited["worker", "queue"] == SECOND


def test_mains_are_runnable_while_they_have_a_cpu_or_wait_for_one(recorded: Recorded) -> None:
    """One of the two mains runs for half of the time."""
    recorded.feed.note(tick(0, {UNKNOWN: 1}, 1))
    process(recorded.proc, 8)

    def runnable(at_ns: int, *mains: int, ran_ns: int = 1) -> float | None:
        process(recorded.proc, 7, ran_ns=ran_ns)
        recorded.adopt(*mains)
        recorded.feed.sample(at_ns)
        return recorded.feed.history.passes_since(at_ns - 1).main_runnable

    assert runnable(10, 7) is None, "it was not counted before"
    assert runnable(20, 7, ran_ns=6) == 0.5
    assert runnable(30, 7, 8, ran_ns=11) is None, "one of them was not"
    assert runnable(40, 7, 8, ran_ns=16) == 0.25
    for main in recorded.feed.mains.values():
        main.close_deep()
    assert runnable(50, 7, 8, ran_ns=21) is None, "after a pause"
    end(recorded.proc, 8)
    recorded.feed.sample(60)
    assert recorded.feed.history.passes_since(59).main_runnable is None, "one has ended"


def test_an_unknown_counter_leaves_the_others() -> None:
    bucket = Bucket()
    for runnable_ns, counted_ns in ((1, 4), (0, 0), (2, 4)):
        bucket.add(Bucket(runnable_ns=runnable_ns, counted_ns=counted_ns))
    assert bucket.main_runnable == 3 / 8
    assert Bucket().main_runnable is None
    assert Bucket(runnable_ns=5, counted_ns=4).main_runnable == 1.0, "the kernel's clock and ours"


def test_sums_of_counters_that_may_be_unknown() -> None:
    total = plus(Counters(), Counters(cpu_ns=5, read_bytes=None, written_bytes=None))
    total = plus(total, Counters(cpu_ns=5, read_bytes=7, written_bytes=None))
    assert total == Counters(cpu_ns=10, read_bytes=7, written_bytes=0)
    before = Counters(cpu_ns=10, queue_ns=10, read_bytes=None, written_bytes=10)
    now = Counters(cpu_ns=12, queue_ns=3, read_bytes=10, written_bytes=None)
    assert less(now, before) == Counters(cpu_ns=2, read_bytes=None, written_bytes=None), "never < 0"
