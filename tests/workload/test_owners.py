"""Owners from recorded files, and of real processes."""

from __future__ import annotations

from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from gpu_bottleneck_exporter.feeders.job import facts_of
from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import is_exiting
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.names import tenant_of
from gpu_bottleneck_exporter.workload.owners import MAX_OWNERS_PER_GPU, Groups, OwnerReader
from gpu_bottleneck_exporter.workload.users import UserNames
from support.trees import cgroup_v2, lay
from support.waiting import until

CGROUP = "cgroup"
UID = "2c48913c-b29f-11e7-9350-020968147796"
SECOND = 1_000_000_000


class Recorded:
    """Processes as recorded files; users have their number for a name."""

    def __init__(self, root: Path) -> None:
        self.proc = root
        self.users = UserNames(root)
        self.groups = Groups(root, root / "sys")
        self.reader = OwnerReader(root, self.groups)

    def process(self, pid: int, *, group: str = "/", user: int = 1000, job: str = "") -> None:
        cgroup_v2(self.proc / "sys", {f"{group[1:]}/cgroup.procs": f"{pid}\n"} if group[1:] else {})
        lay(
            self.proc,
            {
                f"{pid}/cgroup": f"0::{group}\n",
                f"{pid}/status": f"Name:\tpython\nUid:\t{user}\t0\t0\t0\n",
                f"{pid}/environ": f"HOME=/root\0SLURM_JOB_ID={job}\0",
            },
        )

    def at(self, seconds: float, *pids: int, started: int = 5) -> tuple[Owner, ...]:
        return self.reader.of([(pid, started) for pid in pids], int(seconds * SECOND))


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def test_tenants_are_distinct_and_always_in_the_same_order(recorded: Recorded) -> None:
    recorded.process(1, group=f"/docker/{'d' * 64}")
    recorded.process(2, group=f"/kubepods/pod{UID}/{'c' * 64}")
    recorded.process(3, user=1001)
    for pid in (4, 5, 6):
        recorded.process(pid, user=0)
    expected = (
        Owner(user="1001"),
        Owner(user="root"),
        Owner(container_id="d" * 64, user="1000", source=CGROUP),
        Owner(pod_uid=UID, container_id="c" * 64, user="1000", source=CGROUP),
    )
    assert recorded.at(0, 1, 2, 3, 4, 5, 6) == recorded.at(0, 6, 5, 4, 2, 3, 1) == expected
    assert recorded.at(0) == recorded.at(0, 4711) == (), "nobody, or gone"


def test_tenants_of_the_same_user_and_pod_container_or_job_are_one_owner(
    recorded: Recorded,
) -> None:
    places = (f"/kubepods/pod{UID}/{'c' * 64}", f"/kubepods/pod{UID}/{'d' * 64}", "/", "/")
    for pid, place in enumerate((*places, f"/docker/{'d' * 64}"), start=1):
        recorded.process(pid, group=place)
    recorded.process(6, user=1001)

    def owners(*pids: int) -> int:
        mains = {pid: FeederProcess(recorded.proc, pid) for pid in pids}
        return len(facts_of(recorded.proc, mains, [], recorded.groups).owners)

    assert [owners(1, 2), owners(3, 4), owners(1, 3), owners(3, 5), owners(4, 6)] == [1, 1, 2, 2, 2]


def test_there_are_few_owners_of_one_gpu(recorded: Recorded) -> None:
    pids = range(100, 100 + 2 * MAX_OWNERS_PER_GPU)
    for pid in pids:
        recorded.process(pid, user=pid)
    assert recorded.at(0, *pids) == tuple(Owner(user=f"{uid}") for uid in pids[:MAX_OWNERS_PER_GPU])


def test_the_cgroup_proves_a_job_that_the_environment_only_claims(recorded: Recorded) -> None:
    recorded.process(2, group="/system.slice/slurmd.service", job="9")
    assert recorded.at(0, 2) == (Owner(slurm_job_id="9", user="1000", source="claim"),)
    recorded.process(1, group="/system.slice/slurmstepd.scope/job_7/step_0", job="8")
    assert recorded.at(20, 1) == (Owner(slurm_job_id="7", user="1000", source=CGROUP),)


