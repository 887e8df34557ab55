"""Tenants that share the time for reads that may block: a job cannot multiply them."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.workload.owners import tenants
from support.rows import rows
from support.trees import lay

STATUS = "Name:\tx\nState:\tS (sleeping)\nUid:\t{0}\t{0}\t{0}\t{0}\n"
ID = "0123456789abcdef" * 4
POD = "kubepods-pod01234567_0123_0123_0123_0123456789ab.slice"
LOGIN = "/user.slice/user-1000.slice/user@1000.service"
Process = tuple[str, int]
"""Its control group and its user."""


@rows(
    "one, other, same",
    {
        "processes of a container": ((f"/docker/{ID}", 0), (f"/docker/{ID}", 7), True),
        "two containers of a pod": ((f"/{POD}/{ID}", 0), (f"/{POD}/{ID[::-1]}", 0), True),
        "two containers": ((f"/docker/{ID}", 0), (f"/docker/{ID[::-1]}", 0), False),
        "steps of a Slurm job": (
            ("/system.slice/slurmstepd.scope/job_7/step_0", 5),
            ("/system.slice/slurmstepd.scope/job_7/step_1", 6),
            True,
        ),
        "sub-uids of a login": ((f"{LOGIN}/a", 1000), (f"{LOGIN}/b", 165_536), True),
        "a name like a login's": ((f"{LOGIN}/user.slice/user-7.slice", 1), (LOGIN, 1), True),
        "two users": (("/", 1000), ("/", 1001), False),
    },
)
def test_a_tenant_is_a_group_set_apart_by_root(
    one: Process,
    other: Process,
    same: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    for pid, (group, user) in enumerate((one, other), 1):
        lay(tmp_path, {f"{pid}/cgroup": f"0::{group}\n", f"{pid}/status": STATUS.format(user)})
        lay(tmp_path / "sys/fs/cgroup", {"cgroup.controllers": "", f".{group}/cgroup.procs": ""})
    tenant = tenants(tmp_path, tmp_path / "sys")
    assert (tenant(1) == tenant(2)) is same
    assert tenant(3) == "", "it has ended"
