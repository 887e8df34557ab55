"""For whom a main that listens makes its GPU work: for clients, or on its own."""

from __future__ import annotations

import time
from contextlib import ExitStack
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
from support.programs import descriptors, program
from support.rows import rows
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


@rows(
    "code, busy_ticks, idles",
    {
        "who listens and never worked is a server": (LISTENS, 0, Activity.REQUESTS),
        "who works without clients is none": (LISTENS, 10, Activity.QUEUE),
        "who works while clients ask is one": (SERVES, 10, Activity.REQUESTS),
    },
)
def test_what_a_main_waits_for_when_its_gpu_idles(
    code: str, busy_ticks: int, idles: Activity
) -> None:
    before, groups, now_ns = descriptors(), Cgroups(Path("/sys")), time.monotonic_ns()
    with program(code) as one, ExitStack() as clients:
        feed = FeederGroup(PROC, groups, AnswerTimeouts(30_000))
        feed.adopt({one.pid}, set(), frozenset({one.pid}))
        until(lambda: read(PROC / str(one.pid) / "wchan") != "0", "asleep")

        def tick(busy_ns: int) -> set[Activity]:
            """One second of a simulated clock; what the main did at its end."""
            nonlocal now_ns
            now_ns += SECOND
            feed.note_split(busy_ns, {UNKNOWN: SECOND - busy_ns}, now_ns)
            feed.sample(now_ns)
            feed.advance(now_ns)
            found = feed.history.explaining(now_ns - 1, now_ns)
            return {*found.of(Role.MAIN).seen} if found else set()

        for _ in range(busy_ticks):
            if code == SERVES:
                clients.enter_context(program(ASKS, one.words[0]))
            tick(SECOND)
        clients.close()
        until(lambda: tick(0) and tick(0) == {idles}, f"{idles}")
        feed.close()
        groups.keep(set())
    assert descriptors() <= before


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