def test_a_group_that_a_user_made_does_not_hide_the_claims_of_others(recorded: Recorded) -> None:
    recorded.process(1, group="/train.slice/slurm/uid_7", job="8")
    (recorded.proc / "sys/fs/cgroup/train.slice").chmod(0o777)
    assert recorded.at(0, 1) == (Owner(slurm_job_id="8", user="1000", source="claim"),)


@pytest.mark.parametrize(("job", "source"), [("", CGROUP), ("8", "claim")])
def test_a_process_of_a_removed_group_keeps_its_owner(
    job: str, source: str, recorded: Recorded
) -> None:
    group = f"/docker/{'d' * 64}"
    container = Owner(container_id="d" * 64, slurm_job_id=job or None, user="1000", source=source)
    recorded.process(1, group=group, job=job)
    assert recorded.at(0, 1) == (container,)
    lay(
        recorded.proc,
        {"1/cgroup": f"0::{group} (deleted)\n", "2/cgroup": f"0::{group} (deleted)\n"},
    )
    assert recorded.at(20, 1, 2) == (container,), "the new one is unknown"
    recorded.process(1, group="/system.slice/a.service")
    assert recorded.at(50, 1) == (Owner(user="1000"),)


def test_an_unreadable_file_takes_nothing_else_away(recorded: Recorded) -> None:
    recorded.process(1, group=f"/docker/{'d' * 64}", job="7")
    (recorded.proc / "1/environ").unlink()
    assert recorded.at(0, 1) == (Owner(container_id="d" * 64, user="1000", source=CGROUP),)
    (recorded.proc / "1/status").unlink()
    assert recorded.at(20, 1) == (Owner(container_id="d" * 64, source=CGROUP),)


def test_a_process_is_read_when_it_is_new_then_every_ten_seconds_and_later_every_thirty(
    recorded: Recorded,
) -> None:
    def user_at(seconds: float, user: int, started: int = 5) -> str | None:
        recorded.process(1, user=user)
        return recorded.at(seconds, 1, started=started)[0].user

    times = (0, 9.9, 10, 20, 30, 49, 50, 79, 80)
    assert [user_at(second, round(second)) for second in times] == [
        f"{read or 'root'}" for read in (0, 0, 10, 20, 20, 20, 50, 50, 80)
    ]
    recorded.process(2, user=3)
    assert recorded.at(81, 1, 2) == (Owner(user="3"), Owner(user="80")), "the new one is read"
    assert user_at(82, 7, started=6) == "7", "a pid that is used again is a new process"


def test_an_exiting_process_keeps_its_owner_and_is_no_other_tenant(tmp_path: Path) -> None:
    process = Popen(["/bin/cat"], stdin=PIPE, env={"SLURM_JOB_ID": "7"})
    proc = Path("/proc")
    before, after = (OwnerReader(proc, Groups(proc, tmp_path)) for _ in range(2))

    def tenants(reader: OwnerReader, seconds: int) -> set[str | None]:
        owners = reader.by_process([(process.pid, 5)], seconds * SECOND)
        return {tenant_of(owner) for owner in owners.values()}

    until(lambda: read(f"/proc/{process.pid}/comm") == "cat\n", "cat")
    (name,) = tenants(before, 0)
    assert (name or "").startswith("slurm-7")
    assert process.stdin
    process.stdin.close()
    until(lambda: is_exiting(proc, process.pid), "its end")
    assert tenants(before, 20) == {name}
    assert tenants(after, 0) == {None}
    process.wait()


def test_those_gone_are_forgotten(recorded: Recorded) -> None:
    for pid in range(1, 50):
        recorded.process(pid, user=pid)
        recorded.at(pid * 5, pid)
    assert len(recorded.reader._known) < 10
