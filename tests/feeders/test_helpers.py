"""Descendants of a main that load nothing, and their twins that hand something over."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.stall import (
    CPU_QUEUE,
    HOST_CODE,
    UNKNOWN,
    WORKER_CPU,
    split,
)
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.feeders.probe import child_token
from gpu_bottleneck_exporter.feeders.thresholds import JUDGED
from gpu_bottleneck_exporter.feeders.tree import HelperFinder, Waits
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.settings import Settings
from support.programs import Program, descriptors, program
from support.rows import rows
from support.ticks import note_split
from support.waiting import until

PROC = Path("/proc")
START = '''
import mmap
from multiprocessing import get_context
folder = sys.argv[1]; path = f"{folder}/socket"
SPAWN = get_context("spawn")

SLEEPS = "import time; time.sleep(600)"
BURNS = "while True: pass"
WRITES = "import os, time\\nwhile True: os.write(1, bytes(9)); time.sleep(0.01)"
CONNECTS = f"import socket; c = socket.socket(socket.AF_UNIX); c.connect('{path}')\\n"
ANSWERS = CONNECTS + """
import time
for _ in iter(lambda: c.recv(1), b''):
    end = time.process_time() + 0.5
    while time.process_time() < end: pass
    c.send(b'x')
"""
SERVES = f"""
import socket
server = socket.socket(socket.AF_UNIX); server.bind('{path}2'); server.listen(); print(flush=True)
kept = server.accept()
"""

def start(code, *arguments, **options):
    "Another program that runs `code`."
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **options}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], **options)

def serve(code):
    "A program that runs `code`, and our connection with it."
    server = socket.socket(socket.AF_UNIX); server.bind(path); server.listen()
    one = start(code)
    return one, server.accept()[0]

def wait():
    c.send(b"x"); c.recv(1)

def watch():
    "A descriptor that tells of files that are closed in our folder."
    import ctypes
    libc = ctypes.CDLL(None); watch = libc.inotify_init1(os.O_CLOEXEC)
    libc.inotify_add_watch(watch, os.fsencode(folder), 8)
    return watch
'''
MIN_IDLE_SHARE = "ready(one.pid); locked()"


@pytest.fixture(autouse=True)
def descriptors_are_given_back() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() <= before


def never() -> Waits:
    """Waits of a main that was never sampled on a descriptor."""
    waits = Waits()
    for _ in range(JUDGED.min_wait_samples):
        waits.note(())
    return waits


def helpers(one: Program, waits: Waits) -> set[int]:
    return HelperFinder(PROC).find({one.pid: waits}, {int(word) for word in one.words})


@rows(
    "code",
    {
        "quiet": "one = start(SLEEPS)",
        "burning": "one = start(BURNS)",
        "a shell's": "one = subprocess.Popen('sleep 600; true', shell=True, stdin=-3)",
        "it writes for other readers": (
            "log = open(f'{folder}/log', 'wb'); one = start(WRITES, stdout=log)"
        ),
        "it only reads our writes": (
            "one = start(SLEEPS, stdin=subprocess.PIPE)\nextra = open(f'{folder}/log', 'wb')"
        ),
        "its output is ours": "one = start(WRITES, stdout=os.open('/dev/null', os.O_WRONLY))",
        "it reads our log": "log = open(path, 'w'); one = start(f'f = open({path!r}); ' + SLEEPS)",
        "it maps a device as we do": (
            "import io; one = start('import mmap, os; m = mmap.mmap(-1, 4096); ' + SLEEPS)\n"
            "kept = mmap.mmap(-1, 4096)"
        ),
    },
)
def test_a_program_that_shares_nothing_is_a_helper(tmp_path: Path, code: str) -> None:
    with program(f"{START}\n{code}\n{MIN_IDLE_SHARE}", tmp_path) as process:
        until(lambda: helpers(process, Waits()) == {int(process.words[0])}, "a helper")


@rows(
    "code",
    {
        "a pipe of its own": (
            "r, w = os.pipe(); one = start('import os, sys\\nwhile True: os.write(int(sys.argv[1])"
            ", bytes(9))', w, pass_fds=[w]); os.close(w)"
        ),
        "a socket pair": (
            "a, b = socket.socketpair(); one = start(SLEEPS, pass_fds=[b.fileno()]); b.close()"
        ),
        "a worker of multiprocessing": (
            "one = SPAWN.Process(target=time.sleep, args=[600], daemon=True); one.start()"
        ),
        "memory": (
            "m = memory = open(f'/dev/shm/test-{os.getpid()}', 'w+b'); m.truncate(4096)\n"
            "kept = mmap.mmap(m.fileno(), 4096); os.unlink(m.name)\n"
            "one = start('import mmap, sys, time; m = mmap.mmap(int(sys.argv[1]), 4096); '"
            " 'time.sleep(600)', m.fileno(), pass_fds=[m.fileno()])"
        ),
        "forked": ("class One: pid = os.fork()\nif One.pid == 0: burn()\none = One"),
    },
)
def test_a_child_with_a_channel_made_for_it_is_a_worker(tmp_path: Path, code: str) -> None:
    with program(f"{START}\n{code}\n{MIN_IDLE_SHARE}", tmp_path) as process:
        until(lambda: helpers(process, never()) == set(), "a worker")


def test_many_descriptors_of_one_file_are_read_once_each(tmp_path: Path) -> None:
    code = """
