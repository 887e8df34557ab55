"""Behind a first thread that sleeps: real processes whose threads, connections, children work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.feeders import tcp
from gpu_bottleneck_exporter.feeders.probe import DeepProbe, ProbeContext, ProbeResult
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.thresholds import JUDGED
from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.host.waits import Wait
from support.programs import Program, descriptors, program
from support.rows import rows
from support.trees import process
from support.waiting import PATIENCE_SECONDS, until

PROC = Path("/proc")
LONGEST_MS = int(PATIENCE_SECONDS * 1000)
"""Deadline before which no request is too old, even if the machine stalls."""
TIMES = 6
CLOSE_TOGETHER_SECONDS = 0.05
NOTHING_BEHIND = ProbeContext(holds=True)
SILENT = "server = socket.create_server(('127.0.0.1', 0)); ready(server.getsockname()[1]); told()"
"""It takes connections, and never answers."""
ASK = "c = connect(int(sys.argv[1]), timeout=60); c.send(b'GET /')\n"
SERVER = """
server = socket.create_server(("127.0.0.1", 0))
ready(server.getsockname()[1])
def serve(connection):
    for _ in iter(lambda: connection.recv(10), b""):
        told()
        connection.send(b"answer")
"""


class Watched:
    """One process as the watching thread sees it, over and over."""

    def __init__(self, one: Program, known: AnswerTimeouts | None) -> None:
        self._reader = ProcessReader(PROC, one.pid)
        self.deep = DeepProbe(PROC, one.pid, known)

    def look(self, around: ProbeContext = NOTHING_BEHIND) -> ProbeResult:
        time.sleep(CLOSE_TOGETHER_SECONDS)
        return self.deep.probe(time.monotonic_ns(), self._reader.wait(), around)

    def comes_to(
        self, condition: Callable[[ProbeResult], object], around: ProbeContext = NOTHING_BEHIND
    ) -> ProbeResult:
        """The first look at which `condition` holds."""
        values: list[ProbeResult] = []

        def look() -> object:
            values.append(self.look(around))
            return condition(values[-1])

        until(look, lambda: f"what was to be seen, not {values[-1]}")
        return values[-1]

    def stays(self, condition: Callable[[ProbeResult], object]) -> ProbeResult:
        """The last of several looks in a row at which `condition` holds."""
        return self.comes_to(
            lambda seen: condition(seen) and all(condition(self.look()) for _ in range(TIMES - 1))
        )

    def close(self) -> None:
        self._reader.close()
        self.deep.close()


Watch = Callable[..., Watched]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    patient = replace(JUDGED, min_response_timeout_ms=LONGEST_MS)
    monkeypatch.setattr(tcp, "JUDGED", patient)
    before, default = descriptors(), AnswerTimeouts(LONGEST_MS)
    made: list[Watched] = []

    def begin(one: Program, known: AnswerTimeouts | None = default) -> Watched:
        made.append(Watched(one, known))
        return made[-1]

    yield begin
    for watched in made:
        watched.close()
    assert descriptors() <= before, "all descriptors are given back"


@pytest.fixture
def silent() -> Iterator[str]:
    with program(SILENT) as child:
        yield child.words[0]


RUN, NETWORK, QUEUE, SLEEP = Activity.RUN, Activity.NETWORK, Activity.QUEUE, Activity.SLEEP
TAKE = "c = connect(int(sys.argv[1]))\n"
WRITABLE = "e = select.epoll(); e.register(c, select.EPOLLOUT); ready(); e.poll()"
DECODE = "named('decode', lambda: [hashlib.md5(big) for _ in iter(int, 1)])"
WAITS = "ready(); os.wait()"
OTHERS = """
import hashlib
big = bytes(10**8)

def fetch():
    c.recv(1)

def other(do):
    named("other", do)
    locked()

