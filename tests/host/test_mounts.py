"""On which file systems files are open: real mounts, and what mountinfo may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.mounts import (
    REMOTE,
    Place,
    mount_points,
    mounts_of_open_files,
    place_of,
)
from support.programs import descriptors, program
from support.rights import with_mounts_of_its_own
from support.rows import rows
from support.tools import require
from support.trees import lay

PROC = Path("/proc")
OPEN = "f = open(sys.argv[1], 'w'); ready(); told()"


def mount(at: str, kind: str, optional: str = "shared:1 ") -> str:
    return f"36 35 98:0 / {at} rw,noatime {optional}- {kind} server:/dir rw\n"


def opened(proc: Path, mountinfo: str, *files: str) -> dict[str, str]:
    lay(proc, {"7/mountinfo": mountinfo, "7/fd/none": ""})
    (proc / "7/fd/none").unlink()
    for number, file in enumerate(files):
        (proc / f"7/fd/{number}").symlink_to(file)
    return mounts_of_open_files(proc, 7)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("nfs4", Place.REMOTE),
        ("lustre", Place.REMOTE),
        ("ceph", Place.REMOTE),
        ("virtiofs", Place.REMOTE),
        ("ext4", Place.LOCAL),
        ("tmpfs", Place.LOCAL),
        ("overlay", Place.LOCAL),
        ("fuseblk", Place.LOCAL),
        ("fusectl", Place.LOCAL),
        ("fuse.sshfs", Place.REMOTE),
        ("fuse", Place.REMOTE),
        ("fuse.fuse-overlayfs", Place.UNKNOWN),
    ],
)
def test_where_the_data_of_a_file_system_is(kind: str, place: Place) -> None:
    assert place_of(kind) is place


def test_remote_ones_are_named_as_mountinfo_does() -> None:
    assert all(name == name.lower().strip() for name in REMOTE)


@rows(
    "mountinfo, file, found",
    {
        "the root": (mount("/", "ext4"), "/data/x", {"/": "ext4"}),
        "the longest that fits": (
            mount("/", "ext4") + mount("/data", "nfs4"),
            "/data/x/y",
            {"/data": "nfs4"},
        ),
        "not one that only begins alike": (
            mount("/", "ext4") + mount("/data", "nfs4"),
            "/database/x",
            {"/": "ext4"},
        ),
        "the last of those on one point": (
            mount("/data", "ext4") + mount("/data", "lustre"),
            "/data/x",
            {"/data": "lustre"},
        ),
        "no optional field": (mount("/data", "nfs", optional=""), "/data/x", {"/data": "nfs"}),
        "two of them": (
            mount("/data", "nfs", optional="shared:1 master:2 "),
            "/data/x",
            {"/data": "nfs"},
        ),
        "a name with odd characters": (
            mount("/my\\040data\\134\\011\\012-", "nfs"),
            "/my data\\\t\n-/x",
            {"/my data\\\t\n-": "nfs"},
        ),
        "a backslash": (mount("/a\\134040b", "nfs"), "/a\\040b/x", {"/a\\040b": "nfs"}),
        "a deleted file": (mount("/", "ext4"), "/x (deleted)", {"/": "ext4"}),
        "a device": (mount("/", "ext4"), "/dev/null", {}),
        "a socket": (mount("/", "ext4"), "socket:[5]", {}),
        "a file of another namespace": (mount("/data", "ext4"), "/elsewhere", {}),
        "an empty file": ("", "/x", {}),
        "lines that are too short": ("36 35 98:0 / / rw\nx\n\n", "/x", {}),
    },
)
def test_a_file_is_on_the_mount_that_holds_it(
    tmp_path: Path, mountinfo: str, file: str, found: dict[str, str]
) -> None:
    assert opened(tmp_path, mountinfo, file) == found


def test_a_real_file(tmp_path: Path) -> None:
    with program(OPEN, tmp_path / "file") as one:
        before = descriptors()
        points = mounts_of_open_files(PROC, one.pid)
        assert any(tmp_path.resolve().is_relative_to(point) for point in points)
        assert descriptors() <= before


def test_a_real_mount_with_a_name_of_odd_characters(tmp_path: Path) -> None:
    require("mount", "mount")
    point = tmp_path / "odd name\twith\n\\040 and \x1b[31m"
    point.mkdir()
    code = "subprocess.run(['mount', '-t', 'tmpfs', 'none', os.path.dirname(sys.argv[1])])\n"
    with program(code + OPEN, point / "file", way=with_mounts_of_its_own()) as one:
        assert mounts_of_open_files(PROC, one.pid)[str(point)] == "tmpfs"


def test_nobody_has_files_open() -> None:
    with program("") as one:
        pass
    assert mounts_of_open_files(PROC, one.pid) == {}


def test_what_is_mounted_somewhere_is_the_last(tmp_path: Path) -> None:
    lines = mount("/dev/shm", "ext4"), mount("/dev/shm", "tmpfs").replace("98:0", "0:25")  # noqa: S108
    process = lay(tmp_path, {"mountinfo": mount("/", "ext4") + "".join(lines)})
    found = mount_points(process).get("/dev/shm")  # noqa: S108
    assert found is not None
    assert (found.kind, found.device, found.root) == ("tmpfs", "0:25", "/")
    assert mount_points(process).get("/dev") is None
    assert mount_points(tmp_path / "gone").get("/") is None