log = open(path, "w"); pipe, w = os.pipe()
copies = [os.dup(log.fileno()) for _ in range(300)]
for number in copies: os.set_inheritable(number, True)
os.set_inheritable(os.dup2(w, 400), True)
one = start(SLEEPS, close_fds=False); os.close(400); os.close(w)
"""
    with program(f"{START}\n{code}\n{MIN_IDLE_SHARE}", tmp_path) as process:
        used = time.process_time()
        until(lambda: helpers(process, never()) == set(), "a worker by its pipe")
        assert time.process_time() - used < 1  # each with each: 90 000 reads, 5 s


def test_programs_that_ended_are_forgotten() -> None:
    waits = Waits()
    tracemalloc.start()
    for pid in range(1, 40_000):  # a program for each sample
        waits.note(child_token(pid))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 100_000
    for _ in range(JUDGED.min_wait_samples):
        waits.note(child_token(7))
    assert waits.include_exit_of(7)
    assert not waits.include_exit_of(8)


WAITS = "def waits():\n while True: wait()\nnamed('waits', waits)"
SEEN = {
    "its output": "one = start(WRITES, stdout=subprocess.PIPE); c = one.stdout",
    "a UNIX socket": "one, c = serve(CONNECTS + SLEEPS)",
    "TCP": (
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "one = start(f'import socket; c = socket.create_connection({server.getsockname()}); '"
        " + SLEEPS); c, _ = server.accept()"
    ),
    "a FIFO": (
        "os.mkfifo(path); one = start(f'f = open({path!r}, \"w\"); ' + SLEEPS); c = open(path)"
    ),
}


@rows("code", SEEN)
def test_a_program_with_a_connection_is_a_worker_if_its_peer_waits_for_it(
    tmp_path: Path, code: str
) -> None:
    with program(f"{START}\n{code}\nready(one.pid, c.fileno()); locked()", tmp_path) as process:
        pid, number = map(int, process.words)
        process.words = [f"{pid}"]
        until(lambda: helpers(process, never()) == {pid}, "a helper")
        finder = HelperFinder(PROC)
        assert finder.find({process.pid: Waits()}, {pid}) == set()
        assert finder.undecided, "nobody knows yet"
        for waited in (number, None):
            waits = never()
            waits.note((waited,))
            assert helpers(process, waits) == {pid}, "once is chance"
            for _ in range(3):
                waits.note((waited,))
            assert helpers(process, waits) == set()
        assert finder.is_due({process.pid: never()})
        assert finder.find({process.pid: never()}, {pid}) == {pid}
        assert not finder.undecided
        assert finder.is_due({process.pid: waits}), "the main began to wait for it"
        assert finder.find({process.pid: waits}, {pid}) == set()


def test_a_child_of_a_helper_is_one_and_the_left_side_of_a_pipeline_is_none(
    tmp_path: Path,
) -> None:
    code = """
