"""Feeders from recorded files: what is denied, what vanishes while it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.job import Networks, facts_of
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.feeders.snapshot import Feeding, FeedingReader
from gpu_bottleneck_exporter.host.cgroup import Cgroups, cgroup_of
from gpu_bottleneck_exporter.workload.owners import Groups
from support.trees import cgroup_v2, lay

HZ = 100
SECOND = 1_000_000_000
PSI = "some avg10=0 avg60=0 avg300=0 total={total}\n"


def process(
    proc: Path, pid: int, *, read_bytes: int | None, received: int = 0, group: str = "/job"
) -> None:
    """Process `pid`, started 50 s after boot; `read_bytes` None: it may not be known."""
    zeros = " ".join(["0"] * 30)
    lay(
        proc,
        {
            f"{pid}/stat": f"{pid} (a b) S 1 0 0 0 0 0 0 0 4 0 10 5 0 0 20 0 1 0 {50 * HZ} {zeros}",
            f"{pid}/schedstat": "1 2 3\n",
            f"{pid}/wchan": "0",
            f"{pid}/cgroup": f"0::{group}\n",
            f"{pid}/status": "Cpus_allowed_list:\t0-3\n",
            f"{pid}/net/dev": f"\n\neth0: {received} 0 0 0 0 0 0 0 {2 * received} 0\n",
            "uptime": "80.5 100\n",
        },
    )
    if read_bytes is not None:
        lay(proc, {f"{pid}/io": f"rchar: 0\nsyscw: 0\nread_bytes: {read_bytes}\nwrite_bytes: 0\n"})
    elif (proc / f"{pid}/io").exists():
        (proc / f"{pid}/io").unlink()


class Recorded:
    """A feed over recorded files."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sysfs = root / "proc", root / "sys"
        self._groups = Cgroups(self.sysfs)
        self.feed = FeederGroup(self.proc, self._groups)
        self._reader = FeedingReader(Networks(self.proc))
        self._now_ns = 0

    def adopt(self, *mains: int) -> None:
        self.feed.adopt(set(mains), set(), frozenset(mains))

    def tick(self, seconds: int = 1) -> Feeding:
        self._now_ns += seconds * SECOND
        self._groups.look()
        self.feed.advance(self._now_ns)
        return self._reader.read(self.feed, self._now_ns, queue_known=True)


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    files = {
        "job/cpu.stat": "throttled_usec 1000\n",
        "job/cpu.max": "max 100000\n",
        "job/memory.stat": "workingset_refault_file 1\n",
        "job/memory.current": "1000\n",
        "job/memory.max": "2000\n",
        "job/cpu.pressure": PSI.format(total=500),
    }
    cgroup_v2(tmp_path / "sys", files)
    return Recorded(tmp_path)


def read_bytes(feeding: Feeding) -> int | None:
    return feeding.counters["main"].read_bytes


def test_bytes_are_unknown_while_one_main_denies_them(recorded: Recorded) -> None:
    process(recorded.proc, 7, read_bytes=100)
    recorded.adopt(7)
    process(recorded.proc, 7, read_bytes=150)
    assert read_bytes(recorded.tick()) == 50
    process(recorded.proc, 8, read_bytes=None)
    recorded.adopt(7, 8)
    process(recorded.proc, 7, read_bytes=175)
    assert read_bytes(recorded.tick()) is None
    recorded.adopt(7)
    assert read_bytes(recorded.tick()) == 75


def test_bytes_that_were_never_known_are_no_zero(recorded: Recorded) -> None:
    process(recorded.proc, 7, read_bytes=None)
    recorded.adopt(7)
    assert read_bytes(recorded.tick()) is None
    recorded.adopt()
    assert read_bytes(recorded.tick()) is None


def test_a_process_that_vanishes_while_it_is_read_denies_nothing(recorded: Recorded) -> None:
    process(recorded.proc, 7, read_bytes=100)
    recorded.adopt(7)
    assert read_bytes(recorded.tick()) == 0
    member = recorded.feed.mains[7]
    (recorded.proc / "7/io").unlink()
    member.reader._stat.close()
    (recorded.proc / "7/stat").unlink()
    assert read_bytes(recorded.tick()) == 0
    assert member.gone
    recorded.adopt()
    assert read_bytes(recorded.tick()) == 0


def test_a_successor_of_a_pid_counts_from_its_own_beginning(recorded: Recorded) -> None:
    process(recorded.proc, 7, read_bytes=100)
    recorded.adopt(7)
    first = recorded.feed.mains[7]
    first.reader._stat.close()
    stat = recorded.proc / "7/stat"
    stat.write_text(stat.read_text().replace(f" {50 * HZ} ", f" {60 * HZ} "))
    process_io = recorded.proc / "7/io"
    process_io.write_text("rchar: 0\nsyscw: 0\nread_bytes: 9000\nwrite_bytes: 0\n")
    assert read_bytes(recorded.tick()) == 0
    assert first.gone
    recorded.adopt(7)
    assert recorded.feed.mains[7] is not first
    process_io.write_text("rchar: 0\nsyscw: 0\nread_bytes: 9005\nwrite_bytes: 0\n")
    assert read_bytes(recorded.tick()) == 5


