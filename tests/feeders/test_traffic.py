"""Traffic of a job's own connections in a shared network: real processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.job import JobFacts
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.tree import ProcessTree
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.schedule import CADENCE
from support.programs import Program, program
from support.talking import Line, talking
from support.ticks import tick
from support.waiting import until

PROC, SYSFS = Path("/proc"), Path("/sys")
SILENT = "c = connect(int(sys.argv[1])); ready(); locked()"
RECEIVES = """
c = connect(int(sys.argv[1]))
ready()
while True:
    c.recv(65536)
"""
ANEW = """
ready()
while told():
    c = connect(int(sys.argv[1]))
    size = 0
    while size < 300_000:
        size += len(c.recv(65536))
    ready("open")
    told()
    c.close()
    ready("closed")
"""
SHARED = """
c = connect(int(sys.argv[1]))
child = os.fork()
if not child:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    locked()
ready(child)
told()
size = 0
while size < 200_000:
    size += len(c.recv(65536))
ready()
locked()
"""
DATAGRAMS = """
child = os.fork()
if not child:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ready(os.getpid())
locked()
"""


class Job:
    """A job on an idle GPU, in a network namespace that it shares with others."""

    def __init__(self, groups: Cgroups, main: Program, *workers: int, lends: bool = True) -> None:
        self.feed = FeederGroup(PROC, groups, AnswerTimeouts(30_000) if lends else None)
        self.feed.adopt(ProcessTree({main.pid}, {*workers}, {main.pid}))
        self.feed.facts = JobFacts(shares_network=True)
        self._now_ns = time.monotonic_ns()

    def moved(self, *, works: bool = False) -> int | None:
        """The bytes so far, after another look."""
        self._now_ns += CADENCE.probe_ns
        if works:
            self.feed.note(tick(1, {}, self._now_ns + 3 * CADENCE.probe_ns))
            self._now_ns += 3 * CADENCE.probe_ns
        else:
            self.feed.note(tick(0, {UNKNOWN: 1}, self._now_ns))
        self.feed.sample(self._now_ns)
        self.feed.advance(self._now_ns)
        return self.feed.traffic.moved_bytes


Start = Callable[..., Job]


@pytest.fixture
def start() -> Iterator[Start]:
    groups, jobs = Cgroups(SYSFS), list[Job]()

    def begin(main: Program, *workers: int, lends: bool = True) -> Job:
        jobs.append(Job(groups, main, *workers, lends=lends))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.feed.close()
    groups.retain(())


@contextmanager
def main_of(code: str, talk: Callable[[Line], None]) -> Iterator[Program]:
    """A program whose argument is the port of a server that talks so."""
    with talking(talk) as (port, _), program(code, f"{port}") as main:
        yield main


def flood(line: Line) -> None:
    line.flood(b"x")


def hang(line: Line) -> None:
    line.hang()


def test_silent_sockets_beside_a_job_that_transfers(start: Start) -> None:
    with main_of(SILENT, hang) as silent, main_of(RECEIVES, flood) as busy:
        asleep, transfers = start(silent), start(busy)
        until(lambda: (transfers.moved() or 0) > 10_000_000, "it transfers")
        assert asleep.moved() == asleep.moved() == 0


def test_closed_connections_leave_their_traffic(start: Start) -> None:
    with main_of(ANEW, lambda line: line.send(b"x" * 300_000)) as main:
        job = start(main)
        assert job.moved() == 0
        for times in (1, 2, 3):
            assert main.ask("connect") == ["open"]
            assert (job.moved() or 0) // 300_000 == times
            assert main.ask("close") == ["closed"]
            assert (job.moved() or 0) // 300_000 == times


def test_a_connection_that_processes_share_counts_once(start: Start) -> None:
    with main_of(SHARED, lambda line: line.send(b"x" * 200_000)) as main:
        job = start(main, int(main.words[0]))
        before = job.moved()
        assert before is not None
        main.ask("receive")
        # The kernel may count the start of a connection, too, as a byte.
        assert 0 < (job.moved() or 0) - before <= 200_001


def test_traffic_while_the_gpu_works_does_not_count(start: Start) -> None:
    with main_of(ANEW, lambda line: line.send(b"x" * 300_000)) as main:
        job = start(main)
        assert job.moved() == 0
        assert main.ask("connect") == ["open"]
        job.moved(works=True)
        # The kernel counts the end of a connection, which may come late, as a byte.
        assert max(job.moved() or 0, job.moved() or 0) <= 1


def test_unknown_where_sockets_are_not_lent_or_count_nothing(start: Start) -> None:
    with program(DATAGRAMS) as main:
        child = int(main.words[0])
        assert start(main).moved() == 0
        assert start(main, lends=False).moved() is None
        assert start(main, child).moved() is None
