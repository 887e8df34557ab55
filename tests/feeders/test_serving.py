"""The clients of a server, as its sockets show them: real processes and real connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Role
from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.serving import Serving
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts, TcpTracker, Verdict
from gpu_bottleneck_exporter.feeders.thresholds import JUDGED
from gpu_bottleneck_exporter.feeders.tree import ProcessTree
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.files import MAX_QUERIED_SOCKETS
from gpu_bottleneck_exporter.host.sockets import Connection, Sockets
from gpu_bottleneck_exporter.schedule import CADENCE
from support.programs import Program, descriptors, program
from support.rows import rows
from support.ticks import tick
from support.waiting import until

PROC, SECOND = Path("/proc"), 10**9
LISTENER = "s = socket.create_server(('127.0.0.1', 0), backlog=512); port = s.getsockname()[1]\n"
SERVER = f"""{LISTENER}
def serve(a):
    while word := a.recv(100):
        if word == b"late": time.sleep(0.4)
        if word in {b"quick", b"late"}: a.send(b"done")
        for _ in range(5 * (word == b"tokens")):
            select.select([a], [], [], 0.02)
            a.send(b"token")
        if word == b"tokens": a.send(b"!")
        while word == b"flood": a.sendall(bytes(100_000))
        while word == b"stream" and not select.select([a], [], [], 0.01)[0]: a.send(b"token")
def accept():
    while True:
        a, _ = s.accept()
        named("client", lambda a=a: serve(a))
"""
SERVES = f"{SERVER}\nnamed('accept', accept); ready(port); locked()"
FRONT_END = f"""{SERVER}
inner = socket.create_server(("127.0.0.1", 0))
engine = os.fork()
if not engine:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    s.close()
    c = connect(inner.getsockname()[1])
    inner.close()
    c.recv(1)
a, _ = inner.accept()
named('accept', accept); ready(port, engine); locked()
"""
FORKED = f"""{LISTENER}
ready(port)
a, _ = s.accept()
child = os.fork()
if not child: ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
else: ready(child)
locked()
"""


class Server:
    """A server on a GPU that idles, unless told otherwise, and its clients: the test itself."""

    def __init__(self, main: Program, stack: ExitStack, pid: int, *, lends: bool = True) -> None:
        timeouts = AnswerTimeouts(30_000) if lends else None
        self.groups = Cgroups(Path("/sys"))
        self.feed = FeederGroup(PROC, self.groups, timeouts)
        self.feed.adopt(ProcessTree({pid}, others={pid}))
        self.main, self.port = main, int(main.words[0])
        self._now_ns = time.monotonic_ns()
        self._stack = stack
        stack.callback(self.groups.retain, ())
        stack.callback(self.feed.close)

    def connect(self, word: bytes = b"") -> socket.socket:
        client = self._stack.enter_context(socket.create_connection(("127.0.0.1", self.port)))
        client.settimeout(30)
        client.sendall(word)
        if word in {b"quick", b"stream"}:
            assert client.recv(4)
        return client

    def serving(self, *, busy: bool = False) -> Serving | None:
        """Its clients, after one more second of a simulated clock."""
        self._now_ns += SECOND
        busy_ns = busy * SECOND
        self.feed.note(tick(busy_ns, {UNKNOWN: SECOND - busy_ns}, self._now_ns))
        self.feed.sample(self._now_ns)
        self.feed.advance(self._now_ns)
        return self.feed.serving(self._now_ns)

    def shows(self, clients: int, requests: int, waiting: int = 0) -> Serving:
        """Its clients, once these are the figures."""

        def sampled() -> Serving | None:
            found = self.serving()
            if not found:
                return None
            figures = found.clients, found.requests_in_flight, found.waiting_clients
            return found if figures == (clients, requests, waiting) else None

        found = until(sampled, f"{clients} clients, {requests} requests, {waiting} waiting")
        assert found is not None
        return found

    def activities(self, samples: int = 20, pause: float = 0.05) -> set[Activity]:
        """The activities of its main and threads in as many samples of real time."""
        found = set[Activity]()
        for _ in range(samples):
            time.sleep(pause)
            before, self._now_ns = self._now_ns, self._now_ns + SECOND
            self.feed.note(tick(0, {UNKNOWN: SECOND}, self._now_ns))
            self.feed.sample(self._now_ns)
            bucket = self.feed.history.passes_since(before)
            for role in (Role.MAIN, Role.THREAD):
                found |= bucket.of(role).by_activity.keys()
        return found

    @property
    def tcp(self) -> TcpTracker:
        """The tracker of its main's connections."""
        (main,) = self.feed.mains.values()
        tracker = main.deepen().tcp
        assert tracker is not None
        return tracker