def test_a_group_that_cannot_be_read_for_a_while_takes_nothing_away(recorded: Recorded) -> None:
    process(recorded.proc, 7, read_bytes=0)
    recorded.adopt(7)
    stat = recorded.sysfs / "fs/cgroup/job/cpu.stat"
    stat.write_text("throttled_usec 1500\n")
    assert recorded.tick().throttled_ns == 500_000
    stat.write_text("")
    assert recorded.feed.history.total.held.throttled_ns == 500_000
    recorded.tick()
    stat.write_text("throttled_usec 1600\n")
    assert recorded.tick().throttled_ns == 600_000


def test_sums_of_groups_outlive_them(recorded: Recorded) -> None:
    process(recorded.proc, 7, read_bytes=0, received=1000)
    recorded.adopt(7)
    recorded.tick()
    lay(recorded.sysfs, {"fs/cgroup/job/cpu.pressure": PSI.format(total=700)})
    process(recorded.proc, 7, read_bytes=0, received=1010)
    job = recorded.tick().job
    assert job.pressure_ns == {("cpu", "some"): 200_000}
    assert (job.received_bytes, job.sent_bytes) == (10, 20)
    recorded.adopt()
    job = recorded.tick().job
    assert job.pressure_ns == {("cpu", "some"): 200_000}
    assert (job.received_bytes, job.sent_bytes) == (10, 20)
    assert job.limits.memory_used_bytes is None


def test_limits(recorded: Recorded) -> None:
    process(recorded.proc, 7, read_bytes=0)
    recorded.adopt(7)
    job = recorded.tick().job
    assert job.age_seconds == pytest.approx(30.5)
    limits = job.limits
    assert (limits.cpus_allowed, limits.cpu_cores) == (4, None)
    assert (limits.memory_used_bytes, limits.memory_bytes) == (1000, 2000)
    assert limits.shared_memory is None  # /proc/PID/root is not there


def test_limits_are_read_again_after_a_while(recorded: Recorded) -> None:
    process(recorded.proc, 7, read_bytes=0)
    recorded.adopt(7)
    recorded.tick()
    lay(recorded.sysfs, {"fs/cgroup/job/memory.current": "1500\n"})
    assert recorded.tick().job.limits.memory_used_bytes == 1000
    assert recorded.tick(seconds=10).job.limits.memory_used_bytes == 1500


def test_limits_of_two_groups_add_up_and_a_shared_one_counts_once(tmp_path: Path) -> None:
    files = {
        "pod/memory.current": "900\n",
        "pod/memory.max": "1000\n",
        "pod/a/cpu.max": "100000 100000\n",
        "pod/b/cpu.max": "200000 100000\n",
        "pod/a/memory.current": "400\n",
        "pod/b/memory.current": "500\n",
        "free/cpu.max": "max 100000\n",
    }
    cgroup_v2(tmp_path / "sys", files)
    proc = tmp_path / "proc"
    for pid, group in ((1, "/pod/a"), (2, "/pod/b"), (3, "/free")):
        process(proc, pid, read_bytes=0, group=group)
    members = {pid: Process(proc, pid) for pid in (1, 2, 3)}

    def limits(*pids: int) -> tuple[float | None, int | None, int | None]:
        texts = [(proc / f"{pid}/cgroup").read_text() for pid in pids]
        groups = [cgroup_of(text, tmp_path / "sys") for text in texts]
        mains = {pid: members[pid] for pid in pids}
        found = facts_of(proc, mains, groups, Groups(proc), 0).limits
        return found.cpu_cores, found.memory_used_bytes, found.memory_bytes

    assert limits(1) == (1.0, 900, 1000)
    assert limits(1, 2) == (3.0, 900, 1000)
    assert limits(1, 3) == (None, 900, 1000)
    assert limits(3) == (None, None, None)


def test_a_network_that_many_share_is_read_once_a_tick(tmp_path: Path) -> None:
    networks = Networks(tmp_path)
    process(tmp_path, 7, read_bytes=0, received=1000)
    assert networks.traffic(1, 7, SECOND) == (1000, 2000)
    process(tmp_path, 7, read_bytes=0, received=1500)
    assert networks.traffic(1, 7, SECOND) == (1000, 2000)
    assert networks.traffic(1, 7, 2 * SECOND) == (1500, 3000)
    assert networks.traffic(2, 8, 2 * SECOND) is None


def test_waits_of_workers_count_the_passes_that_looked_at_mains_only(recorded: Recorded) -> None:
    for pid in (7, 8):
        process(recorded.proc, pid, read_bytes=0)
        (recorded.proc / f"{pid}/wchan").write_text("futex_wait")
    recorded.feed.adopt({7}, {8}, frozenset({7}))
    tenth = SECOND // 10
    for number in range(11):
        recorded.feed.sample(number * tenth + 1, mains_only=number % 2 == 1)
    recorded.feed.advance(SECOND + 2)
    waited = recorded.feed.states.wait_ns
    assert waited["main", "queue"] == waited["worker", "queue"] == SECOND
