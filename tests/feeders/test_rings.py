"""Waits in io_uring rings and in kernel AIO: by the numbers, and those of real processes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Role
from gpu_bottleneck_exporter.accounting.stall import NETWORK, STORAGE, UNKNOWN
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.rings import Growth, RingHistory, RingTracker, Target
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.tree import ProcessTree
from gpu_bottleneck_exporter.host import rings as shown
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.rings import Ring
from scenarios.cgroups import Limits, Unavailable, limited
from support.asynchronous import Wait, library
from support.programs import Program, program
from support.rows import rows
from support.ticks import tick
from support.tools import missing
from support.trees import lay, links, process
from support.waiting import until

PROC = Path("/proc")
SECOND = 10**9
MEBIBYTE = 2**20
NOT_NOW = {errno.ENOSYS, errno.EPERM}
"""The kernel lacks rings, or its administrator forbids them (kernel.io_uring_disabled)."""
FILES, SOCKETS, NOTHING = Target.FILES, Target.SOCKETS, Target.NOTHING
READ, RECEIVED, BOTH = Growth(10**6, 0), Growth(0, 10**6), Growth(10**6, 2 * 10**6)
STILL = Growth(0, 0)
FLOWS = Growth(2 * 10**6, 10**6)


def ring(done: int, others: int | None, polls: int = 0) -> Ring:
    return Ring(5, polls, others, done)


Look = tuple[Ring, Growth | None, Growth | None]
"""A ring, and what was moved since the last look, and lately."""


def first(done: int, others: int | None, polls: int = 0) -> Look:
    return ring(done, others, polls), None, None


def later(
    done: int, others: int | None, polls: int = 0, grown: Growth = STILL, lately: Growth = STILL
) -> Look:
    return ring(done, others, polls), grown, lately


@rows(
    "looks, target",
    {
        "nothing in flight": ([first(5, 0)], NOTHING),
        "a poll": ([first(5, 0, 1)], SOCKETS),
        "read since the last look": ([first(5, 1), later(6, 1, 0, READ, READ)], FILES),
        "the same read is still in flight": (
            [first(5, 1), later(6, 2, 0, READ, READ), later(7, 1)],
            FILES,
        ),
        "its bytes were read ahead": ([first(5, 1), later(9, 1, 0, STILL, READ)], FILES),
        "all reads are done": (
            [first(5, 1), later(6, 2, 0, READ, READ), later(8, 1)],
            NOTHING,
        ),
        "completes without reading": ([first(5, 1), later(6, 1)], NOTHING),
        "its first request, of which nothing is known": ([first(5, 1)], Target.UNKNOWN),
        "the same, later": ([first(5, 1), later(5, 1)], Target.UNKNOWN),
        "receives, and reads less": ([first(5, 1, 1), later(6, 1, 1, BOTH, BOTH)], SOCKETS),
        "reads, and receives less": ([first(5, 1, 1), later(6, 1, 1, FLOWS, FLOWS)], FILES),
        "polls, while others read": ([first(5, 0, 1), later(6, 0, 1, READ, READ)], SOCKETS),
        "another ring with its number": (
            [first(900, 1), later(901, 1, 0, READ, READ), later(2, 0)],
            NOTHING,
        ),
        "before 5.16, reads": ([first(0, None), later(0, None, 0, READ, READ)], FILES),
        "before 5.16, receives": ([first(0, None, 1), later(0, None, 1, BOTH, BOTH)], SOCKETS),
        "before 5.16, nothing": ([later(0, None)], Target.UNKNOWN),
    },
)
def test_wait_of_a_ring_with_open_files_and_sockets(looks: list[Look], target: Target) -> None:
    history = RingHistory()
    values = [history.target(*look, files=True, sockets=True) for look in looks]
    assert values[-1] is target


@rows(
    "others, files, sockets, target",
    {
        "only files": (1, True, False, FILES),
        "only sockets": (1, False, True, NOTHING),
        "neither: a timer": (1, False, False, NOTHING),
        "before 5.16, only files": (None, True, False, FILES),
        "before 5.16, only sockets": (None, False, True, NOTHING),
    },
)
def test_open_files_show_the_purpose_of_a_first_request(
    others: int | None, *, files: bool, sockets: bool, target: Target
) -> None:
    result = RingHistory().target(ring(5, others), None, None, files=files, sockets=sockets)
    assert result is target


def test_a_ring_that_is_too_long_is_not_read_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "_MAX_FDINFO_BYTES", 200)
    process(tmp_path, 7)
    path = lay(tmp_path, {"7/fdinfo/3": "x: 1\n" * 100, "7/io": "rchar: 1\n"}) / "7/fdinfo/3"
    links(tmp_path / "7/fd", "anon_inode:[io_uring]")
    tracker = RingTracker(tmp_path, 7, None)
    assert tracker.ring(SECOND, [3]) is Target.UNKNOWN
    path.write_text("flags:\t02\nUserFiles:\t0\nUserBufs:\t0\nPollList:\n  op=27\n")
    assert tracker.ring(2 * SECOND, [3]) is Target.UNKNOWN
    assert tracker.ring(9 * SECOND, [3]) is SOCKETS
    assert tracker.ring(9 * SECOND, None) is SOCKETS
    tracker.close()


CALLS = """
calls = ctypes.CDLL(sys.argv[1])
way = int(sys.argv[2])
def opened(poller=0):
    refused = calls.ring_open(poller, way)
    if refused:
        ready("refused", -refused)
        sys.exit()
