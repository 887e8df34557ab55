"""A wait of any process of a job for a file has its file system: of FUSE and of a disk."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.host.mounts import Place
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.settings import Settings
from support.hangs import LOOKUP, READ, unanswering
from support.programs import program
from support.ticks import note_split
from support.waiting import until

RECENT_NS = 3_000_000_000
FILES = """
import mmap
def path():
    os.stat(sys.argv[1] + "/file")
def remote():
    os.read(os.open(sys.argv[1] + "/file", os.O_RDONLY), 9)
def page():
    f = os.open(sys.argv[1] + "/file", os.O_RDONLY)
    mmap.mmap(f, 4096, prot=mmap.PROT_READ)[0]
def local():
    f = os.open(sys.argv[2] + "/file", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    os.truncate(f, 2**24)
    page = mmap.mmap(-1, 2**20)
    while True:
        for at in range(0, 2**24, 2**20): os.pwritev(f, [page], at)
"""
IN_A_WORKER = """
if not os.fork(): {}()
ready(); os.wait()
"""
JOBS = {
    "the main": ("ready(); {}()", "remote"),
    "the main, for a path": ("ready(); {}()", "path"),
    "the main, for a mapped page": ("ready(); {}()", "page"),
    "a thread of the main": ("named('loads', {}); ready(); locked()", "remote"),
    "a worker": (IN_A_WORKER, "remote"),
    "a thread of a worker": (
        "if not os.fork(): named('loads', {}); locked()\nready(); os.wait()",
        "remote",
    ),
    "the main, on a disk": ("ready(); {}()", "local"),
    "a worker, on a disk": (IN_A_WORKER, "local"),
}


@contextmanager
def staged(tmp_path: Path, job: str) -> Iterator[int]:
    """The main of `job`, beside FUSE that never answers."""
    code, what = JOBS[job]
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as disk,
        unanswering(tmp_path, LOOKUP if what == "path" else READ) as server,
        program(FILES + code.format(what), tmp_path, disk) as process,
    ):
        try:
            yield process.pid
        finally:
            server.tell("answer")  # until then it cannot be killed


@pytest.mark.parametrize("job", JOBS)
def test_it_is_seen_where_the_files_are(tmp_path: Path, job: str) -> None:
    place = Place.LOCAL if JOBS[job][1] == "local" else Place.REMOTE
    watch = HostSampler(Settings())
    with staged(tmp_path, job) as pid:
        watch.hold("gpu", frozenset({pid}))
        watch.start()

        values: list[Mapping[Place, int]] = []

        def is_seen() -> bool:
            note_split(watch, "gpu", 0, {UNKNOWN: 1})
            now = time.monotonic_ns()
            feeders = watch.explaining("gpu", now - RECENT_NS, now)
            values.append(feeders.places if feeders else {})
            return place in values[-1]

        try:
            until(is_seen, "a wait for a file")
        finally:
            watch.stop()
    assert values[-1].keys() <= {place, Place.UNKNOWN}