Start = Callable[..., Server]


@pytest.fixture
def start() -> Iterator[Start]:
    before = descriptors()
    with ExitStack() as stack:

        def begin(code: str, *, engine: bool = False, lends: bool = True) -> Server:
            main = stack.enter_context(program(code))
            pid = int(main.words[1]) if engine else main.pid
            server = Server(main, stack, pid, lends=lends)
            if engine:
                server.feed.family.adopt_kin({main.pid})
            return server

        yield begin
    assert descriptors() <= before


def test_a_server_with_clients_of_whom_some_wait_for_a_response(start: Start) -> None:
    server = start(SERVES)
    kept_alive = [server.connect(b"quick") for _ in range(3)]
    silent = server.connect()
    slow = [server.connect(b"slow") for _ in range(2)]
    found = server.shows(clients=6, requests=2)
    assert (found.ports, found.complete) == ((server.port,), True)
    time.sleep(0.5)
    longest = server.shows(clients=6, requests=2).longest_request_seconds
    assert longest is not None
    assert 0.5 <= longest < 30
    for client in (*slow, silent):
        client.close()
    assert server.shows(clients=3, requests=0).longest_request_seconds is None
    kept_alive[0].sendall(b"slow")
    server.shows(clients=3, requests=1)


def test_a_connection_that_is_kept_alive_is_no_request(start: Start) -> None:
    server = start(SERVES)
    for _ in range(20):
        server.connect(b"quick")  # answered within a tick of the kernel
    for _ in range(2):
        found = server.serving()
        assert found
        assert (found.clients, found.requests_in_flight) == (20, 0)


def test_a_server_that_no_client_asks(start: Start) -> None:
    server = start(SERVES)
    assert server.serving() == Serving((server.port,), 0, 0, 0, None, complete=True)


def test_clients_that_the_server_has_not_accepted(start: Start) -> None:
    server = start(f"{LISTENER}\nready(port); locked()")
    for _ in range(4):
        server.connect(b"slow")
    server.shows(clients=4, requests=0, waiting=4)


def test_a_response_in_parts_is_in_flight_until_its_last_part(start: Start) -> None:
    server = start(SERVES)
    streaming, answered = server.connect(b"stream"), server.connect(b"quick")
    time.sleep(0.3)  # so that the other response is no part of a stream
    found = server.shows(clients=2, requests=1)
    assert found.longest_request_seconds is not None
    assert found.longest_request_seconds >= 0.3
    streaming.sendall(b"quick")
    server.shows(clients=2, requests=0)
    answered.sendall(b"slow")
    server.shows(clients=2, requests=1)


def test_the_port_is_that_of_the_front_end_not_that_of_its_engine(start: Start) -> None:
    server = start(FRONT_END, engine=True)
    assert server.shows(clients=0, requests=0).ports == (server.port,)
    client = server.connect(b"slow")
    assert server.shows(clients=1, requests=1).ports == (server.port,)
    client.close()
    server.shows(clients=0, requests=0)


def test_a_socket_that_processes_share_counts_once(start: Start) -> None:
    server = start(FORKED)
    client = server.connect(b"slow")
    child = until(lambda: [pid for pid in children(server) if pid], "its child")
    server.feed.family.adopt_kin({*child})
    server.shows(clients=1, requests=1)
    client.close()


KIN = f"""{LISTENER}
def fork():
    child = os.fork()
    if not child:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        client = s.accept()
        locked()
    return child
ready(port, *[fork() for _ in range(NUMBER)]); locked()
"""


def with_kin(start: Start, number: int) -> Server:
    """A server with as many processes, each with a request, beside its main."""
    server = start(KIN.replace("NUMBER", f"{number}"))
    server.feed.family.adopt_kin({*map(int, server.main.words[1:])})
    for _ in range(number):
        server.connect(b"slow")
    return server


