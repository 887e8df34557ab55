"""Work of a listening main: for its clients, or on its own."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Role
from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.process import ClientRecord
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.tree import ProcessTree
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.files import read
from support import ticks
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
SPINS = """
s = socket.create_server(('127.0.0.1', 0))
def serve():
    while True:
        a, _ = s.accept()
        while a.recv(1): pass
named("serve", serve)
ready(s.getsockname()[1]); burn()
"""
ASKS_IN_VAIN = "c = connect(int(sys.argv[1])); c.send(b'?'); ready(); told()"
ASKS = "c = connect(int(sys.argv[1])); c.send(b'?'); c.recv(1); ready(); told()"


@rows(
    "code, busy_ticks, idles",
    {
        "a listener that never worked is a server": (LISTENS, 0, Activity.REQUESTS),
        "work without clients is no server's": (LISTENS, 10, Activity.QUEUE),
        "work while clients ask is a server's": (SERVES, 10, Activity.REQUESTS),
    },
)
def test_wait_of_a_main_when_its_gpu_idles(code: str, busy_ticks: int, idles: Activity) -> None:
    before, groups, now_ns = descriptors(), Cgroups(Path("/sys")), time.monotonic_ns()
    with program(code) as process, ExitStack() as clients:
        feed = FeederGroup(PROC, groups, AnswerTimeouts(30_000))
        feed.adopt(ProcessTree({process.pid}, others={process.pid}))
        until(lambda: read(PROC / str(process.pid) / "wchan") != "0", "asleep")

        def tick(busy_ns: int) -> set[Activity]:
            """One second of a simulated clock; what the main did at its end."""
            nonlocal now_ns
            now_ns += SECOND
            feed.note(ticks.tick(busy_ns, {UNKNOWN: SECOND - busy_ns}, now_ns))
            feed.sample(now_ns)
            feed.advance(now_ns)
            bucket = feed.history.explaining(now_ns - 1, now_ns)
            return {*bucket.of(Role.MAIN).by_activity} if bucket else set()

        for _ in range(busy_ticks):
            if code == SERVES:
                clients.enter_context(program(ASKS, process.words[0]))
            tick(SECOND)
        clients.close()
        until(lambda: tick(0) and tick(0) == {idles}, f"{idles}")
        feed.close()
        groups.retain(set())
    assert descriptors() <= before


def test_a_server_that_spins_waits_for_requests_until_one_is_open() -> None:
    groups, now_ns = Cgroups(Path("/sys")), time.monotonic_ns()
    with program(SPINS) as process:
        feed = FeederGroup(PROC, groups, AnswerTimeouts(30_000))
        feed.adopt(ProcessTree({process.pid}, others={process.pid}))

        def tick() -> set[Activity]:
            nonlocal now_ns
            now_ns += SECOND
            feed.note(ticks.tick(0, {UNKNOWN: SECOND}, now_ns))
            feed.sample(now_ns)
            feed.advance(now_ns)
            bucket = feed.history.explaining(now_ns - 1, now_ns)
            return {*bucket.of(Role.MAIN).by_activity} if bucket else set()

        until(lambda: tick() == {Activity.REQUESTS}, "it waits for requests")
        evidence = feed.evidence(now_ns)
        assert ("requests", "the engine polls: it runs without an open request") in evidence
        with program(ASKS_IN_VAIN, process.words[0]):
            until(lambda: tick() == {Activity.RUN}, "it works on a request")
        until(lambda: tick() == {Activity.REQUESTS}, "the client has gone")
        feed.close()
        groups.retain(set())


@rows(
    "by_itself, for_clients, samples",
    {
        "nothing yet": (False, False, []),
        "a GPU that never works": (False, False, 100 * [(0.0, False)]),
        "too few without a request": (False, False, 7 * [(1.0, False)]),
        "all without a request": (True, False, 8 * [(1.0, False)]),
        "a loop that idles": (True, False, 90 * [(0.1, False)]),
        "a loop with scraped metrics": (True, False, [(0.2, n % 40 == 0) for n in range(90)]),
        "a server": (False, True, 3 * [(0.5, True)]),
        "a server with few requests": (
            False,
            True,
            [(0.1, number % 10 == 0) for number in range(99)],
        ),
        "one that also works alone": (False, False, [(1.0, n % 3 == 0) for n in range(99)]),
        "a loop that serves later": (False, True, 99 * [(1.0, False)] + 400 * [(1.0, True)]),
    },
)
def test_a_gpu_works_for_clients_or_by_itself(
    samples: list[tuple[float, bool]], *, by_itself: bool, for_clients: bool
) -> None:
    works = ClientRecord()
    for busy, clients in samples:
        works.note(clients=clients, busy=busy)
    assert (works.by_itself, works.for_clients) == (by_itself, for_clients)


def test_it_is_asked_often_at_first_and_seldom_later() -> None:
    works = ClientRecord()
    values = []
    for second in range(60):
        if works.is_due(second * SECOND):
            values.append(second)
            works.note(clients=False, busy=1.0)
    assert values == [0, 2, 4, 6, 16, 26, 36, 46, 56]
