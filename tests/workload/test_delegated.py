"""Names of control groups that users made, whatever bytes these have: they prove no owner."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.owners import Groups
from support.groups import MOUNTS, container, group, move, usable
from support.leftovers import mark
from support.programs import program
from support.rights import with_cgroups_of_its_own, with_users_of_its_own
from support.rows import rows

PROC, SYSFS = Path("/proc"), Path("/sys")
ANY_NAME = st.binary(min_size=1, max_size=12).map(
    lambda name: name.translate(None, b"/\n\0").strip(b".") or b"x"
)
TAILS = st.sampled_from([b"", b" (deleted)", b"\xff", b"/..", b"/" + b"y" * 300, b"/y" * 2100])
LEVELS = st.lists(st.tuples(ANY_NAME, st.booleans(), st.booleans()), min_size=1, max_size=5)
"""Folders: bytes in the name, whether it is root's only, and whether it is there."""


def nested(mount: bytes, levels: Sequence[tuple[bytes, bool, bool]]) -> tuple[bytes, int]:
    """The path of nested groups that name containers 0, 1, …, and how many of them are root's."""
    path, roots, sound = b"", 0, True
    for number, (extra, roots_only, there) in enumerate(levels):
        name = container(number).encode() if extra < b"@" else extra + container(number).encode()
        path += b"/" + name
        if not there or b"/" in name:
            sound = False
        if sound:
            folder = Path(os.fsdecode(mount + path))
            folder.mkdir()
            folder.chmod(0o755 if roots_only else 0o777)
            roots = number + 1
            sound = roots_only
    return path, roots


@given(LEVELS, TAILS, st.sampled_from([b"", b"/..", b"/../.."]))
def test_the_owner_is_never_named_by_a_folder_below_the_first_that_is_not_roots(
    levels: Sequence[tuple[bytes, bool, bool]], tail: bytes, above: bytes
) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        mount, process = root / "sys/fs/cgroup", root / "proc/1"
        mount.mkdir(parents=True)
        process.mkdir(parents=True)
        (mount / "cgroup.controllers").touch()
        path, roots = nested(bytes(mount), levels)
        (process / "cgroup").write_bytes(b"0::" + above + path + tail + b"\n")
        owner = Groups(root / "proc", root / "sys").owner(1)
        assert owner.source == ("cgroup" if owner.container_id else None)
        assert owner.container_id is None or int(owner.container_id, 16) < roots


@pytest.mark.processes
@pytest.mark.parametrize("mount", MOUNTS.values(), ids=MOUNTS)
@rows(
    "below",
    {
        "a plain name": [],
        "no UTF-8": [b"\xff\xfe"],
        "deleted": [b"x (deleted)"],
        "no path can name it": [*[b"x" * 250] * 15, b"x" * 196],  # 4 090 characters
        "a newline's look-alike": ["\u2028".encode()],
    },
)
def test_a_users_real_groups_name_no_owner(mount: Path, below: Sequence[bytes]) -> None:
    user, result = f"{mark()}.service", container(7)
    names = [user.encode(), b"kubepods", result.encode(), *below]
    with group(usable(mount), *names) as folder, program("ready(); told()") as process:
        move(process.pid, folder)
        assert result in (read(PROC / f"{process.pid}/cgroup") or ""), "it does say so"
        assert Groups(PROC, SYSFS).owner(process.pid) == Owner()


@pytest.mark.processes
@pytest.mark.parametrize("mount", MOUNTS.values(), ids=MOUNTS)
@pytest.mark.parametrize(
    ("names", "job"),
    [
        ([b"pbs_jobs.service", b"jobs", b"7.head"], "pbs-7.head"),
        ([b"lsf", b"c", b"job.8.9.10"], "lsf-8"),
        ([b"lxc", b"101", b"ns"], "lxc-101"),
    ],
)
def test_a_job_is_that_of_a_group_that_root_made(
    mount: Path, names: Sequence[bytes], job: str
) -> None:
    top = f"{mark()}-{secrets.token_hex(4)}.slice"
    with (
        group(usable(mount), top.encode(), *names) as folder,
        program("ready(); told()") as process,
    ):
        move(process.pid, folder)
        assert Groups(PROC, SYSFS).owner(process.pid) == Owner(), "a user's own"
        os.chown(mount / top, 0, 0)
        assert Groups(PROC, SYSFS).owner(process.pid) == Owner(job=job, source="cgroup")


@pytest.mark.processes
@pytest.mark.parametrize("mount", MOUNTS.values(), ids=MOUNTS)
@pytest.mark.parametrize("below", [b"\xff\xfe", b"x (deleted)"])
def test_names_of_groups_inside_a_container_do_not_change_its_owner(
    mount: Path, below: bytes
) -> None:
    identity = f"{mark()}{secrets.token_hex(16)}"
    with (
        group(usable(mount), f"docker-{identity}.scope".encode(), below) as folder,
        program("ready(); told()") as process,
    ):
        move(process.pid, folder)
        assert Groups(PROC, SYSFS).owner(process.pid) == Owner(
            container_id=identity, source="cgroup"
        )


CONTAINERS = """
import sys
from pathlib import Path
from gpu_bottleneck_exporter.workload.owners import Groups
groups = Groups(Path("/proc"), Path("/sys"))
for pid in sys.argv[1:]:
    print(":/../" in Path(f"/proc/{pid}/cgroup").read_text(errors="replace"))
    print(groups.owner(int(pid)).container_id)
"""


@pytest.mark.processes
def test_from_a_namespace_of_our_own_others_are_found_where_they_are() -> None:
    """A user makes folders like a container's path as it is seen from ours, nearer to the root."""
    mount, tag = usable(MOUNTS["pids"]), secrets.token_hex(16)
    result, pod = f"docker-{mark()}{tag}.scope".encode(), f"pod{tag}".encode()
    top, user = f"{mark()}-{tag}.slice".encode(), f"{mark()}-{tag}.user".encode()
    with (
        group(mount, user, pod, result, b"\xff") as decoy,
        group(mount, top, b"inner", pod, result) as there,
        group(mount / os.fsdecode(top) / "inner", f"ours-{tag}".encode()),
        program("ready(); told()") as intruder,
        program("ready(); told()") as process,
    ):
        os.chown(mount / os.fsdecode(top), 0, 0)
        move(intruder.pid, decoy)
        move(process.pid, there)
        ours = mount / os.fsdecode(top) / "inner" / f"ours-{tag}"
        way = with_cgroups_of_its_own([ours], mounted=False)
        command = [*way, sys.executable, "-c", CONTAINERS, f"{process.pid}", f"{intruder.pid}"]
        done = subprocess.run(command, capture_output=True, check=True, env=os.environ, text=True)
    assert done.stdout.split() == ["True", f"{mark()}{tag}", "True", "None"]


@pytest.mark.processes
@pytest.mark.parametrize("mount", MOUNTS.values(), ids=MOUNTS)
def test_where_user_numbers_are_not_mapped_no_group_is_known_to_be_roots(mount: Path) -> None:
    user, result = f"{mark()}.service".encode(), container(7).encode()
    with group(usable(mount), user, result) as folder, program("ready(); told()") as process:
        move(process.pid, folder)
        command = [*with_users_of_its_own(), sys.executable, "-c", CONTAINERS, f"{process.pid}"]
        done = subprocess.run(command, capture_output=True, check=True, env=os.environ, text=True)
    assert done.stdout.split() == ["False", "None"]
