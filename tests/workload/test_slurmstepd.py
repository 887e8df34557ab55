"""Slurm's control groups of version 2 in both namings, and whose word their numbers are.

The trees are written after Slurm's sources (cgroup_v2.c, sluid.c, slurmstepd.c), not recorded.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.workload.owners import Groups, job_number
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

    def stepd(self, title: str = "slurmstepd: [4242.0]") -> None:
        status = "Name:\tslurmstepd\nUid:\t0\t0\t0\t0\n"
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


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts processes of others")
@pytest.mark.parametrize(("user", "job"), [(0, "4242"), (54321, SLUID)])
def test_a_real_process_is_believed_if_it_is_roots(
    user: int, job: str | None, tmp_path: Path
) -> None:
    node = Node(tmp_path, SLUID)
    titled = ["slurmstepd: [4242.0]", "600"]
    with subprocess.Popen(titled, executable="/bin/sleep", user=user) as process:
        leaf = node.mount / f"{SCOPE}/{SLUID}/step_0/slurm"
        lay(leaf, {"cgroup.procs": f"{process.pid}\n"})
        text = (node.proc / f"{TASK}/cgroup").read_text()
        found = job_number(Path("/proc"), node.mount, text, SLUID)
        process.kill()
    assert found == job


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