one = start(SERVES, stdout=-1); one.stdout.readline()
two = start(CONNECTS.replace(path, path + "2") + SLEEPS)
left = start(WRITES, stdout=-1)
right = start(SLEEPS, stdin=left.stdout, stdout=-1)
left.stdout.close()
ready(one.pid, two.pid, left.pid, right.pid, right.stdout.fileno()); locked()
"""
    with program(f"{START}\n{code}", tmp_path) as process:
        first, second, left, right, number = map(int, process.words)
        waits = never()
        for _ in range(JUDGED.min_wait_samples):
            waits.note((number,))
        process.words = process.words[:-1]
        until(lambda: helpers(process, waits) == {first, second}, f"not {left} and {right}")


def worker_count(watch: HostSampler, pid: int) -> tuple[int, str]:
    """How many workers a main that starves its GPU has, and what that waits for."""
    note_split(watch, "a", 0, {UNKNOWN: 1})
    feed = watch.feed("a")
    now_ns = time.monotonic_ns()
    bucket = watch.explaining("a", now_ns - 4 * 10**9, now_ns)
    if feed is None or pid not in feed.mains or bucket is None:
        return -1, ""
    stalls = split([Window(now_ns, 10**9, 0)], 1, bucket)
    return len(feed.workers), max(stalls, key=lambda cause: stalls[cause])


@rows(
    "code, count, cause",
    {
        "a burning one that shares nothing": ("one = start(BURNS); burn()", 0, HOST_CODE),
        "a burning one with a connection": (
            "one, c = serve(CONNECTS + BURNS); named('hears', lambda: c.recv(1)); burn()",
            0,
            HOST_CODE,
        ),
        "a child whose end is awaited": ("start(BURNS).wait()", 1, WORKER_CPU),
        "a child whose files are awaited": (
            "w = watch(); one = start(BURNS)\nwhile True: os.read(w, 4096)",
            1,
            WORKER_CPU,
        ),
        "a child whose files are polled": (
            (
                "from select import select; w = watch(); one = start(BURNS)\n"
                "while True: select([w], [], [])"
            ),
            1,
            WORKER_CPU,
        ),
        "one beside a watch of files that is not waited for": (
            "w = watch(); one = start(BURNS); burn()",
            0,
            HOST_CODE,
        ),
        "one that a shell runs": (
            (
                "subprocess.run([sys.executable + ' -c \"$CODE\"; true'], shell=True,"
                " env={'CODE': BURNS})"
            ),
            2,
            WORKER_CPU,
        ),
        "one that a thread reads while another burns": (
            (
                "one = start('while True: print(flush=True)', stdout=-1)\n"
                "named('reads', one.stdout.read); named('burns', burn); locked()"
            ),
            0,
            WORKER_CPU,
        ),
        "one that is waited for": (
            "one, c = serve(ANSWERS)\nwhile True: wait()",
            1,
            WORKER_CPU,
        ),
        "one that a thread waits for, and that the main waits for": (
            f"one, c = serve(ANSWERS)\n{WAITS}; locked()",
            1,
            WORKER_CPU,
        ),
    },
)
def test_helpers_are_no_workers_of_a_gpu_that_starves(
    tmp_path: Path, code: str, count: int, cause: str
) -> None:
    with program(f"{START}\nready(); {code}", tmp_path) as process:
        watch = HostSampler(Settings())
        watch.hold("a", frozenset({process.pid}))
        watch.start()
        try:
            result = (-1, "")

            def settled() -> bool:
                nonlocal result
                result = worker_count(watch, process.pid)
                feed = watch.feed("a")
                waits = feed.family.waits.get(process.pid) if feed else None
                decided = waits is not None and waits.samples >= JUDGED.min_wait_samples
                decided = decided and not (feed and feed.family.is_undecided)
                return decided and result in {(count, cause), (count, CPU_QUEUE)}

            until(settled, lambda: f"{(count, cause)}, not {result}")
        finally:
            watch.stop()
