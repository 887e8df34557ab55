"""I/O of which the kernel does not account: real processes on FUSE, and their twins on others."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.bucket import Counters, Role
from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.settings import Settings
from support.hangs import unanswering
from support.programs import program
from support.rows import rows
from support.ticks import note_split
from support.waiting import until

LATE_SECONDS = 0.02
SIZE = 2**17
FILES = f"""
import mmap
kept = os.open(sys.argv[1] + "/file", os.O_RDWR)
page = bytes({SIZE})
r, w = os.pipe()
def reads():
    while True: os.pread(kept, {SIZE}, 0)
def writes():
    while True: os.pwrite(kept, page, 0)
def piped():
    "Reads what a worker hands over, and now and then a little of a file."
    if os.fork() == 0:
        while True: os.write(w, page)
    while True:
        for _ in range(20): os.read(r, {SIZE})
        os.pread(kept, 9, 0)
def cached():
    f = os.open(sys.argv[2] + "/file", os.O_RDWR | os.O_CREAT)
    os.write(f, page)
    while True: os.pread(f, {SIZE}, 0); time.sleep(0.001)
def worker(do):
    if os.fork() == 0: do()
    locked()
"""
NOTHING = 0


@contextmanager
def watched(tmp_path: Path, code: str) -> Iterator[HostSampler]:
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as disk,
        unanswering(tmp_path, NOTHING, LATE_SECONDS),
        program(f"{FILES}\nready(); {code}", tmp_path, disk) as process,
    ):
        watch = HostSampler(Settings())
        watch.hold("a", frozenset({process.pid}))
        watch.start()
        try:
            yield watch
        finally:
            watch.stop()
            process.end()


def used(watch: HostSampler, role: str) -> Counters:
    """Usage of the processes of that role, in total."""
    note_split(watch, "a", 0, {UNKNOWN: 1})
    feed = watch.feed("a")
    return feed.history.total.of(role).used if feed else Counters()


@rows(
    "code, role, field",
    {
        "a main that reads": ("reads()", Role.MAIN, "read_bytes"),
        "a main that writes": ("writes()", Role.MAIN, "written_bytes"),
        "a worker that reads": ("worker(reads)", Role.WORKER, "read_bytes"),
    },
)
def test_traffic_on_fuse_is_counted(tmp_path: Path, code: str, role: str, field: str) -> None:
    with watched(tmp_path, code) as watch:

        def counted() -> bool:
            result = used(watch, role)
            return (getattr(result, field) or 0) > 10 * SIZE

        until(counted, "what it moves")
        result = used(watch, role)
        chars = result.read_chars if field == "read_bytes" else result.write_chars
        # Where the kernel accounts for FUSE, it does so before a write has ended.
        assert (getattr(result, field) or 0) <= chars + SIZE


@rows("code, reads", {"a pipe": ("piped()", 40 * SIZE), "the page cache": ("cached()", 400 * SIZE)})
def test_reads_elsewhere_are_not_counted(tmp_path: Path, code: str, reads: int) -> None:
    with watched(tmp_path, code) as watch:
        until(lambda: used(watch, Role.MAIN).read_chars > reads, "what it reads")
        result = used(watch, Role.MAIN)
        assert (result.read_bytes or 0) < result.read_chars / 10


@pytest.mark.parametrize(
    ("used", "unaccounted", "found"),
    [
        (Counters(read_bytes=0, read_chars=2**20, written_bytes=0), 0, (2**20 - 9, 0)),
        (Counters(read_bytes=4096, read_chars=2**20, written_bytes=0), 0, (4096, 0)),
        (Counters(read_bytes=0, read_chars=2**10, written_bytes=0), 0, (0, 0)),
        (Counters(read_bytes=0, written_bytes=2**12, write_chars=2**20), 2**30, (0, 2**20)),
        (Counters(read_bytes=0, written_bytes=2**19, write_chars=2**20), 2**30, (0, 2**19)),
        (Counters(read_bytes=0, written_bytes=9, write_chars=2**20), -9, (0, 9)),
        (Counters(read_bytes=None, written_bytes=None, write_chars=2**20), 2**30, (None, None)),
    ],
    ids=[
        "reads",
        "reads a disk, too",
        "reads little",
        "writes",
        "writes to a disk",
        "ends a write that was accounted for",
        "unknown",
    ],
)
def test_counters_used_instead(
    used: Counters, unaccounted: int, found: tuple[int | None, int | None]
) -> None:
    counted = used.accounted(9, unaccounted)
    assert (counted.read_bytes, counted.written_bytes) == found
