"""Where the files are that processes wait for: recorded ones, and real ones on FUSE and a disk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.mounts import Place, Places
from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.host.threads import Threads
from gpu_bottleneck_exporter.host.waits import Wait
from support.hangs import LOOKUP, READ, unanswering
from support.programs import program
from support.rows import rows
from support.trees import lay, links
from support.waiting import until

PROC = Path("/proc")
LOCAL, REMOTE, UNKNOWN = Place.LOCAL, Place.REMOTE, Place.UNKNOWN
MOUNTS = {"/": (20, "overlay"), "/data": (21, "nfs4"), "/scratch": (22, "xfs")}
FUSED = {**MOUNTS, "/bucket": (23, "fuse.bucket"), "/sys/fs/fuse/connections": (30, "fusectl")}
LAYERED = {**FUSED, "/image": (24, "fuse.squashfuse")}
READS = "17 0x3 0x7f00 0x1000 0x0 0x0 0x0 0x7ffc 0x7fff\n"
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
        """What the kernel tells of it."""
        lines = (f"{n} 1 0:{n} / {at} rw - {kind} x rw\n" for at, (n, kind) in self.mounts.items())
        task = {"7/task/8/syscall": self.call, "7/task/8/wchan": self.channel}
        info = {"7/fdinfo/3": f"pos:\t0\nflags:\t0100000\nmnt_id:\t{self.mount}\nino:\t9\n"}
        lay(proc, {"7/mountinfo": "".join(lines), "7/ns/none": "", **task, **info})
        (proc / "7/ns/mnt").symlink_to("mnt:[4026531841]")
        links(proc / "7/fd", *self.files)
        return Places(proc)


CASES = {
    "a remote file": Case(MOUNTS, READS, REMOTE, files=("/data/x",), mount=21),
    "a local file": Case(MOUNTS, READS, LOCAL, files=("/scratch/x",), mount=22),
    "a file of FUSE": Case(FUSED, READS, REMOTE, files=("/bucket/x",), mount=23),
    "a file of FUSE over other files": Case(LAYERED, READS, files=("/image/x",), mount=24),
    "nothing remote is mounted": Case({"/": (20, "ext4")}, FAULTS, LOCAL),
    "a path on NFS": Case(MOUNTS, OPENS, REMOTE, "rpc_wait_bit_killable"),
    "a path on FUSE": Case(FUSED, OPENS, REMOTE, "request_wait_answer"),
    "a path on one of two FUSEs": Case(LAYERED, OPENS, channel="request_wait_answer"),
    "a path, and no file open": Case(MOUNTS, OPENS),
    "a page, a remote file open": Case(MOUNTS, FAULTS, REMOTE, files=("/data/x",)),
    "a page, local files open": Case(MOUNTS, FAULTS, LOCAL, files=("/scratch/x", "/log")),
    "a page, files of both open": Case(MOUNTS, FAULTS, files=("/data/x", "/log")),
    "a device": Case(MOUNTS, READS, files=("/dev/nvidia0", "/data/x"), mount=20),
    "a socket": Case(MOUNTS, READS, files=("socket:[5]", "/data/x"), mount=9),
    "io_uring": Case(MOUNTS, READS, REMOTE, files=("anon_inode:[io_uring]", "/data/x"), mount=9),
    "the number of another file by now": Case(MOUNTS, READS, files=("/data/x",), mount=99),
    "runs by now": Case(MOUNTS, "running\n", channel="nfs_wait", files=("/data/x",), mount=21),
    "nonsense": Case(MOUNTS, "nonsense\n", channel="nfs_wait"),
    "may not be read": Case(MOUNTS, "", channel="nfs_wait"),
    "mounts unknown": Case({}, READS, channel="nfs_wait", files=("/data/x",), mount=21),
}


@rows("case", CASES)
def test_a_place_is_told_only_where_it_is_sure(tmp_path: Path, case: Case) -> None:
    assert case.recorded(tmp_path).of(7, 8, 0) is case.place


def test_mounts_are_read_again_after_a_while(tmp_path: Path) -> None:
    places = Case(MOUNTS, READS, files=("/new/x",), mount=25).recorded(tmp_path)
    assert places.of(7, 8, 0) is UNKNOWN
    lay(tmp_path, {"7/mountinfo": "20 1 0:1 / / rw - xfs x rw\n25 1 0:2 / /new rw - nfs x rw\n"})
    assert places.of(7, 8, 9 * SECOND) is UNKNOWN
    assert places.of(7, 8, 11 * SECOND) is REMOTE


def test_no_more_is_kept_of_many_processes(tmp_path: Path) -> None:
    places = Case(MOUNTS, FAULTS, files=("/data/x",)).recorded(tmp_path)
    for pid in range(1000, 2000):
        (tmp_path / f"{pid}").symlink_to("7")
        assert places.of(pid, 8, 0) is REMOTE
    assert len(places._known) < 300


READER = "f = os.open(sys.argv[1] + '/file', os.O_RDONLY); ready()\n"
HANGS = {
    "a path": "ready(); os.stat(sys.argv[1] + '/file')",
    "a read": READER + "os.read(f, 9)",
    "a read in a thread": READER + "named('loads', lambda: os.read(f, 9)); told()",
    "a page": "import mmap\n" + READER + "mmap.mmap(f, 4096, prot=mmap.PROT_READ)[0]",
}


@contextmanager
def waiting(code: str, folder: Path, request: int, subtype: str = "") -> Iterator[tuple[int, int]]:
    """A process whose `code` waits for a file on FUSE in `folder`, and its thread that does."""
    with unanswering(folder, request, subtype) as server, program(code, folder) as one:
        try:
            yield one.pid, until(lambda: waiting_thread(one.pid), "a wait for a file")
        finally:
            server.tell("answer")  # until then nobody can kill it


def waiting_thread(pid: int) -> int | None:
    reader, threads = ProcessReader(PROC, pid), Threads(PROC, pid)
    try:
        if reader.wait() is Wait.DISK:
            return pid
        seen = threads.look(time.monotonic_ns())
        return next((thread.tid for thread in seen if thread.wait is Wait.DISK), None)
    finally:
        reader.close()
        threads.close()


@pytest.mark.parametrize(("subtype", "place"), [("", REMOTE), ("squashfuse", UNKNOWN)])
@pytest.mark.parametrize("how", HANGS)
def test_who_waits_for_fuse(tmp_path: Path, how: str, subtype: str, place: Place) -> None:
    request = LOOKUP if how == "a path" else READ
    with waiting(HANGS[how], tmp_path, request, subtype) as (pid, tid):
        # It may have been caught in a passing wait for the disk, from which it loads a module.
        until(lambda: Places(PROC).of(pid, tid, 0) is place, "the place of its file")
