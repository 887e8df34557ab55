"""Each read of a process fails in each way: that process's detail is lost, and nothing else.

Each job has a main and a worker that wait for an answer from the network, which takes all kinds
of reads to see. One read of one of the two fails.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, Role
from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.host import aside, descriptors, waits
from gpu_bottleneck_exporter.host.mounts import Place
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.settings import Settings
from support.hangs import READ, unanswering
from support.logged import logged
from support.programs import program
from support.ticks import note_split
from support.waiting import until

FILES = (
    *("stat", "schedstat", "wchan", "io", "syscall", "status", "cgroup", "cmdline", "environ"),
    *("mountinfo", "net/dev", "task/N/stat", "task/N/schedstat", "task/N/wchan"),
    *("task/N/syscall", "task/N/children", "fd/N"),
)
FOLDERS = ("fd", "task", "task/N")
ASIDE = ("cmdline", "environ", "memory", "borrow")
"""Reads that may hang, and so are made aside."""
Fault = tuple[str, object]
"""The file below /proc/PID, and how reading it fails."""
ERRORS = (errno.EACCES, errno.ENOENT, errno.EIO)
HOWS = (*ERRORS, "nonsense")
FAULTS: list[Fault] = [
    *product(FILES, HOWS),
    *product(FOLDERS, ERRORS),
    *((name, "hangs") for name in ASIDE),
]
SETS = 4
"""Tests that share the faults: what watches them may take a tenth of a core, and with all jobs at
once a pass would take longer than `RECENT_NS` on a busy machine."""
LOSES_WAIT = {"stat", "fd/N", "borrow"}
"""Files without which the wait is unknown; nor where `wchan` names something else."""
MAY_LOSE_WAIT = {"fd"}
LOSES_WORKERS = {"stat", "task", "task/N/children"}
"""Files of a main without which the others cannot be found."""
RECENT_NS = 3_000_000_000
JOBS = """
server = socket.create_server(("127.0.0.1", 0), backlog=4096)
address = server.getsockname()
def wait():
    server.close(); c = socket.create_connection(address); p = select.poll(); p.register(c, 1)
    threading.Thread(target=burst, daemon=True).start()
    while True:
        c.send(b"?"); p.poll(700)
def burst():
    while True:
        time.sleep(0.3)
pids = []
for _ in range(int(sys.argv[1])):
    r, w = os.pipe()
    main = os.fork()
    if not main:
        os.close(r)
        worker = os.fork()
        if worker: os.write(w, str(worker).encode())
        os.close(w); wait()
    pids += [main, int(os.read(r, 20))]
    os.close(r); os.close(w)
ready(*pids)
kept = []
while True: kept.append(server.accept())
"""
OF_FILES = ("ns/mnt", "mountinfo", "task/N/syscall", "task/N/wchan", "fd/N", "fdinfo/N")
"""Files that locate the file that a thread waits for."""
FILE_FAULTS: list[Fault] = [
    *product(OF_FILES, HOWS),
    ("task/N/syscall", "hangs"),
    ("fdinfo/N", "hangs"),
    ("none", "none"),
]
LOSES_PLACE = {
    *product(("mountinfo", "task/N/syscall"), HOWS),
    *product(("ns/mnt",), ERRORS),
    *(("fd/N", errno.EACCES), ("task/N/syscall", "hangs"), ("fdinfo/N", "hangs")),
}
MAY_LOSE_PLACE = {"fd/N", "fdinfo/N"}
"""Files without which its wait channel may decide, or its other files."""
FILE_JOBS = """
pids = []
for _ in range(int(sys.argv[2])):
    r, w = os.pipe()
    main = os.fork()
    if not main:
        if sys.argv[3] == "worker" and os.fork(): os.wait()
        os.write(w, str(os.getpid()).encode())
        os.read(os.open(sys.argv[1] + "/file", os.O_RDONLY | os.O_DIRECT), 512)
    pids += [main, int(os.read(r, 20))]
