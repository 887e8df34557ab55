"""On which file systems files are open: real mounts, and what mountinfo may say."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.host.mounts import (
    REMOTE,
    Place,
    mount_points,
    mounts_of_open_files,
    place_of,
)
from support.programs import program
from support.rights import with_mounts_of_its_own
from support.rows import rows
from support.tools import require
from support.trees import lay, links

PROC = Path("/proc")
OPEN = "f = open(sys.argv[1], 'w'); ready(); told()"


def mount(at: str, kind: str, optional: str = "shared:1 ") -> str:
    return f"36 35 98:0 / {at} rw,noatime {optional}- {kind} server:/dir rw\n"


KINDS = {
    Place.REMOTE: "nfs4 lustre ceph virtiofs fuse.sshfs fuse",
    Place.LOCAL: "ext4 tmpfs overlay fuseblk fusectl",
    Place.UNKNOWN: "fuse.fuse-overlayfs",
}


def test_where_the_data_of_a_file_system_is() -> None:
    for place, kinds in KINDS.items():
        assert {kind: place_of(kind) for kind in kinds.split()} == dict.fromkeys(
            kinds.split(), place
        )
    assert all(name == name.lower().strip() for name in REMOTE), "as mountinfo names them"


ROOT, DATA = mount("/", "ext4"), mount("/data", "nfs4")


@rows(
    "mountinfo, file, found",
    {
        "the root": (ROOT, "/data/x", {"/": "ext4"}),
        "the longest that fits": (ROOT + DATA, "/data/x/y", {"/data": "nfs4"}),
        "not one that only begins alike": (ROOT + DATA, "/database/x", {"/": "ext4"}),
        "the last on one point": (DATA + mount("/data", "zfs"), "/data/x", {"/data": "zfs"}),
        "no optional field": (mount("/a", "nfs", optional=""), "/a/x", {"/a": "nfs"}),
        "two of them": (mount("/a", "nfs", "shared:1 master:2 "), "/a/x", {"/a": "nfs"}),
        "odd characters": (
            mount(r"/my\040\134\011\012-", "nfs"),
            "/my \\\t\n-/x",
            {"/my \\\t\n-": "nfs"},
        ),
        "a backslash": (mount(r"/a\134040b", "nfs"), r"/a\040b/x", {r"/a\040b": "nfs"}),
        "a deleted file": (ROOT, "/x (deleted)", {"/": "ext4"}),
        "a device": (ROOT, "/dev/null", {}),
        "a socket": (ROOT, "socket:[5]", {}),
        "a file of another namespace": (DATA, "/elsewhere", {}),
        "an empty file": ("", "/x", {}),
        "lines that are too short": ("36 35 98:0 / / rw\nx\n\n", "/x", {}),
    },
)
def test_a_file_is_on_the_mount_that_holds_it(
    tmp_path: Path, mountinfo: str, file: str, found: dict[str, str]
) -> None:
    lay(tmp_path, {"7/mountinfo": mountinfo})
    links(tmp_path / "7/fd", file)
    assert mounts_of_open_files(tmp_path, 7) == found


def test_a_real_file(tmp_path: Path) -> None:
    with program(OPEN, tmp_path / "file") as one:
        points = mounts_of_open_files(PROC, one.pid)
        assert any(tmp_path.resolve().is_relative_to(point) for point in points)
    assert mounts_of_open_files(PROC, one.pid) == {}, "it has ended"


def test_a_real_mount_with_a_name_of_odd_characters(tmp_path: Path) -> None:
    require("mount", "mount")
    point = tmp_path / "odd name\twith\n\\040 and \x1b[31m"
    point.mkdir()
    code = "subprocess.run(['mount', '-t', 'tmpfs', 'none', os.path.dirname(sys.argv[1])])\n"
    with program(code + OPEN, point / "file", way=with_mounts_of_its_own()) as one:
        assert mounts_of_open_files(PROC, one.pid)[str(point)] == "tmpfs"


def test_what_is_mounted_somewhere_is_the_last(tmp_path: Path) -> None:
    lines = mount("/dev/shm", "ext4"), mount("/dev/shm", "tmpfs").replace("98:0", "0:25")  # noqa: S108
    process = lay(tmp_path, {"mountinfo": mount("/", "ext4") + "".join(lines)})
    found = mount_points(process).get("/dev/shm")  # noqa: S108
    assert found is not None
    assert (found.kind, found.device, found.root) == ("tmpfs", "0:25", "/")
    assert mount_points(process).get("/dev") is None
    assert mount_points(tmp_path / "gone").get("/") is None
