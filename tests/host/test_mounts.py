"""File systems on which files are open and waited for, by recorded files.

For real ones that are waited for, see sampling/test_storage.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.host import mounts
from gpu_bottleneck_exporter.host.mounts import Place, Places, mount_points, mounts_of_open_files
from support.programs import program
from support.rows import rows
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
        assert {mounts.place_of(kind) for kind in kinds.split()} == {place}, kinds
    assert all(name == name.lower().strip() for name in mounts.REMOTE_TYPES), (
        "as mountinfo names them"
    )


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
    with program(OPEN, tmp_path / "file") as process:
        points = mounts_of_open_files(PROC, process.pid)
        assert any(tmp_path.resolve().is_relative_to(point) for point in points)
    assert mounts_of_open_files(PROC, process.pid) == {}, "it has ended"


def test_the_last_mount_at_a_place_counts(tmp_path: Path) -> None:
    lines = mount("/dev/shm", "ext4"), mount("/dev/shm", "tmpfs").replace("98:0", "0:25")  # noqa: S108
    process = lay(tmp_path, {"mountinfo": mount("/", "ext4") + "".join(lines)})
    result = mount_points(process).get("/dev/shm")  # noqa: S108
    assert result is not None
    assert (result.kind, result.device, result.root) == ("tmpfs", "0:25", "/")
    assert mount_points(process).get("/dev") is None
    assert mount_points(tmp_path / "gone").get("/") is None


LOCAL, FAR, UNKNOWN = Place.LOCAL, Place.REMOTE, Place.UNKNOWN
MOUNTS = {"/": (20, "overlay"), "/data": (21, "nfs4"), "/scratch": (22, "xfs")}
FUSED = {**MOUNTS, "/bucket": (23, "fuse.bucket"), "/sys/fs/fuse/connections": (30, "fusectl")}
LAYERED = {**FUSED, "/image": (24, "fuse.squashfuse")}
READS = "0 0x3 0x7f00 0x1000 0x0 0x0 0x0 0x7ffc 0x7fff\n"
FAULTS = "-1 0x7ffc 0x7fff\n"
OPENS = "257 0xffffff9c 0x7f00 0x0 0x0 0x0 0x0 0x7ffc 0x7fff\n"
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Case:
    """Thread 8 of process 7, whose descriptor 3 is of `mount`, and which has `files` open."""

    mounts: dict[str, tuple[int, str]]
    call: str
    place: Place = UNKNOWN
    channel: str = "folio_wait_bit"
    files: tuple[str, ...] = ()
    mount: int = 0

    def recorded(self, proc: Path) -> Places:
        """Places in the kernel's files about it."""
        lines = (f"{n} 1 0:{n} / {at} rw - {kind} x rw\n" for at, (n, kind) in self.mounts.items())
        task = {"7/task/8/syscall": self.call, "7/task/8/wchan": self.channel}
        info = {"7/fdinfo/3": f"pos:\t0\nflags:\t0100000\nmnt_id:\t{self.mount}\nino:\t9\n"}
        lay(proc, {"7/mountinfo": "".join(lines), "7/ns/none": "", **task, **info})
        (proc / "7/ns/mnt").symlink_to("mnt:[4026531841]")
        links(proc / "7/fd", *self.files)
        return Places(proc)


CASES = {
    "a remote file": Case(MOUNTS, READS, FAR, files=("/data/x",), mount=21),
    "a local file": Case(MOUNTS, READS, LOCAL, files=("/scratch/x",), mount=22),
    "a file of FUSE": Case(FUSED, READS, FAR, files=("/bucket/x",), mount=23),
    "a file of FUSE over other files": Case(LAYERED, READS, files=("/image/x",), mount=24),
    "nothing remote is mounted": Case({"/": (20, "ext4")}, FAULTS, LOCAL),
    "a path on NFS": Case(MOUNTS, OPENS, FAR, "rpc_wait_bit_killable"),
    "a path on FUSE": Case(FUSED, OPENS, FAR, "request_wait_answer"),
    "a path on one of two FUSEs": Case(LAYERED, OPENS, channel="request_wait_answer"),
    "a path, and no file open": Case(MOUNTS, OPENS),
    "a page, a remote file open": Case(MOUNTS, FAULTS, FAR, files=("/data/x",)),
    "a page, local files open": Case(MOUNTS, FAULTS, LOCAL, files=("/scratch/x", "/log")),
    "a page, files of both open": Case(MOUNTS, FAULTS, files=("/data/x", "/log")),
    "a device": Case(MOUNTS, READS, files=("/dev/nvidia0", "/data/x"), mount=20),
    "a socket": Case(MOUNTS, READS, files=("socket:[5]", "/data/x"), mount=9),
    "io_uring": Case(MOUNTS, READS, FAR, files=("anon_inode:[io_uring]", "/data/x"), mount=9),
    "the number of another file by now": Case(MOUNTS, READS, files=("/data/x",), mount=99),
    "runs by now": Case(MOUNTS, "running\n", channel="nfs_wait", files=("/data/x",), mount=21),
    "nonsense": Case(MOUNTS, "nonsense\n", channel="nfs_wait"),
    "may not be read": Case(MOUNTS, "", channel="nfs_wait"),
    "mounts unknown": Case({}, READS, channel="nfs_wait", files=("/data/x",), mount=21),
}


@rows("case", CASES)
def test_a_place_is_named_only_where_it_is_certain(tmp_path: Path, case: Case) -> None:
    assert case.recorded(tmp_path).locate(7, 8, 0) is case.place


def test_mounts_are_read_again_after_a_while(tmp_path: Path) -> None:
    places = Case(MOUNTS, READS, files=("/new/x",), mount=25).recorded(tmp_path)
    assert places.locate(7, 8, 0) is UNKNOWN
    lay(tmp_path, {"7/mountinfo": "20 1 0:1 / / rw - xfs x rw\n25 1 0:2 / /new rw - nfs x rw\n"})
    assert places.locate(7, 8, 9 * SECOND) is UNKNOWN
    assert places.locate(7, 8, 11 * SECOND) is FAR


def test_the_cache_is_bounded_for_many_processes(tmp_path: Path) -> None:
    places = Case(MOUNTS, FAULTS, files=("/data/x",)).recorded(tmp_path)
    for pid in range(1000, 2000):
        (tmp_path / f"{pid}").symlink_to("7")
        assert places.locate(pid, 8, 0) is FAR
    assert len(places._types) < 300
