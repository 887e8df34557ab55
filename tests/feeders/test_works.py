"""For whom a main that listens makes its GPU work: for clients, or on its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Role
from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.habits import Works
from gpu_bottleneck_exporter.feeders.timeouts import AnswerTimeouts
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.files import read
from support.programs import Program, descriptors, program
from support.waiting import until

PROC = Path("/proc")
SECOND = 10**9
LISTENS = "s = socket.create_server(('127.0.0.1', 0)); ready(s.getsockname()[1]); locked()"
SERVES = """
s = socket.create_server(('127.0.0.1', 0))
def serve():
    while True:
        a, _ = s.accept()
        a.send(a.recv(1))
named("serve", serve)
ready(s.getsockname()[1]); locked()
"""
ASKS = "c = connect(int(sys.argv[1])); c.send(b'?'); c.recv(1); ready(); told()"


class Watched:
    """A feed at ticks a second apart, whatever the clock says."""

    def __init__(self, one: Program) -> None:
        self._groups = Cgroups(Path("/sys"))
        self.feed = FeederGroup(PROC, self._groups, AnswerTimeouts(30_000))
        self.feed.adopt({one.pid}, set(), frozenset({one.pid}))
        self._now_ns = time.monotonic_ns()

    def close(self) -> None:
        """Give all descriptors back."""
        self.feed.close()
        self._groups.keep(set())

    def tick(self, busy: float) -> Activity:
        """One tick, in which the GPU was so busy; what the main did at its end."""
        self._now_ns += SECOND
        active_ns = int(busy * SECOND)
        self.feed.note_split(active_ns, {UNKNOWN: SECOND - active_ns}, self._now_ns)
        self.feed.sample(self._now_ns)
        self.feed.advance(self._now_ns)
        found = self.feed.history.explaining(self._now_ns - 1, self._now_ns)
        assert found is not None
        (state,) = found.of(Role.MAIN).seen
        return state


@contextmanager
def watched(code: str) -> Iterator[tuple[Program, Watched]]:
    before = descriptors()
    with program(code) as one:
        found = Watched(one)
        until(lambda: read(PROC / str(one.pid) / "wchan") != "0", "asleep")
        try:
            yield one, found
        finally:
            found.close()
    assert descriptors() <= before


def idles(one: Watched) -> Activity:
    """What the main does once its GPU has nothing to do any more."""
    one.tick(0.0)
    return one.tick(0.0)


def test_who_listens_and_never_worked_is_a_server() -> None:
    with watched(LISTENS) as (_, one):
        until(lambda: idles(one) is Activity.REQUESTS, "a server")


def test_who_works_without_clients_is_none() -> None:
    with watched(LISTENS) as (_, one):
        for _ in range(10):
            one.tick(1.0)
        until(lambda: idles(one) is Activity.QUEUE, "a lock that nobody opens")


def test_who_works_while_clients_ask_is_one() -> None:
    with watched(SERVES) as (server, one):
        for _ in range(5):
            with program(ASKS, server.words[0]):
                one.tick(1.0)
                one.tick(1.0)
        until(lambda: idles(one) is Activity.REQUESTS, "a server")


@pytest.mark.parametrize(
    ("clients", "by_itself"),
    [
        ("", False),
        ("..", False),
        ("...", True),
        ("ccc", False),
        ("c...", False),
        ("c" + 12 * ".", True),
        (20 * "." + "c", True),
        (20 * "." + "cc", False),
        (5 * "c." + "c", False),
    ],
)
def test_how_many_looks_tell(clients: str, *, by_itself: bool) -> None:
    works = Works()
    for seen in clients:
        works.note(clients=seen == "c")
    assert works.by_itself is by_itself


def test_it_is_asked_often_at_first_and_seldom_later() -> None:
    works = Works()
    asked = []
    for second in range(60):
        if works.is_due(second * SECOND):
            asked.append(second)
            works.note(clients=False)
    assert asked == [0, 2, 4, 6, 16, 26, 36, 46, 56]
