"""A job's /dev/shm is looked at as what it is, and nothing else that it may put there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_bottleneck_exporter.host import sharedmemory
from support.programs import Program, ended, program
from support.rights import with_mounts_of_its_own
from support.rows import rows
from support.trees import lay

PROC = Path("/proc")
MEBIBYTE = 2**20
SIZE = 8 * MEBIBYTE
MOUNTS = """
def sh(line):
    subprocess.run(line, shell=True, check=True)
for line in sys.argv[2:]:
    sh(line)
if sys.argv[1] != "/":
    os.chroot(sys.argv[1])
    os.chdir("/")
ready()
told()
"""
TMPFS = f"mount -t tmpfs -o size={SIZE} none"


@contextmanager
def job(root: Path, *lines: str) -> Iterator[Program]:
    """A process whose root is `root`, once it has run `lines` of shell there."""
    way = with_mounts_of_its_own()
    with program(MOUNTS, root, *(f"cd {root} && {line}" for line in lines), way=way) as process:
        yield process


def test_our_own() -> None:
    result = sharedmemory.shared_memory_of(PROC, os.getpid())
    size = os.statvfs("/dev/shm")  # noqa: S108 - looked at only
    assert result is not None
    device, memory = result
    assert memory.size_bytes == size.f_blocks * size.f_frsize
    assert device == Path("/dev/shm").stat().st_dev  # noqa: S108 - likewise


HALF = f"head -c {SIZE // 2} /dev/zero >dev/shm/x"
LARGER = f"mount -t tmpfs -o size={2 * SIZE} none dev/shm"


@rows(
    "lines, found",
    {
        "its own": (("mkdir -p dev/shm", f"{TMPFS} dev/shm", HALF), (SIZE, SIZE // 2)),
        "one above the other": (
            ("mkdir dev", f"{TMPFS} dev", "mkdir dev/shm", f"{TMPFS} dev/shm", LARGER),
            (2 * SIZE, 0),
        ),
    },
)
def test_a_jobs_own_mount(lines: tuple[str, ...], found: tuple[int, int], tmp_path: Path) -> None:
    with job(tmp_path, *lines) as process:
        result = sharedmemory.shared_memory_of(PROC, process.pid)
        assert result is not None
        assert result[1] == sharedmemory.SharedMemory(*found)


@rows(
    "line",
    {
        "a folder": "mkdir -p dev/shm",
        "a link to a mount of its own": f"mkdir dev mine && {TMPFS} mine && ln -s /mine dev/shm",
        "a link to ours": "mkdir dev && ln -s /dev/shm dev/shm",
        "a link above": f"mkdir -p real/shm && {TMPFS} real/shm && ln -s real dev",
        "a link up and out": "mkdir dev && ln -s ../../../../../../../../dev/shm dev/shm",
        "a pipe": "mkdir dev && mkfifo dev/shm",
        "a file": "mkdir dev && touch dev/shm",
        "a file system of another kind": "mkdir -p dev/shm && mount -t proc none dev/shm",
        "a mount that is hidden": f"mkdir -p dev/shm && {TMPFS} dev/shm && {TMPFS} dev",
        "a mount that a link hides": (
            f"mkdir -p dev/shm && {TMPFS} dev/shm && {TMPFS} dev && ln -s /dev/shm dev/shm"
        ),
        "none": "true",
    },
)
def test_any_other_content_is_none(line: str, tmp_path: Path) -> None:
    with job(tmp_path, line) as process:
        assert sharedmemory.shared_memory_of(PROC, process.pid) is None


def test_of_a_process_that_is_gone_there_is_none() -> None:
    assert sharedmemory.shared_memory_of(PROC, ended()) is None


def test_where_process_1_is_unreadable_it_is_the_hosts_if_it_is_the_same(
    tmp_path: Path,
) -> None:
    ours = Path("/dev/shm").stat().st_dev  # noqa: S108 - looked at only
    for device, same in ((f"{os.major(ours)}:{os.minor(ours)}", True), ("0:0", False)):
        lay(tmp_path, {"1/mountinfo": f"20 1 {device} / /dev/shm rw - tmpfs x rw\n"})
        assert (sharedmemory.hosts_shared_memory(tmp_path) is not None) is same
