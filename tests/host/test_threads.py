"""The threads of real processes: which move, and what they wait for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.threads import MOST_ASKED, MOST_THREADS, SCAN_NS, Thread, Threads
from gpu_bottleneck_exporter.host.waits import Wait
from support.programs import Program, descriptors, program
from support.waiting import until

PROC = Path("/proc")
PAIR = "a, b = socket.socketpair()\n"
CROWD = 3 * MOST_THREADS
FILES_OF_A_THREAD = 4


class Watched:
    """Threads at looks that are a whole scan apart, whatever the clock says."""

    def __init__(self, one: Program) -> None:
        self.threads = Threads(PROC, one.pid)
        self._now_ns = 0

    def scan(self) -> dict[str, Thread]:
        """By name, the last of those that share one."""
        self._now_ns += SCAN_NS
        return {thread.name: thread for thread in self.threads.look(self._now_ns)}

    def look(self) -> dict[str, Thread]:
        """The same between two scans."""
        return {thread.name: thread for thread in self.threads.look(self._now_ns + 1)}

    def waits(self, name: str) -> Wait | None:
        found = self.scan().get(name)
        return found.wait if found else None


Watch = Callable[[Program], Watched]


@pytest.fixture
def watch() -> Iterator[Watch]:
    before = descriptors()
    made: list[Watched] = []

    def begin(one: Program) -> Watched:
        made.append(Watched(one))
        return made[-1]

    yield begin
    for watched in made:
        watched.threads.close()
    assert descriptors() <= before, "all descriptors are given back"


@pytest.mark.parametrize(
    ("does", "wait"),
    [
        ("burn", Wait.RUN),
        ("locked", Wait.LOCK),
        ("lambda: os.read(os.pipe()[0], 1)", Wait.PIPE),
        ("lambda: subprocess.run(['sleep', '60'])", Wait.CHILD),
    ],
)
def test_what_a_thread_does(watch: Watch, does: str, wait: Wait) -> None:
    with program(f"named('one', {does}); ready(); time.sleep(60)") as one:
        watched = watch(one)
        until(lambda: watched.waits("one") is wait, wait.value)


def test_the_first_thread_is_not_told(watch: Watch) -> None:
    with program("ready(); time.sleep(60)") as one:
        assert watch(one).scan() == {}


def test_a_thread_in_a_socket_tells_its_descriptor(watch: Watch) -> None:
    code = "server = socket.create_server(('127.0.0.1', 0))\nc = connect(server.getsockname()[1])\n"
    code += "named('one', lambda: c.recv(1)); ready(c.fileno()); locked()"
    with program(code) as one:
        watched = watch(one)
        until(lambda: watched.waits("one") is Wait.SOCKET, "a read")
        assert watched.scan()["one"].descriptors == (int(one.words[0]),)


def test_a_thread_that_epolls_may_wait_on_any(watch: Watch) -> None:
    code = PAIR + "e = select.epoll(); e.register(a, select.EPOLLIN)\n"
    with program(code + "named('one', e.poll); ready(); locked()") as one:
        watched = watch(one)
        until(lambda: watched.waits("one") is Wait.POLL, "a poll")
        assert watched.scan()["one"].descriptors is None


@pytest.mark.parametrize(
    ("called", "name"),
    [
        *((repr(name), name) for name in ("a) R 1 (b", "", "((((", "pt_autograd_0")),
        (r"b'\xff\n\x01'", "\ufffd\n\x01"),
    ],
)
def test_a_thread_may_call_itself_anything(watch: Watch, called: str, name: str) -> None:
    with program(f"named({called}, lambda: time.sleep(60)); ready(); locked()") as one:
        watched = watch(one)
        until(lambda: watched.waits(name) is Wait.TIMER, "its name")


def test_only_those_that_move_are_asked_again(watch: Watch) -> None:
    with program("named('rests', locked); named('burns', burn); ready(); time.sleep(60)") as one:
        watched = watch(one)
        until(lambda: watched.waits("burns") is Wait.RUN, "a thread that burns")
        until(lambda: watched.scan() and len(watched.threads.moving) == 1, "one that rests")
        watched.threads.used.clear()
        until(lambda: watched.scan() and sum(u.cpu_ns for u in watched.threads.used), "CPU time")
        assert {used.name for used in watched.threads.used} == {"burns"}
        assert watched.look()["rests"].wait is Wait.LOCK


def test_a_thread_that_falls_asleep_for_good_is_seen_where_it_sleeps(
    watch: Watch,
) -> None:
    code = "def turn():\n while not done: pass\n os.read(r, 1)\n"
    code += "done = []; r, w = os.pipe(); named('one', turn); ready(); told(); done.append(1)\n"
    with program(code + "time.sleep(60)") as one:
        watched = watch(one)
        until(lambda: watched.waits("one") is Wait.RUN, "a thread that burns")
        one.tell()
        until(lambda: watched.waits("one") is Wait.PIPE, "its sleep")
        assert watched.look()["one"].wait is Wait.PIPE


def test_a_thread_that_ends_is_gone(watch: Watch) -> None:
    with program("named('one', told); ready(); locked()") as one:
        watched = watch(one)
        until(lambda: "one" in watched.scan(), "the thread")
        one.tell()
        until(lambda: "one" not in watched.scan(), "its end")


@pytest.mark.parametrize("reaped", [False, True])
def test_a_process_that_ended_has_no_threads(watch: Watch, *, reaped: bool) -> None:
    with program("named('one', locked); ready(); locked()") as one:
        watched = watch(one)
        until(lambda: "one" in watched.scan(), "the thread")
        one.process.kill()
        if reaped:
            one.process.wait()
        until(lambda: watched.threads.look(0) == [] or watched.scan() == {}, "nobody")


def test_the_threads_of_nobody() -> None:
    with program("") as one:
        pass
    assert Threads(PROC, one.pid).look(0) == []


def test_what_nobody_takes_is_not_kept_for_ever(watch: Watch) -> None:
    code = "for _ in range(20): named('n', lambda: [time.sleep(0.0005) for _ in iter(int, 1)])\n"
    with program(code + "ready(); time.sleep(60)") as one:
        watched = watch(one)
        longest = 0
        for _ in range(300):
            watched.scan()
            longest = max(longest, len(watched.threads.used))
        assert len(watched.threads.moving) <= 20
        assert longest <= 10 * MOST_THREADS


def test_of_a_crowd_so_many_are_watched_and_it_is_said(watch: Watch) -> None:
    code = "threading.stack_size(65536)\n"
    code += f"for at in range({CROWD}): named(str(at), locked)\n"
    with program(code + "named('burns', burn); ready(); locked()") as one:
        watched = watch(one)
        seen: set[str] = set()
        opened = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
        for _ in range(40):
            names = watched.scan().keys()
            asked = [thread for thread in names if thread]
            assert len(names) <= MOST_THREADS
            assert len(asked) <= MOST_THREADS
            seen |= names
            taken = len(os.listdir("/proc/self/fd")) - opened  # noqa: PTH208 - a count
            assert taken <= FILES_OF_A_THREAD * MOST_THREADS
        assert not watched.threads.complete
        assert len(seen) > CROWD / 2, "others come in turn"

        def stays() -> bool:
            time.sleep(0.1)  # as long as one that burns may have to wait for a CPU
            return "burns" in watched.scan()

        # Among the others, in turn, it would hardly be there so often.
        until(lambda: all(stays() for _ in range(10)), "that one that moves stays")


def test_a_process_with_few_is_watched_in_full(watch: Watch) -> None:
    with program(f"for _ in range({MOST_ASKED}): named('n', locked)\nready(); locked()") as one:
        watched = watch(one)
        watched.scan()
        assert watched.threads.complete
        assert len(watched.threads.look(0)) == MOST_ASKED
