"""Slurm's control groups of version 2 in both namings, and whose word their numbers are.

The trees are written after Slurm's sources (cgroup_v2.c, sluid.c, slurmstepd.c), not recorded.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_bottleneck_exporter.workload.owners import Groups
from support.trees import cgroup_v2, lay

SLUID, OTHER = "sEKNKTV3WPV500", "sFNDM35NQ39R00"
SCOPE = "system.slice/slurmstepd.scope"
STEPD, TASK = 70, 71
TITLES = {
    "slurmstepd: [4242.0]": "4242",
    "slurmstepd: [4242.batch]": "4242",
    "slurmstepd: [4242.extern stepmgr]": "4242",
    "slurmstepd: [4242.interactive]": "4242",
    "slurmstepd: [4242.0+1]": "4242",
    "/usr/sbin/slurmstepd infinity": SLUID,
    "bash -c slurmstepd: [4242.0]": SLUID,
}


class Node:
    """A node on which a job with one step runs, its group named `job`."""

    def __init__(self, root: Path, job: str, scope: str = SCOPE) -> None:
        self.proc, self.sysfs = root / "proc", root / "sys"
        step = f"{scope}/{job}/step_0"
        self.mount = cgroup_v2(
            self.sysfs,
            {
                f"{scope}/system/cgroup.procs": "69\n",
                f"{step}/slurm/cgroup.procs": f"{STEPD}\n",
                f"{step}/user/task_0/cgroup.procs": f"{TASK}\n",
            },
        )
        lay(self.proc, {f"{TASK}/cgroup": f"0::/{step}/user/task_0\n"})

    def stepd(self, title: str = "slurmstepd: [4242.0]", user: int = 0) -> None:
        status = f"Name:\tslurmstepd\nUid:\t{user}\t0\t0\t0\n"
        lay(self.proc, {f"{STEPD}/status": status, f"{STEPD}/cmdline": f"{title}\0"})

    def job(self) -> str | None:
        groups = Groups(self.proc, self.sysfs)
        assert groups.slurm_tracks()
        return groups.owner(TASK).slurm_job_id


@pytest.mark.parametrize("job", [SLUID, "job_4242"])
@pytest.mark.parametrize("scope", [SCOPE, "jobs.slice/gpu-01_slurmstepd.scope"])
def test_a_job_has_its_number_in_either_naming(job: str, scope: str, tmp_path: Path) -> None:
    node = Node(tmp_path, job, scope)
    node.stepd()
    assert node.job() == "4242"


@pytest.mark.parametrize(("title", "job"), TITLES.items())
def test_the_number_is_the_one_in_slurmstepds_title(title: str, job: str, tmp_path: Path) -> None:
    node = Node(tmp_path, SLUID)
    node.stepd(title)
    assert node.job() == job


def test_the_title_of_a_users_process_is_not_believed(tmp_path: Path) -> None:
    node = Node(tmp_path, SLUID)
    node.stepd(user=54321)
    assert node.job() == SLUID


def test_a_job_without_a_slurmstepd_in_sight_has_its_sluid(tmp_path: Path) -> None:
    assert Node(tmp_path, SLUID).job() == SLUID


def test_a_group_that_the_job_names_after_another_job_is_its_own(tmp_path: Path) -> None:
    node = Node(tmp_path, SLUID)
    node.stepd()
    user = f"{SCOPE}/{SLUID}/step_0/user"
    inner = f"{user}/slurmstepd.scope/{OTHER}/step_0/user/task_0"
    cgroup_v2(node.sysfs, {f"{inner}/cgroup.procs": f"{TASK}\n"})
    (node.mount / user).chmod(0o777)
    lay(node.proc, {f"{TASK}/cgroup": f"0::/{inner}\n"})
    assert node.job() == "4242"