"""


@rows(
    "reason, code",
    {
        "a lock": ("lock", "ready(); locked()"),
        "a timer": ("timer", "ready(); time.sleep(60)"),
        "a child": ("child", "c = subprocess.Popen(['sleep', '60']); ready(); c.wait()"),
        "a child of its own": ("child", "if os.fork() == 0: locked()\nready(); os.wait()"),
        "input": ("input", "ready(); sys.stdin.readline()"),
        "a pipe": ("pipe", "r, w = os.pipe(); ready(); os.read(r, 1)"),
        "a poll": ("poll", "ready(); select.poll().poll()"),
        "stopped by a signal": ("stopped", "ready(); os.kill(os.getpid(), signal.SIGSTOP)"),
        "a server, stopped": ("stopped", f"{SERVER}os.kill(os.getpid(), signal.SIGSTOP)"),
        "idle threads": ("lock", "for _ in range(9): named('pool', locked)\nready(); locked()"),
        "a launching one": ("lock", "named('pt_autograd_0', locked); ready(); locked()"),
        "never asked": ("poll", "c = connect(int(sys.argv[1]), 60); ready(); c.recv(1)"),
        "never asked, blocking": ("socket", f"{TAKE}ready(); c.recv(1)"),
        "asked, in a lock": ("lock", f"{ASK}ready(); locked()"),
        "asked, in a timer": ("timer", f"{ASK}ready(); time.sleep(60)"),
        "asked, and another polled": (
            "poll",
            f"{ASK}a, b = socket.socketpair(); b.settimeout(60); ready(); b.recv(1)",
        ),
        "its own pair": ("pipe", "a, b = socket.socketpair(); ready(); a.recv(1)"),
    },
)
def test_nothing_is_behind_a_sleep(watch: Watch, silent: str, reason: str, code: str) -> None:
    with program(code, silent) as child:
        expected: tuple[str, dict[Activity, int], bool] = (reason, {}, False)
        result = watch(child).stays(
            lambda result: (result.reason, result.active, result.serves) == expected
        )
        assert result.whole in (SLEEP, QUEUE)


@rows(
    "code",
    {
        "with a timeout": f"{ASK}ready(); c.recv(1)",
        "without one": f"{ASK}ready(); c.settimeout(None); c.recv(1)",
        "select": f"{ASK}ready(); select.select([c], [], [])",
        "poll": f"{ASK}p = select.poll(); p.register(c, select.POLLIN); ready(); p.poll()",
        "epoll": f"{ASK}p = select.epoll(); p.register(c, select.EPOLLIN); ready(); p.poll()",
        "sends": f"{TAKE}ready(); c.sendall(bytes(10**8))",
        "sends with a timeout": f"{TAKE}c.settimeout(60); ready(); c.sendall(bytes(10**8))",
        "sends by epoll": f"{ASK}c.setblocking(False); c.send(bytes(10**8)); {WRITABLE}",
    },
)
def test_the_first_thread_waits_for_the_network(watch: Watch, silent: str, code: str) -> None:
    with program(code, silent) as child:
        result = watch(child).comes_to(lambda result: result.first is NETWORK)
        assert (result.whole, result.serves) == (NETWORK, False)


@rows(
    "first, active, code",
    {
        "a thread": (QUEUE, {NETWORK: 1}, f"{ASK}named('loader', fetch); ready(); locked()"),
        "an odd name": (QUEUE, {NETWORK: 1}, f"{ASK}named('a) R 1 (b', fetch); ready(); locked()"),
        "threads": (QUEUE, {RUN: 2}, f"{DECODE}; {DECODE}\nready(); locked()"),
        "a launching thread": (RUN, {}, "named('pt_autograd_0', burn); ready(); locked()"),
        "a child": (QUEUE, {RUN: 1}, "os.fork() or burn()\nready(); locked()"),
        "a child that fetches": (SLEEP, {NETWORK: 1}, f"{ASK}os.fork() or fetch()\n{WAITS}"),
        "its thread": (SLEEP, {NETWORK: 1}, f"{ASK}os.fork() or other(fetch)\n{WAITS}"),
        "its thread that burns": (SLEEP, {RUN: 1}, f"os.fork() or other(burn)\n{WAITS}"),
        "a grandchild": (SLEEP, {RUN: 1}, f"os.fork() or os.fork() or burn()\n{WAITS}"),
    },
)
def test_others_work_while_the_first_sleeps(
    watch: Watch, silent: str, first: Activity, active: dict[Activity, int], code: str
) -> None:
    with program(OTHERS + code, silent) as child:
        # What was only just started runs before it fetches, and the first thread before it sleeps.
        result = watch(child).comes_to(
            lambda result: (result.first, result.active) == (first, active)
        )
        assert result.whole is next(iter(active), first)
        assert not result.serves


def test_a_process_with_a_client_that_does_not_read_waits_for_it(watch: Watch) -> None:
    code = f"{SERVER}c, _ = server.accept(); c.sendall(bytes(10**8))"
    with program(code) as child, program(f"{TAKE}ready(); told()", *child.words):
        watch(child).stays(lambda seen: seen.first is NETWORK)


def test_a_response_that_is_awaited_briefly_is_news(watch: Watch, silent: str) -> None:
    with program(f"{ASK}ready(); c.recv(1)", silent) as child:
        watched = watch(child, AnswerTimeouts(200))
        watched.comes_to(lambda seen: (seen.whole, seen.reason) == (SLEEP, "poll"))


def test_without_connections_a_blocking_read_is_all_there_is(watch: Watch, silent: str) -> None:
    with program(f"{TAKE}ready(); c.recv(1)", silent) as child:
        watch(child, None).comes_to(lambda seen: seen.first is NETWORK)


PUSHES = """
server = socket.create_server(("127.0.0.1", 0)); ready(server.getsockname()[1])
a, _ = server.accept()
while True: a.send(bytes(10)); time.sleep(0.1)
"""
SENDS = """
server = socket.socket(type=socket.SOCK_DGRAM); server.bind(("127.0.0.1", 0))
ready(server.getsockname()[1])
_, client = server.recvfrom(1)
while True: server.sendto(bytes(100), client); time.sleep(0.1)
"""
HEAR = """
c = socket.socket(type=socket.SOCK_DGRAM); c.connect(("127.0.0.1", int(sys.argv[1]))); c.send(b"?")
"""


@rows("server, client", {"TCP": (PUSHES, TAKE), "UDP": (SENDS, HEAR)})
@rows("receives", {"first": "ready(); take()", "other": "named('n', take); ready(); locked()"})
def test_a_push_is_waited_for_if_it_feeds_the_gpu(
    watch: Watch, server: str, client: str, receives: str
) -> None:
    timeouts = AnswerTimeouts(LONGEST_MS)
    take = "def take():\n while True: c.recv(100)\n"
    with program(server) as far, program(f"{client}{take}{receives}", *far.words) as child:
        watched = watch(child, timeouts)
        timeouts.worked_ns = 0
        assert not any(watched.look().whole is NETWORK for _ in range(10))

        def waits(seen: ProbeResult) -> bool:
            timeouts.worked_ns = time.monotonic_ns()
            return seen.whole is NETWORK

        watched.comes_to(waits)


def test_a_thread_may_be_known_to_launch_kernels(watch: Watch) -> None:
    with program("named('any', burn); ready(); locked()") as child:
        watched = watch(child)
        watched.comes_to(lambda seen: (seen.first, seen.active) == (QUEUE, {RUN: 1}))
        around = ProbeContext(launches_elsewhere=True)
        watched.comes_to(lambda seen: (seen.first, seen.active) == (RUN, {}), around)


def test_a_child_of_a_thread_works_for_it(watch: Watch) -> None:
    code = "def fetch():\n if os.fork() == 0:\n  ready(); burn()\n os.wait()\nnamed('one', fetch)\n"
    with program(f"{code}locked()") as child:
        # Looked at anew each time: a thread that rests for long is not asked for children.
        until(lambda: watch(child).look().active == {RUN: 1}, "the child")


def test_a_known_child_is_sampled_by_itself(watch: Watch) -> None:
    with program("if os.fork() == 0: burn()\nready(); os.wait()") as child:
        watched = watch(child)
        around = ProbeContext(sampled_pids=range(2**22))
        assert [watched.look(around).active for _ in range(5)] == [{}] * 5


def test_children_that_come_and_go_leave_nothing_open(watch: Watch) -> None:
    with program("ready()\nwhile True: subprocess.run(['sleep', '0.02'])") as child:
        watched = watch(child)
        watched.look()
        before = len(descriptors())
        for _ in range(60):
            watched.look()
            assert len(descriptors()) < before + 100


@rows(
    "accept",
    {
        "one after the other": "while True: serve(server.accept()[0])",
        "threads": "while True:\n c, _ = server.accept(); named('serves', lambda: serve(c))",
        "another thread": "def run():\n while True: serve(server.accept()[0])\n"
        "named('accepts', run); locked()",
        "an event loop": "e = select.epoll(); e.register(server); e.poll()\n"
        "c, _ = server.accept(); e.register(c, select.EPOLLIN); e.poll()\n"
        "told(); c.recv(9); c.send(b'x'); e.poll()",
    },
)
def test_a_server_waits_for_requests_until_one_is_in_flight(watch: Watch, accept: str) -> None:
    with program(SERVER + accept) as child:
        watched = watch(child)
        around = ProbeContext(holds=True, may_serve=True)
        assert watched.comes_to(lambda result: result.whole is Activity.REQUESTS, around).serves
        assert not watched.deep.launches_elsewhere
        ask = "ready()\nfor _ in iter(told, ''): c.send(b'ask')\n"
        with program(TAKE + ask, child.words[0]) as client:
            watched.comes_to(lambda result: result.serves)
            client.tell("ask")
            result = watched.comes_to(lambda result: not result.serves, around)
            assert watched.deep.launches_elsewhere
            assert result.whole is not Activity.REQUESTS
            assert not watched.deep.serving
            child.tell("answer")
            watched.comes_to(lambda result: result.serves)


@pytest.mark.parametrize("reaped", [False, True])
def test_a_process_that_ends_meanwhile(watch: Watch, silent: str, *, reaped: bool) -> None:
    code = f"{ASK}named('one', lambda: c.recv(1))\nif os.fork() == 0: burn()\nready(); locked()"
    with program(code, silent) as child:
        watched = watch(child)
        watched.comes_to(lambda seen: seen.active)
        child.process.kill()
        if reaped:
            child.process.wait()

        def look() -> ProbeResult:
            later_ns = time.monotonic_ns() + 10**10
            return watched.deep.probe(later_ns, Wait.LOCK, NOTHING_BEHIND)

        until(lambda: look().active == {}, "nobody")


def test_usage_of_threads_is_taken_once(watch: Watch) -> None:
    with program("named('burns', burn); ready(); locked()") as child:
        watched = watch(child)

        def used() -> set[str]:
            watched.look()
            return {item.name for item in watched.deep.drain_used() if item.cpu_ns}

        assert until(used, "CPU time") == {"burns"}
        assert watched.deep.drain_used() == []


def test_a_fresh_sample_holds_while_the_wait_is_the_same(tmp_path: Path) -> None:
    process(tmp_path, 7)
    deep, around = DeepProbe(tmp_path, 7, None), ProbeContext(fresh_ns=10)
    first = deep.probe(100, Wait.LOCK, around)
    assert deep.probe(105, Wait.LOCK, around) is first
    assert deep.probe(106, Wait.POLL, around).reason == Wait.POLL.value
    deep.serving = True
    deep.probe(107, Wait.RUN, around)
    assert not deep.serving
    deep.close()