room = ctypes.create_string_buffer(100)
"""
SERVES = """
server = socket.create_server(("127.0.0.1", 0)); ready(server.getsockname()[1])
a, _ = server.accept()
while True: a.recv(10); told()
"""
IDLE_FILE = "f = open(sys.argv[4] + '/file', 'w+')\n"
CONNECTED = f"{IDLE_FILE}c = connect(int(sys.argv[3]))\n"
RECEIVES = "calls.ring_receive(c.fileno(), room, 100, way)"
PAUSES = "opened(); ready()\nwhile True: calls.ring_pause(200, way)"
AIO_PAUSES = "calls.aio_open(0); ready()\nwhile True: calls.aio_pause(200)"
READS = """
file = os.open(sys.argv[3], os.O_RDONLY | os.O_DIRECT)
import mmap
page = (ctypes.c_char * 2**20).from_buffer(mmap.mmap(-1, 2**20))
def read(how):
    while True:
        for at in range(16):
            assert how(file, page, 2**20, ctypes.c_uint64(at * 2**20), way) == 2**20
"""
WAYS = {"in the call": Wait.IN_CALL, "on its eventfd": Wait.ON_EVENTFD, "in epoll": Wait.IN_EPOLL}


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("library"))


class Job:
    """A job of one process, its first thread a main, which its own test samples."""

    def __init__(self, one: Program) -> None:
        if one.words[:1] == ["refused"]:
            assert int(one.words[1]) in NOT_NOW
            missing("io_uring")
        self._groups = Cgroups(Path("/sys"))
        self.feed = FeederGroup(PROC, self._groups, AnswerTimeouts(30_000))
        self.feed.adopt(ProcessTree({one.pid}, others={one.pid}))

    def share(self, wanted: Activity, role: str = Role.MAIN, looks: int = 20) -> float:
        """Share of `looks` in which the main, or its threads, did that."""
        result = 0
        for _ in range(looks):
            time.sleep(0.05)
            now_ns = time.monotonic_ns()
            self.feed.note(tick(0, {UNKNOWN: SECOND}, now_ns))
            self.feed.sample(now_ns)
            self.feed.advance(now_ns)
            bucket = self.feed.history.explaining(now_ns - 1, now_ns)
            result += bucket is not None and wanted in bucket.of(role).by_activity
        return result / looks

    def comes_to(self, wanted: Activity) -> None:
        until(lambda: self.share(wanted) >= 0.8, f"{wanted}")

    @property
    def evidence(self) -> list[tuple[str, str]]:
        return [*self.feed.evidence(time.monotonic_ns())]

    def close(self) -> None:
        self.feed.close()
        self._groups.retain(set())


@pytest.fixture
def job() -> Iterator[Callable[[Program], Job]]:
    made: list[Job] = []

    def begin(one: Program) -> Job:
        made.append(Job(one))
        return made[-1]

    yield begin
    for one in made:
        one.close()


@rows("way", WAYS)
@rows(
    "code, waits",
    {
        "an answer is due": (f"opened(); c.send(b'?'); ready(); {RECEIVES}", Activity.NETWORK),
        "AIO with nothing in flight": (AIO_PAUSES, Activity.SLEEP),
        "nothing was asked": (f"opened(); ready(); {RECEIVES}", Activity.SLEEP),
        "its own timer": (PAUSES, Activity.SLEEP),
        "polled by the kernel": (
            f"opened(1); c.send(b'?'); ready(); {RECEIVES}",
            Activity.NETWORK,
        ),
    },
)
def test_a_ring_that_reads_no_file(  # noqa: PLR0913, PLR0917 - what a row is
    calls: Path,
    tmp_path: Path,
    job: Callable[[Program], Job],
    way: Wait,
    code: str,
    waits: Activity,
) -> None:
    with (
        program(SERVES) as far,
        program(CALLS + CONNECTED + code, calls, way.value, far.words[0], tmp_path) as child,
    ):
        watched = job(child)
        watched.comes_to(waits)
        assert not watched.share(Activity.RUN, Role.THREAD), "the kernel polls, not the program"
        polled = watched.feed.history.total.of(Role.MAIN).used.poller_cpu_ns
        assert (polled > 0) == ("opened(1)" in code)
        if waits is Activity.NETWORK:
            ends = f"no response from 127.0.0.1:{far.words[0]}"
            assert any(cause == NETWORK and ends in text for cause, text in watched.evidence)


@contextmanager
def slow_disk() -> Iterator[tuple[Path, str]]:
    """A file on a disk that reads 4 MiB a second, and the code with which a program sees it so."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        data, limits = Path(folder) / "data", Limits(read_bytes_per_second=4 * MEBIBYTE)
        data.write_bytes(os.urandom(16 * MEBIBYTE))
        try:
            with limited(limits, Path(folder)) as groups:
                enter = (f"open('{group}/cgroup.procs', 'w').write('0')\n" for group in groups)
                yield data, "".join(enter)
        except Unavailable as reason:
            missing(f"{reason}")


RING = "opened(); ready(); read(calls.ring_read)"
POLLED = "opened(1); ready(); read(calls.ring_read)"
AIO = "assert calls.aio_open(way) == 0; ready(); read(calls.aio_read)"


@rows(
    "how, way",
    {
        "a ring": (RING, Wait.IN_CALL),
        "a ring, on its eventfd": (RING, Wait.ON_EVENTFD),
        "a ring, in epoll": (RING, Wait.IN_EPOLL),
        "a ring, polled by the kernel": (POLLED, Wait.IN_CALL),
        "kernel AIO": (AIO, Wait.IN_CALL),
        "kernel AIO, on its eventfd": (AIO, Wait.ON_EVENTFD),
    },
)
def test_a_reader_of_a_slow_disk_waits_for_storage(
    calls: Path, job: Callable[[Program], Job], how: str, way: Wait
) -> None:
    with (
        slow_disk() as (data, enter),
        program(CALLS + enter + READS + how, calls, way.value, data) as child,
    ):
        watched = job(child)
        watched.comes_to(Activity.DISK)
        name = "io_uring (descriptor" if "ring" in how else "kernel AIO"
        evidence = watched.evidence
        assert any(cause == STORAGE and name in text for cause, text in evidence), evidence