def test_many_processes_take_turns_in_samples(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, inspections, query = with_kin(start, 10), list[int](), Sockets.query

    def count(sockets: Sockets, required: Collection[int] = ()) -> list[Connection]:
        inspections.append(id(sockets))
        return query(sockets, required)

    monkeypatch.setattr(Sockets, "query", count)
    server.feed.serving(0)
    assert len(inspections) <= 4
    for number in (1, 2):
        server.feed.serving(number)
    assert len({*inspections}) == 1 + 10
    assert not until(lambda: server.feed.serving(3), "a sample of the main").complete

    def clients() -> tuple[int, int] | None:
        found = server.feed.serving(3)
        return (found.clients, found.waiting_clients) if found else None

    until(lambda: clients() == (10, 0), "all clients, of processes sampled before, too")


def test_an_unreadable_process_does_not_hide_the_others(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, query = with_kin(start, 2), Sockets.query

    def figures() -> tuple[int, bool] | None:
        found = server.feed.serving(0)
        return (found.clients - found.waiting_clients, found.complete) if found else None

    until(lambda: figures() == (2, True), "both clients")
    refused = f"{PROC}/{server.main.words[1]}/"

    def refuse(sockets: Sockets, required: Collection[int] = ()) -> list[Connection]:
        if vars(sockets)["_folder"].startswith(refused):
            raise PermissionError
        return query(sockets, required)

    monkeypatch.setattr(Sockets, "query", refuse)
    assert figures() == (1, False)


def children(server: Server) -> list[int]:
    """The children of its main."""
    (main,) = server.feed.mains
    return [int(pid) for pid in (PROC / f"{main}/task/{main}/children").read_text().split()]


def test_more_clients_than_a_sample_covers_are_a_lower_bound(start: Start) -> None:
    number = 4 * MAX_QUERIED_SOCKETS
    server = start(
        f"{LISTENER}ready(port); clients = [s.accept() for _ in range({number})]; locked()"
    )
    for _ in range(number):
        server.connect()

    def sampled() -> Serving | None:
        found = server.serving()
        return None if found is None or found.complete or found.waiting_clients else found

    until(sampled, "a part")
    for _ in range(4):
        found = sampled()
        assert found, "the listening socket is always part of the sample"
        assert MAX_QUERIED_SOCKETS // 2 <= found.clients < number


def test_a_loop_that_listens_and_works_by_itself_is_no_server(start: Start) -> None:
    server = start(SERVES)
    assert server.serving() is not None
    (main,) = server.feed.mains.values()
    for _ in range(20):
        main.works.note(clients=False, busy=1.0)
    server.connect(b"slow")
    assert [server.serving() for _ in range(3)] == 3 * [None]


def test_while_a_gpu_works_only_an_open_request_tells_a_new_server(start: Start) -> None:
    server = start(SERVES)
    assert server.serving(busy=True) is None
    server.connect(b"slow")
    found = until(lambda: server.serving(busy=True), "its request")
    assert (found.clients, found.requests_in_flight) == (1, 1)


def test_sockets_that_cannot_be_read_are_unknown(start: Start) -> None:
    assert start(SERVES, lends=False).serving() is None


def test_a_process_that_listens_later_is_found(start: Start) -> None:
    server = start(f"ready(0); told()\n{LISTENER}ready(port); locked()")
    assert server.serving() is None
    (port,) = map(int, server.main.ask())
    found = [server.serving() for _ in range(CADENCE.slow_ns // SECOND)]
    assert found[0] is None, "a process without a port is read rarely"
    assert [serving.ports for serving in found if serving] == [(port,)]


def test_a_server_with_many_clients_lacks_demand(start: Start) -> None:
    """The listening socket is part of each sample."""
    number = 4 * MAX_QUERIED_SOCKETS
    server = start(
        f"{LISTENER}ready(port); kept = [s.accept() for _ in range({number})]; ready(); locked()"
    )
    clients = [server.connect() for _ in range(number)]
    assert not server.main.hear()
    assert server.activities(samples=10) == {Activity.REQUESTS}
    assert server.tcp.ports == {server.port}
    clients[-7].sendall(b"slow")
    until(lambda: Activity.REQUESTS not in server.activities(samples=1), "its request")
    assert Activity.REQUESTS not in server.activities(samples=10), "sampled until it is answered"


def test_a_thread_per_client_leaves_room_for_others_in_a_sample(start: Start) -> None:
    server = start(SERVES)
    clients = [server.connect(b"quick") for _ in range(3 * MAX_QUERIED_SOCKETS)]
    assert server.activities(samples=10) == {Activity.REQUESTS}
    clients[-7].sendall(b"slow")
    until(lambda: Activity.REQUESTS not in server.activities(samples=1), "its request")


def test_a_server_of_kept_alive_connections_lacks_demand(start: Start) -> None:
    server = start(SERVES)
    for _ in range(20):
        server.connect(b"quick")
    assert server.activities() == {Activity.REQUESTS}


def test_health_checks_are_no_demand(start: Start) -> None:
    server = start(SERVES)
    check = server.connect(b"quick")
    assert server.activities(samples=2) == {Activity.REQUESTS}
    found = set[Activity]()
    for _ in range(8):
        check.sendall(b"quick")
        check.recv(4)
        time.sleep(0.3)
        found |= server.activities(samples=2)
    assert found == {Activity.REQUESTS}


@contextmanager
def asking(server: Server, word: bytes, end: bytes, clients: int) -> Iterator[None]:
    """Clients that ask again as soon as a response ends."""
    ended = threading.Event()

    def ask(client: socket.socket) -> None:
        while not ended.is_set():
            client.sendall(word)
            while not client.recv(100).endswith(end):
                pass

    threads = [threading.Thread(target=ask, args=(server.connect(),)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_closed_loops_are_demand(start: Start) -> None:
    """Each response is followed by the next request within a tick of the kernel."""
    server = start(SERVES)
    with asking(server, b"late", b"done", clients=1):
        server.activities(samples=10)
        idle = [Activity.REQUESTS in server.activities(samples=1) for _ in range(60)]
    assert sum(idle) < 15, "but for the moments between response and request"


def test_a_stream_that_its_clients_read_waits_for_no_network(start: Start) -> None:
    """Nagle's algorithm holds each token until the one before is acknowledged."""
    server = start(SERVES)
    with asking(server, b"tokens", b"!", clients=20):
        found = server.activities(samples=60)
    assert Activity.NETWORK not in found


def test_a_stream_that_its_client_does_not_read_waits_for_the_network(start: Start) -> None:
    server = start(SERVES)
    client = server.connect(b"flood")
    assert client.recv(1)
    until(lambda: Activity.NETWORK in server.activities(samples=1), "a window that stays full")


POLLS = f"""{LISTENER}
poll, clients = select.epoll(), {{}}
poll.register(s, select.EPOLLIN)
ready(port)
while True:
    for fd, events in poll.poll():
        if fd == s.fileno():
            a, _ = s.accept()
            a.setblocking(False)
            clients[a.fileno()] = a
            poll.register(a, select.EPOLLIN)
            continue
        if events & select.EPOLLIN and clients[fd].recv(100) == b"quick":
            clients[fd].send(b"done")
            continue
        poll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
        try:
            while True: clients[fd].send(bytes(100_000))
        except BlockingIOError: pass
"""


def test_an_event_loop_does_not_wait_for_one_client_that_does_not_read(start: Start) -> None:
    server = start(POLLS)
    server.connect(b"quick")
    assert server.activities(samples=4) == {Activity.REQUESTS}
    server.connect(b"flood")
    until(lambda: server.activities(samples=1) and unread(server), "a window that stays full")
    assert server.activities(samples=4) == {Activity.REQUESTS}


def unread(server: Server) -> bool:
    """Whether a client of its main does not read."""
    return Verdict.UNREAD in server.tcp.verdicts.values()


THINKS = f"""{LISTENER}
def think():
    while True:
        a, _ = s.accept()
        named("client", lambda a=a: (a.recv(1000), a.send(b"switching"), a.recv(100), locked()))
named("accept", think); ready(port); locked()
"""


@rows("parts", {"small": [b"generate"], "in two segments": [19 * b"h", 16 * b"d"]})
def test_a_small_request_after_a_response_is_open(start: Start, parts: list[bytes]) -> None:
    server = start(THINKS)
    client = server.connect(300 * b"x")
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert client.recv(100)
    time.sleep(0.3)
    server.shows(clients=1, requests=0)
    for part in parts:
        client.sendall(part)
    time.sleep(0.3)
    server.shows(clients=1, requests=1)  # on a busy machine, not in the first sample
    found = [server.serving() for _ in range(3)]
    assert [serving.requests_in_flight for serving in found if serving] == [1, 1, 1]


def test_a_client_that_closes_its_side_awaits_its_response(start: Start) -> None:
    server = start(f"{LISTENER}ready(port); a, _ = s.accept(); locked()")
    server.connect(300 * b"x").shutdown(socket.SHUT_WR)
    server.shows(clients=1, requests=1)


@rows(
    "word, limits, requests",
    {
        "a byte": (b"G", {"max_ping_ms": 300}, 0),
        "a request": (300 * b"x", {"max_ping_ms": 300}, 1),
        "a request without end": (300 * b"x", {"max_request_ms": 300}, 0),
    },
)
def test_a_client_that_stays_is_no_request_forever(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    word: bytes,
    limits: dict[str, int],
    requests: int,
) -> None:
    limited = replace(JUDGED, **limits)
    monkeypatch.setattr("gpu_bottleneck_exporter.feeders.tcp.JUDGED", limited)
    server = start(SERVES)
    server.connect(word)
    server.shows(clients=1, requests=1)
    time.sleep(0.5)
    server.shows(clients=1, requests=requests)
