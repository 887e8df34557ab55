"""Groups that another user than root can have made do not name the owner of a process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.cgroup import cgroup_of, hidden_controllers, root_owned_prefix
from gpu_bottleneck_exporter.workload.identity import NO_OWNER, Owner
from gpu_bottleneck_exporter.workload.owners import Groups, read_owner
from gpu_bottleneck_exporter.workload.users import UserNames
from support.trees import cgroup_v1, cgroup_v2, lay

UID = "2c48913c-b29f-11e7-9350-020968147796"
ID = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961"
POD = f"kubepods/pod{UID}/{ID}"
SERVICE = "system.slice/notebook-bob.service"
DELEGATED = 0o777
"""A folder in which others than its owner may make more, as one that is a user's."""


def v2(sysfs: Path, path: str) -> Path:
    return cgroup_v2(sysfs, {f"{path}/cgroup.procs": ""})


def v1(sysfs: Path, path: str) -> Path:
    cgroup_v1(sysfs, {f"{name}/{path}/cgroup.procs": "" for name in ("systemd", "memory")})
    return sysfs / "fs/cgroup/systemd"


def text(path: str, make: object) -> str:
    return f"0::/{path}\n" if make is v2 else f"5:memory:/\n1:name=systemd:/{path}\n"


Make = Callable[[Path, str], Path]


class Host:
    """Recorded files of one process in a group."""

    def __init__(self, root: Path, make: Make, path: str) -> None:
        self.proc, self.sysfs = root / "proc", root / "sys"
        self.mount = make(self.sysfs, path)
        lay(self.proc, {"1/cgroup": text(path, make), "1/status": "Uid:\t7\t7\t7\t7\n"})

    def owner(self) -> Owner:
        return Groups(self.proc, self.sysfs).owner(1)


@pytest.mark.parametrize("make", [v1, v2])
@pytest.mark.parametrize("name", [POD, f"docker-{ID}.scope", "slurm/uid_7/job_8/step_0"])
def test_a_name_below_a_group_that_was_delegated_is_only_a_name(
    make: Make, name: str, tmp_path: Path
) -> None:
    host = Host(tmp_path, make, f"{SERVICE}/{name}")
    assert host.owner() != NO_OWNER, "root makes what it likes"
    (host.mount / SERVICE).chmod(DELEGATED)
    assert host.owner() == NO_OWNER


@pytest.mark.parametrize("make", [v1, v2])
def test_a_container_to_which_its_own_group_was_delegated_is_one(
    make: Make, tmp_path: Path
) -> None:
    host = Host(tmp_path, make, f"{POD}/init/docker/{'c' * 64}")
    pod = Owner(pod_uid=UID, container_id=ID, source="cgroup")
    assert host.owner() == pod
    (host.mount / POD).chmod(DELEGATED)
    assert host.owner() == pod


def test_a_name_of_a_group_that_cannot_be_found_is_not_believed(tmp_path: Path) -> None:
    assert root_owned_prefix(tmp_path, "", f"/{POD}") == "/"
    v2(tmp_path, "a")
    assert root_owned_prefix(tmp_path, "", "/a/c") == "/a"
    assert root_owned_prefix(tmp_path, "", "/b/c") == "/"
    assert root_owned_prefix(tmp_path, "pids", "/a") == "/"


def test_groups_nested_beyond_the_length_of_a_path_hide_nothing_else(tmp_path: Path) -> None:
    v2(tmp_path, "a")
    line = "0::" + f"/{'x' * 250}" * 16 + "\n"
    assert cgroup_of(line, tmp_path).unified is None
    assert hidden_controllers(line, tmp_path) == {"cpu", "memory", "unified"}
    assert root_owned_prefix(tmp_path, "", line[3:-1]) == "/"
    assert root_owned_prefix(tmp_path, "", f"/a{line[3:-1]}") == "/a"


def test_a_group_named_like_a_pattern_is_itself(tmp_path: Path) -> None:
    root = cgroup_v1(tmp_path, {"memory/a/one/memory.stat": "", "cpu/a/one/cpu.stat": ""})
    assert cgroup_of("5:memory:/../one\n", tmp_path).memory == root / "memory/a/one"
    assert cgroup_of("5:memory:/../*\n", tmp_path).memory is None
    assert cgroup_of("5:memory:/../**x\n", tmp_path).memory is None


@pytest.mark.parametrize("slurm", ["system.slice/slurmstepd.scope/job_1", None])
def test_an_environment_is_believed_where_slurm_has_no_groups(
    slurm: str | None, tmp_path: Path
) -> None:
    host = Host(tmp_path, v2, slurm or "user.slice")
    lay(host.proc, {"2/environ": "SLURM_JOB_ID=4\0", "2/cgroup": "0::/user.slice\n"})
    groups = Groups(host.proc, host.sysfs)
    result = read_owner(host.proc, 2, UserNames(host.proc), groups).slurm_job_id
    assert result == (None if slurm else "4")
