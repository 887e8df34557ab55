"""Behind a first thread that sleeps: real processes whose threads, connections, children work."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.feeders import timeouts
from gpu_bottleneck_exporter.feeders.probe import DeepProbe, Seen, Surroundings
from gpu_bottleneck_exporter.feeders.timeouts import AnswerTimeouts
from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.host.waits import Wait
from support.programs import Program, descriptors, program
from support.waiting import PATIENCE_SECONDS, until

PROC = Path("/proc")
LONGEST_MS = int(PATIENCE_SECONDS * 1000)
"""Until then no question is too old, however long the machine stands still."""
TIMES = 3
CLOSE_TOGETHER_SECONDS = 0.05
NOTHING_BEHIND = Surroundings(holds=True)
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

    def look(self, around: Surroundings = NOTHING_BEHIND) -> Seen:
        time.sleep(CLOSE_TOGETHER_SECONDS)
        return self.deep.probe(time.monotonic_ns(), self._reader.wait(), around)

    def comes_to(
        self, condition: Callable[[Seen], object], around: Surroundings = NOTHING_BEHIND
    ) -> Seen:
        """The first look at which `condition` holds."""
        found: list[Seen] = []

        def look() -> object:
            found.append(self.look(around))
            return condition(found[-1])

        until(look, lambda: f"what was to be seen, not {found[-1]}")
        return found[-1]

    def stays(self, condition: Callable[[Seen], object]) -> Seen:
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
    monkeypatch.setattr(timeouts, "PATIENCE_MS", LONGEST_MS)
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
    with program(SILENT) as one:
        yield one.words[0]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        pytest.param("ready(); locked()", "lock", id="a lock"),
        pytest.param("ready(); time.sleep(60)", "timer", id="a timer"),
        pytest.param(
            "c = subprocess.Popen(['sleep', '60']); ready(); c.wait()", "child", id="a child"
        ),
        pytest.param("ready(); sys.stdin.readline()", "input", id="input"),
        pytest.param("r, w = os.pipe(); ready(); os.read(r, 1)", "pipe", id="a pipe"),
        pytest.param("ready(); select.poll().poll()", "poll", id="a poll"),
        pytest.param(
            "ready(); os.kill(os.getpid(), signal.SIGSTOP)", "stopped", id="stopped by a signal"
        ),
        pytest.param(
            "for _ in range(9): named('pool', locked)\nready(); locked()", "lock", id="idle threads"
        ),
    ],
)
def test_nothing_is_behind_a_sleep(watch: Watch, code: str, reason: str) -> None:
    with program(code) as one:
        expected: tuple[str, dict[Activity, int], bool] = (reason, {}, False)
        seen = watch(one).stays(lambda seen: (seen.reason, seen.active, seen.serves) == expected)
        assert seen.whole in (Activity.SLEEP, Activity.QUEUE)


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param("c.recv(1)", id="with a timeout"),
        pytest.param("c.settimeout(None); c.recv(1)", id="without one"),
        pytest.param("select.select([c], [], [])", id="by select"),
        pytest.param("e = select.epoll(); e.register(c, select.EPOLLIN); e.poll()", id="by epoll"),
        pytest.param("p = select.poll(); p.register(c, select.POLLIN); p.poll()", id="by poll"),
    ],
)
def test_a_client_waits_for_its_answer(watch: Watch, silent: str, wait: str) -> None:
    with program(f"{ASK}ready(); {wait}", silent) as one:
        seen = watch(one).comes_to(lambda seen: seen.first is Activity.NETWORK)
        assert seen.whole is Activity.NETWORK
        assert not seen.serves


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("c = connect(int(sys.argv[1])); ready(); c.recv(1)", id="never asked"),
        pytest.param(f"{ASK}ready(); locked()", id="asked, and it waits for a lock"),
        pytest.param(f"{ASK}ready(); time.sleep(60)", id="asked, and it waits for a timer"),
        pytest.param(
            f"{ASK}a, b = socket.socketpair(); b.settimeout(60); ready(); b.recv(1)",
            id="asked, and it polls another",
        ),
    ],
)
def test_a_connection_that_is_not_waited_on_is_no_network(
    watch: Watch, silent: str, code: str
) -> None:
    with program(code, silent) as one:
        watched = watch(one)
        asleep = {Activity.SLEEP, Activity.QUEUE}
        watched.stays(lambda seen: seen.whole in asleep)  # it may be on its way to sleep yet
        assert {watched.look().whole for _ in range(8)} <= asleep


def test_an_answer_that_nobody_waits_long_for_is_news(watch: Watch, silent: str) -> None:
    with program(f"{ASK}ready(); c.recv(1)", silent) as one:
        watched = watch(one, AnswerTimeouts(200))
        watched.comes_to(lambda seen: (seen.whole, seen.reason) == (Activity.SLEEP, "poll"))


def test_without_connections_a_blocking_read_is_all_there_is(watch: Watch, silent: str) -> None:
    with program("c = connect(int(sys.argv[1])); ready(); c.recv(1)", silent) as one:
        watch(one, None).comes_to(lambda seen: seen.first is Activity.NETWORK)


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
TAKE = "c = connect(int(sys.argv[1]))\n"
HEAR = """
c = socket.socket(type=socket.SOCK_DGRAM); c.connect(("127.0.0.1", int(sys.argv[1]))); c.send(b"?")
"""
FOREVER = "\n    while True: c.recv(100)"


@pytest.mark.parametrize(
    ("server", "client"),
    [pytest.param(PUSHES, TAKE, id="TCP"), pytest.param(SENDS, HEAR, id="UDP")],
)
@pytest.mark.parametrize(
    "receives",
    [
        pytest.param("ready(); take()", id="in the first thread"),
        pytest.param("named('loader', take); ready(); locked()", id="in another"),
    ],
)
@pytest.mark.parametrize("works", [True, False])
def test_what_is_sent_unasked_is_waited_for_if_it_feeds_the_gpu(
    watch: Watch, server: str, client: str, receives: str, *, works: bool
) -> None:
    known = AnswerTimeouts(LONGEST_MS)
    with (
        program(server) as far,
        program(f"{client}def take():{FOREVER}\n{receives}", *far.words) as one,
    ):
        watched = watch(one, known)

        def waits(seen: Seen) -> bool:
            known.worked_ns = time.monotonic_ns() if works else 0
            return seen.whole is Activity.NETWORK

        if works:
            watched.comes_to(waits)
        else:
            assert not any(waits(watched.look()) for _ in range(20))


@pytest.mark.parametrize(
    "sends",
    [
        pytest.param("ready(); c.sendall(bytes(10**8))", id="sends"),
        pytest.param("c.settimeout(60); ready(); c.sendall(bytes(10**8))", id="with a timeout"),
        pytest.param(
            "c.setblocking(False); c.send(bytes(10**8)); e = select.epoll()\n"
            "e.register(c, select.EPOLLOUT); ready(); e.poll()",
            id="by epoll",
        ),
    ],
)
@pytest.mark.parametrize("answers", [True, False])
def test_who_sends_more_than_is_taken_waits_for_the_other_side(
    watch: Watch, silent: str, monkeypatch: pytest.MonkeyPatch, sends: str, *, answers: bool
) -> None:
    monkeypatch.setattr(timeouts, "PATIENCE_MS", 0)
    asks, takes = TAKE, "ready(); told()"
    if answers:
        asks = "server = socket.create_server(('127.0.0.1', 0))\n"
        asks += "ready(server.getsockname()[1]); c, _ = server.accept()\n"
        takes = f"k = connect(int(sys.argv[1])); {takes}"
    with program(f"{asks}{sends}", silent) as one, program(takes, *one.words):
        watch(one).stays(lambda seen: seen.first is Activity.NETWORK)


@pytest.mark.parametrize("name", ["loader", "a) R 1 (b"])
def test_a_thread_fetches_while_the_first_waits(watch: Watch, silent: str, name: str) -> None:
    code = f"{ASK}named({name!r}, lambda: c.recv(1)); ready(); locked()"
    with program(code, silent) as one:
        expected = {Activity.NETWORK: 1}, Activity.QUEUE
        seen = watch(one).comes_to(lambda seen: (seen.active, seen.first) == expected)
        assert seen.whole is Activity.NETWORK


def test_threads_decode(watch: Watch) -> None:
    code = "import hashlib\nbig = bytes(50_000_000)\n"
    code += "for _ in range(2): named('decode', lambda: [hashlib.md5(big) for _ in iter(int, 1)])\n"
    with program(f"{code}ready(); locked()") as one:
        expected = {Activity.RUN: 2}, Activity.QUEUE
        seen = watch(one).comes_to(lambda seen: (seen.active, seen.first) == expected)
        assert seen.whole is Activity.RUN


@pytest.mark.parametrize(
    ("name", "around", "first", "active"),
    [
        ("pt_autograd_0", NOTHING_BEHIND, Activity.RUN, {}),
        ("decode", NOTHING_BEHIND, Activity.QUEUE, {Activity.RUN: 1}),
        ("decode", Surroundings(launches_elsewhere=True), Activity.RUN, {}),
    ],
)
def test_a_thread_that_launches_kernels_stands_for_the_first(
    watch: Watch, name: str, around: Surroundings, first: Activity, active: dict[Activity, int]
) -> None:
    with program(f"named('{name}', burn); ready(); locked()") as one:
        # The first thread itself may run yet.
        watch(one).comes_to(lambda seen: (seen.first, seen.active) == (first, active), around)


def test_a_thread_that_launches_kernels_may_rest(watch: Watch) -> None:
    with program("named('pt_autograd_0', locked); ready(); locked()") as one:
        watch(one).stays(lambda seen: seen.whole is Activity.QUEUE)


@pytest.mark.parametrize(
    ("does", "state"),
    [
        pytest.param("burn()", Activity.RUN, id="burns"),
        pytest.param("c.recv(1)", Activity.NETWORK, id="fetches"),
        pytest.param(
            "named('one', lambda: c.recv(1)); locked()", Activity.NETWORK, id="by a thread"
        ),
        pytest.param("named('one', burn); locked()", Activity.RUN, id="burns in a thread"),
    ],
)
@pytest.mark.parametrize("parent", ["locked()", "os.wait()"])
def test_a_child_works_for_its_parent(
    watch: Watch, silent: str, does: str, state: Activity, parent: str
) -> None:
    code = f"{ASK}\nif os.fork() == 0:\n {does}\nready(); {parent}"
    with program(code, silent) as one:
        # A child that was only just forked runs before it fetches.
        seen = watch(one).comes_to(lambda seen: seen.active == {state: 1})
        assert seen.whole is state


def test_a_grandchild_works_for_it_too(watch: Watch) -> None:
    code = "if os.fork() == 0:\n if os.fork() == 0: burn()\n os.wait()\nready(); os.wait()"
    with program(code) as one:
        watch(one).comes_to(lambda seen: seen.active == {Activity.RUN: 1})


def test_a_child_of_a_thread_works_for_it(watch: Watch) -> None:
    code = "def fetch():\n if os.fork() == 0:\n  ready(); burn()\n os.wait()\nnamed('one', fetch)\n"
    with program(f"{code}locked()") as one:
        # Looked at anew each time: a thread that rests for long is not asked for children.
        until(lambda: watch(one).look().active == {Activity.RUN: 1}, "the child")


def test_a_child_that_is_known_is_looked_at_by_itself(watch: Watch) -> None:
    with program("if os.fork() == 0: burn()\nready(); os.wait()") as one:
        watched = watch(one)
        around = Surroundings(known=range(2**22))
        assert [watched.look(around).active for _ in range(5)] == [{}] * 5


def test_children_that_come_and_go_leave_nothing_open(watch: Watch) -> None:
    code = "ready()\nwhile True: subprocess.run(['sleep', '0.02'])"
    with program(code) as one:
        watched = watch(one)
        watched.look()
        before = most = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
        for _ in range(60):
            watched.look()
            most = max(most, len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - likewise
        assert most < before + 100


def test_who_is_asleep_with_children_asleep_is_asleep(watch: Watch) -> None:
    with program("if os.fork() == 0: locked()\nready(); os.wait()") as one:
        watched = watch(one)
        watched.look()
        # Both may be on their way to sleep yet.
        assert watched.comes_to(lambda seen: seen.whole is Activity.SLEEP)


@pytest.mark.parametrize(
    "accept",
    [
        pytest.param("while True: serve(server.accept()[0])", id="one after the other"),
        pytest.param(
            "while True:\n c, _ = server.accept(); named('serves', lambda: serve(c))", id="threads"
        ),
        pytest.param(
            "def run():\n while True: serve(server.accept()[0])\nnamed('accepts', run); locked()",
            id="another thread",
        ),
        pytest.param(
            "e = select.epoll(); e.register(server); e.poll(); c, _ = server.accept()\n"
            "e.register(c, select.EPOLLIN); e.poll(); told(); c.recv(9); c.send(b'x'); e.poll()",
            id="an event loop",
        ),
    ],
)
def test_a_server_waits_for_requests_until_one_is_in_flight(watch: Watch, accept: str) -> None:
    with program(SERVER + accept) as one:
        watched = watch(one)
        seen = watched.comes_to(lambda seen: seen.whole is Activity.REQUESTS)
        assert seen.serves
        code = "c = connect(int(sys.argv[1])); ready()\nfor _ in iter(told, ''): c.send(b'ask')\n"
        with program(code, one.words[0]) as client:
            watched.comes_to(lambda seen: seen.serves)
            client.tell("ask")
            seen = watched.comes_to(lambda seen: not seen.serves)
            assert seen.whole is not Activity.REQUESTS
            assert not watched.deep.serving
            one.tell("answer")
            watched.comes_to(lambda seen: seen.serves)


def test_who_does_not_listen_serves_nobody(watch: Watch) -> None:
    with program("a, b = socket.socketpair(); ready(); a.recv(1)") as one:
        assert not watch(one).look().serves


def test_a_server_that_is_stopped_serves_nobody(watch: Watch) -> None:
    with program(SERVER + "os.kill(os.getpid(), signal.SIGSTOP)") as one:
        seen = watch(one).comes_to(lambda seen: seen.reason == "stopped")
        assert not seen.serves


@pytest.mark.parametrize("reaped", [False, True])
def test_a_process_that_ends_meanwhile(
    watch: Watch,
    silent: str,
    reaped: bool,  # noqa: FBT001 - a table's column
) -> None:
    code = f"{ASK}named('one', lambda: c.recv(1))\nif os.fork() == 0: burn()\nready(); locked()"
    with program(code, silent) as one:
        watched = watch(one)
        watched.comes_to(lambda seen: seen.active)
        one.process.kill()
        if reaped:
            one.process.wait()
        until(
            lambda: (
                watched.deep.probe(time.monotonic_ns() + 10**10, Wait.LOCK, NOTHING_BEHIND).active
                == {}
            ),
            "nobody",
        )


def test_what_threads_used_is_taken_once(watch: Watch) -> None:
    with program("named('burns', burn); ready(); locked()") as one:
        watched = watch(one)
        until(
            lambda: watched.look() and any(u.cpu_ns for u in watched.deep.threads.used),
            "CPU time",
        )
        assert {u.name for u in watched.deep.drain_used() if u.cpu_ns} == {"burns"}
        assert watched.deep.drain_used() == []