ready(*pids)
told()
"""

READLINK = os.readlink
Call = Callable[..., object]
Right = Callable[[Fault, Bucket], bool]


class Faulty:
    """Fails in reads of given processes."""

    def __init__(self) -> None:
        self.faults: dict[int, Fault] = {}
        """Faults by pid."""
        self.hang = threading.Event()

    def of(self, path: object) -> object:
        """How reading `path` fails, None if it does not."""
        result = re.match(r"/proc/(\d+)/(.+)$", str(path))
        if not result or int(result[1]) not in self.faults:  # as most
            return None
        return self.named(int(result[1]), re.sub(r"(task|fd|fdinfo)/\d+", r"\1/N", result[2]))

    def named(self, pid: int, name: str) -> object:
        where, how = self.faults.get(pid, ("", None))
        return how if where == name else None

    def open(self, real: Call, path: object, *arguments: object, **named: object) -> object:
        fault = self.of(path)
        if fault == errno.EIO:
            return real("/proc/self/mem", os.O_RDONLY)  # its first page
        if fault == "nonsense":
            descriptor = os.memfd_create("nonsense")
            os.write(descriptor, b"no ) number: here\n" * 9)
            os.lseek(descriptor, 0, os.SEEK_SET)
            return descriptor
        if fault == "hangs":
            self.hang.wait()
        return self.path(real, path, *arguments, **named)

    def path(self, real: Call, path: object, *arguments: object, **named: object) -> object:
        fault = self.of(path)
        if isinstance(fault, int):
            raise OSError(fault, os.strerror(fault))
        if fault == "nonsense" and real is READLINK:
            return "nonsense"
        return real(path, *arguments, **named)

    def aside(self, name: str, real: Call, *arguments: object) -> object:
        pid = next(argument for argument in arguments if isinstance(argument, int))
        if self.named(pid, name):
            self.hang.wait()
        return real(*arguments)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
    result = Faulty()
    monkeypatch.setattr(os, "open", partial(result.open, os.open))
    for name in ("readlink", "scandir", "stat"):
        monkeypatch.setattr(os, name, partial(result.path, getattr(os, name)))
    monkeypatch.setattr(
        waits, "_read_memory_now", partial(result.aside, "memory", waits._read_memory_now)
    )
    monkeypatch.setattr(
        descriptors, "_query_all", partial(result.aside, "borrow", descriptors._query_all)
    )
    for item in (aside.memory_reads, aside.socket_queries):
        monkeypatch.setattr(item, "_timeout", aside.CALL_TIMEOUT_SECONDS)
    yield result
    result.hang.set()


def mostly_network(states: Mapping[Activity, int]) -> bool:
    return 2 * states.get(Activity.NETWORK, 0) > sum(states.values())


def watch_until(right: Right, mains: Iterable[int], faults: Iterable[Fault]) -> None:
    """All is `right` of the last seconds of each job and of the fault that it meets."""
    jobs = dict(zip(mains, faults, strict=True))
    watch = HostSampler(Settings(), {"workload"})
    for pid in jobs:
        watch.hold(f"{pid}", frozenset({pid}))

    def unlike() -> list[Fault]:
        """The faults that cost more or less than they should."""
        now = time.monotonic_ns()
        since = now - RECENT_NS
        for pid in jobs:
            note_split(watch, f"{pid}", 0, {UNKNOWN: 1})
        fields = {pid: watch.explaining(f"{pid}", since, now) or Bucket() for pid in jobs}
        return [fault for pid, fault in jobs.items() if not right(fault, fields[pid])]

    watch.start()
    for item in (aside.memory_reads, aside.socket_queries):
        # Of one tenant's, four reads that hang cost all others; tests beside this one have some.
        item.share_by(int)
    try:
        until(lambda: not unlike(), unlike)
    finally:
        watch.stop()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return logged(caplog, logging.ERROR)


@pytest.mark.parametrize("nth", range(SETS))
@pytest.mark.parametrize("role", ["main", "worker"])
def test_a_read_that_fails_costs_that_process(
    faulty: Faulty, role: str, nth: int, caplog: pytest.LogCaptureFixture
) -> None:
    faults: list[Fault] = [*FAULTS[nth::SETS], ("none", "none")]

    def right(fault: Fault, seen: Bucket) -> bool:
        name, _ = fault
        main, worker = (seen.of(item).by_activity for item in (Role.MAIN, Role.WORKER))
        victim, other = (main, worker) if role == "main" else (worker, main)
        renames = fault == ("cmdline", "nonsense")  # a child of another name may be no worker
        loses = name in LOSES_WAIT or fault == ("wchan", "nonsense")
        loses |= renames and role == "worker"
        alone = role == "main" and (renames or name in LOSES_WORKERS)
        result = name in MAY_LOSE_WAIT or mostly_network(victim) != loses
        return result and (alone or mostly_network(other))

    with program(JOBS, len(faults)) as process:
        pids = [*map(int, process.words)]
        victims = pids[::2] if role == "main" else pids[1::2]
        faulty.faults = dict(zip(victims, faults, strict=True))
        watch_until(right, pids[::2], faults)
    assert errors(caplog) == []


@pytest.mark.parametrize("role", ["main", "worker"])
def test_a_read_that_fails_costs_the_place_of_that_process_s_files(
    faulty: Faulty, role: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def right(fault: Fault, seen: Bucket) -> bool:
        assert Place.LOCAL not in seen.places
        lost = seen.places.keys() == {Place.UNKNOWN}
        result = fault[0] in MAY_LOSE_PLACE or lost == (fault in LOSES_PLACE)
        return bool(seen.places) and result and bool(seen.of(role).by_activity.get(Activity.DISK))

    jobs = program(FILE_JOBS, tmp_path, len(FILE_FAULTS), role)
    with unanswering(tmp_path, READ) as server, jobs as item:
        pids = [*map(int, item.words)]
        faulty.faults = dict(zip(pids[1::2], FILE_FAULTS, strict=True))
        try:
            watch_until(right, pids[::2], FILE_FAULTS)
        finally:
            server.tell("answer")  # until then they cannot be killed
    assert errors(caplog) == []
