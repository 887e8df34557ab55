"""Which connections were asked and have not answered: by the numbers, and on real sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.feeders import tcp as module
from gpu_bottleneck_exporter.feeders import timeouts as timeouts_module
from gpu_bottleneck_exporter.feeders.habits import NO_ACCIDENT
from gpu_bottleneck_exporter.feeders.tcp import Course, TcpTracker, Verdict, judge
from gpu_bottleneck_exporter.feeders.timeouts import PATIENCE_MS, AnswerTimeouts
from gpu_bottleneck_exporter.host.sockets import Connection, Endpoint, TcpState
from gpu_bottleneck_exporter.schedule import LATELY_MS
from support.programs import Program, descriptors, program
from support.waiting import PATIENCE_SECONDS, until

PROC = Path("/proc")
LONGEST_MS = 30_000
OF_TESTS_MS = int(PATIENCE_SECONDS * 1000)
"""Until then nothing is too old on real sockets, however long the machine stands still."""
OURS, STORE = Endpoint(bytes([10, 0, 0, 1]), 50_000), Endpoint(bytes([10, 0, 0, 2]), 443)
LONG_AGO = 4_000_000_000
"""What the kernel says of what never happened."""
CLOSE_WAIT = 8
replace = Connection._replace
ASKED = Connection(
    fd=3,
    cookie=1,
    local=OURS,
    remote=STORE,
    state=TcpState.ESTABLISHED,
    sent_ms=400,
    received_ms=900,
    acknowledged_ms=360,
    received_bytes=100_000,
    received_segments=50,
    sent_segments=10,
)
ANSWERED = replace(ASKED, sent_ms=900, received_ms=400, acknowledged_ms=400)
TIE = replace(ASKED, sent_ms=400, received_ms=400, acknowledged_ms=400)
NEVER_USED = replace(
    ASKED,
    sent_ms=LONG_AGO,
    received_ms=LONG_AGO,
    acknowledged_ms=1_000,
    received_bytes=0,
    received_segments=0,
    sent_segments=0,
)
FIRST = replace(NEVER_USED, sent_ms=100, sent_segments=1)
FRESH = replace(ANSWERED, received_ms=20)
LISTENING = replace(NEVER_USED, local=STORE, remote=Endpoint(b"", 0), state=TcpState.LISTEN)
CLIENTS = replace(ASKED, local=STORE, remote=OURS)
PORT = frozenset({STORE.port})


def verdict(
    now: Connection,
    before: Connection | None = None,
    ports: frozenset[int] = frozenset(),
    *,
    ours: bool = False,
) -> Verdict:
    return judge(now, before, ports, PATIENCE_MS, ours=ours)


@pytest.mark.parametrize(
    ("now", "found"),
    [
        pytest.param(ASKED, Verdict.ANSWER, id="asked after the last answer"),
        pytest.param(FIRST, Verdict.ANSWER, id="asked for the first time"),
        pytest.param(ANSWERED, Verdict.IDLE, id="answered since"),
        pytest.param(NEVER_USED, Verdict.IDLE, id="never used"),
        pytest.param(
            replace(NEVER_USED, received_ms=50, received_segments=1, received_bytes=90),
            Verdict.IDLE,
            id="told without having asked",
        ),
        pytest.param(replace(ASKED, sent_ms=PATIENCE_MS), Verdict.IDLE, id="answered long since"),
        pytest.param(
            replace(ASKED, sent_ms=PATIENCE_MS, received_ms=LONG_AGO),
            Verdict.ANSWER,
            id="just young enough",
        ),
        pytest.param(
            replace(ASKED, sent_ms=PATIENCE_MS + 1, received_ms=LONG_AGO),
            Verdict.IDLE,
            id="too old: a long poll, or a dead peer",
        ),
        pytest.param(
            replace(ASKED, state=TcpState.FIN_WAIT1), Verdict.ANSWER, id="we will ask no more"
        ),
        pytest.param(replace(ASKED, state=TcpState.FIN_WAIT2), Verdict.ANSWER, id="they know that"),
        pytest.param(replace(ASKED, state=CLOSE_WAIT), Verdict.IDLE, id="they will answer no more"),
        pytest.param(replace(ASKED, state=TcpState.CLOSE), Verdict.IDLE, id="closed"),
        pytest.param(
            replace(NEVER_USED, state=TcpState.SYN_SENT), Verdict.ANSWER, id="being connected"
        ),
        pytest.param(LISTENING, Verdict.LISTENS, id="a server's own"),
    ],
)
def test_what_a_connection_says_at_the_first_look(now: Connection, found: Verdict) -> None:
    assert verdict(now) is found


@pytest.mark.parametrize(
    ("ages", "found"),
    [
        pytest.param((20, 20), Verdict.ANSWER, id="too young to tell"),
        pytest.param((60, 60), Verdict.ANSWER, id="as long as an acknowledgement may take"),
        pytest.param((400, 400), Verdict.IDLE, id="the answer acknowledged the question"),
        pytest.param((400, 360), Verdict.ANSWER, id="the question was acknowledged by itself"),
        pytest.param((3_000, 2_960), Verdict.ANSWER, id="and is just young enough"),
        pytest.param((3_001, 2_961), Verdict.IDLE, id="and is too old"),
    ],
)
def test_a_question_and_an_answer_at_once(ages: tuple[int, int], found: Verdict) -> None:
    age, acknowledged = ages
    now = replace(TIE, sent_ms=age, received_ms=age, acknowledged_ms=acknowledged)
    assert verdict(now) is found
    assert verdict(now, now) is found


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        pytest.param(
            FRESH,
            replace(FRESH, received_bytes=FRESH.received_bytes + 4096),
            Verdict.ANSWER,
            id="data arrives",
        ),
        pytest.param(
            FRESH,
            replace(FRESH, received_bytes=FRESH.received_bytes + 4095),
            Verdict.IDLE,
            id="hardly any",
        ),
        pytest.param(
            FRESH,
            replace(FRESH, received_ms=251, received_bytes=FRESH.received_bytes + 10**6),
            Verdict.IDLE,
            id="all of it has arrived",
        ),
        pytest.param(None, FRESH, Verdict.IDLE, id="nobody knows yet"),
    ],
)
def test_a_stream_is_one_whose_bytes_grow(
    before: Connection | None, now: Connection, found: Verdict
) -> None:
    assert verdict(now, before) is found


@pytest.mark.parametrize(
    ("now", "found"),
    [
        pytest.param(
            replace(CLIENTS, sent_ms=900, received_ms=400), Verdict.REQUEST, id="in flight"
        ),
        pytest.param(
            replace(CLIENTS, sent_ms=LONG_AGO, received_ms=400), Verdict.REQUEST, id="the first one"
        ),
        pytest.param(CLIENTS, Verdict.SERVED, id="answered"),
        pytest.param(
            replace(CLIENTS, sent_ms=400, received_ms=400), Verdict.SERVED, id="answered at once"
        ),
        pytest.param(
            replace(NEVER_USED, local=STORE, remote=OURS), Verdict.SERVED, id="has asked nothing"
        ),
        pytest.param(
            replace(CLIENTS, sent_ms=LONG_AGO, received_ms=PATIENCE_MS + 1),
            Verdict.REQUEST,
            id="one that takes long",
        ),
        pytest.param(
            replace(CLIENTS, sent_ms=900, received_ms=400, received_segments=0),
            Verdict.SERVED,
            id="has been told something, and has asked nothing",
        ),
        pytest.param(
            replace(CLIENTS, sent_ms=400, received_ms=400, sent_segments=0),
            Verdict.REQUEST,
            id="the first one, as soon as it was connected",
        ),
        pytest.param(
            replace(CLIENTS, sent_ms=LONG_AGO, received_ms=LONG_AGO - 1),
            Verdict.SERVED,
            id="one that nobody will answer",
        ),
        pytest.param(
            replace(CLIENTS, sent_ms=900, received_ms=400, state=CLOSE_WAIT),
            Verdict.SERVED,
            id="who has hung up",
        ),
        pytest.param(LISTENING, Verdict.LISTENS, id="the socket that listens"),
    ],
)
def test_a_client_of_ours_asks_us(now: Connection, found: Verdict) -> None:
    assert verdict(now, ports=PORT) is found


def test_a_question_to_the_job_itself_is_no_network() -> None:
    assert verdict(ASKED, ours=True) is Verdict.OURS
    assert verdict(ASKED) is Verdict.ANSWER
    assert verdict(ANSWERED, ours=True) is Verdict.IDLE


Watch = Callable[[Program], TcpTracker]
CLIENT = """
server = socket.create_server(("127.0.0.1", 0), backlog=600)
ready(server.getsockname()[1])
told()
a, _ = server.accept()
a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small parts do not wait
for line in iter(told, ""):
    word, size = line.split()
    a.recv(10) if word == "hear" else a.sendall(bytes(int(size)))
    ready()
"""
"""The other side: hears and answers as it is told to."""
ASK = """
c = connect(int(sys.argv[1])); ready(c.fileno())
for line in iter(told, ""):
    word, size = line.split()
    if word == "ask":
        c.send(bytes(int(size)))
    elif word == "half":
        c.shutdown(socket.SHUT_WR)
    else:
        got = 0
        while got < int(size): got += len(c.recv(int(size)))
    ready()
"""


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    monkeypatch.setattr(timeouts_module, "PATIENCE_MS", OF_TESTS_MS)
    before = descriptors()
    yield lambda one: TcpTracker(PROC, one.pid, AnswerTimeouts(OF_TESTS_MS))
    assert descriptors() <= before, "all descriptors are given back"


@pytest.fixture
def server() -> Iterator[Program]:
    with program(CLIENT) as one:
        yield one


@pytest.fixture
def client(server: Program) -> Iterator[Program]:
    with program(ASK, server.words[0]) as one:
        server.tell()
        yield one


def does(one: Program, what: str) -> None:
    one.tell(what)
    one.hear()


def says(tcp: TcpTracker, one: Program) -> Verdict:
    return tcp.inspect((), whole=True)[int(one.words[0])]


def says_anywhere(tcp: TcpTracker, verdict: Verdict) -> bool:
    return verdict in tcp.inspect((), whole=True).values()


def remote(server: Program) -> Endpoint:
    return Endpoint(bytes([127, 0, 0, 1]), int(server.words[0]))


def test_a_connection_that_was_never_used_is_idle(watch: Watch, client: Program) -> None:
    tcp = watch(client)
    assert [says(tcp, client) for _ in range(3)] == [Verdict.IDLE] * 3
    assert tcp.owed is None


def test_a_slow_server_owes_an_answer(watch: Watch, server: Program, client: Program) -> None:
    tcp = watch(client)
    does(client, "ask 10")
    for _ in range(5):
        time.sleep(0.05)
        assert says(tcp, client) is Verdict.ANSWER
    assert tcp.owed is not None
    assert tcp.owed.remote.port == int(server.words[0])
    assert 150 <= tcp.owed.waited_ms < OF_TESTS_MS
    does(server, "say 100")
    does(client, "hear 100")
    until(lambda: says(tcp, client) is Verdict.IDLE, "an idle connection")


def test_a_kept_connection_is_idle_until_it_is_asked_again(
    watch: Watch, server: Program, client: Program
) -> None:
    tcp = watch(client)
    for _ in range(3):
        does(client, "ask 10")
        assert says(tcp, client) is Verdict.ANSWER
        time.sleep(0.05)
        does(server, "say 5000")
        does(client, "hear 5000")
        until(lambda: says(tcp, client) is Verdict.IDLE, "an idle connection")


def test_a_half_closed_connection_may_still_be_answered(
    watch: Watch, server: Program, client: Program
) -> None:
    tcp = watch(client)
    does(client, "ask 10")
    does(client, "half 0")
    assert says(tcp, client) is Verdict.ANSWER
    server.end()
    until(lambda: says(tcp, client) is Verdict.IDLE, "the end")


def test_a_stream_arrives_though_nothing_is_asked(
    watch: Watch, server: Program, client: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STREAM_MS", OF_TESTS_MS)
    tcp = watch(client)
    does(client, "ask 10")
    time.sleep(0.05)
    for _ in range(5):
        says(tcp, client)
        does(server, "say 10000")
        does(client, "hear 10000")
        assert says(tcp, client) is Verdict.ANSWER


def test_who_is_sent_data_again_and_again_waits_for_more_of_it(
    watch: Watch, server: Program, client: Program
) -> None:
    tcp = watch(client)
    does(client, "ask 10")
    time.sleep(0.1)  # question and answer are told apart
    for times in range(4):
        does(server, "say 10000")
        does(client, "hear 10000")
        found = says(tcp, client)
        (course,) = tcp._courses.values()
        arriving = times and course.now.received_ms <= module._STREAM_MS
        assert found is (Verdict.ANSWER if arriving or times >= 2 else Verdict.IDLE)
        time.sleep(0.3)
        assert says(tcp, client) is (Verdict.ANSWER if times >= 2 else Verdict.IDLE)

    def is_answered() -> bool:
        does(client, "ask 10")
        does(server, "say 10")
        does(client, "hear 10")
        return says(tcp, client) is Verdict.IDLE

    until(is_answered, "answers")


def test_pushes_are_told_from_answers_by_what_was_sent_in_between() -> None:
    one = replace(FRESH, sent_ms=LONG_AGO)
    course = Course(one)

    def comes(data: int = 10_000, sent: int = 0, *, feeds: bool = False) -> bool:
        more = replace(
            course.now,
            received_ms=20,
            received_bytes=course.now.received_bytes + data,
            sent_segments=course.now.sent_segments + sent,
        )
        course.update(more, held=False, feeds=feeds)
        course.update(replace(more, received_ms=100 if feeds else 400), held=False, feeds=feeds)
        return course.pushed

    assert [comes() for _ in range(4)] == [False, False, True, True]
    assert comes(sent=1), "a ping"
    assert [comes(sent=1) for _ in range(4)][2:] == [False, False], "maybe answers"
    assert not any(comes(100) for _ in range(4)), "signals"
    assert [comes(100, feeds=True) for _ in range(3)] == [False, True, True]


def test_who_fed_the_gpu_once_may_send_mere_signals_later(server: Program, client: Program) -> None:
    patience = AnswerTimeouts(OF_TESTS_MS)
    tcp = TcpTracker(PROC, client.pid, patience)
    for _ in range(2):
        patience.note_answer(remote(server), 10)
        patience.worked_ns = time.monotonic_ns()
        assert patience.never_fed(remote(server)) is False
    found = []
    says(tcp, client)
    for _ in range(NO_ACCIDENT + 1):
        does(client, "ask 10")
        found.append(says(tcp, client))
        does(server, "say 10")
        does(client, "hear 10")
        says(tcp, client)
    assert patience.feeds(remote(server))
    assert found[0] is Verdict.ANSWER
    assert found[-1] is not Verdict.ANSWER


def test_a_question_grows_too_old(client: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts_module, "PATIENCE_MS", OF_TESTS_MS)
    tcp = TcpTracker(PROC, client.pid, AnswerTimeouts(OF_TESTS_MS))
    does(client, "ask 10")
    assert says(tcp, client) is Verdict.ANSWER
    monkeypatch.setattr(timeouts_module, "PATIENCE_MS", 200)
    until(lambda: says(tcp, client) is Verdict.IDLE, "patience at its end")


@pytest.mark.parametrize(
    ("size", "held", "works", "last"),
    [
        pytest.param(100, False, True, Verdict.ANSWER, id="answers with data that feed the GPU"),
        pytest.param(5, True, True, Verdict.ANSWER, id="small ones that its own thread waits for"),
        pytest.param(5, False, True, Verdict.IDLE, id="pings beside a GPU that works"),
        pytest.param(5, True, False, Verdict.IDLE, id="nothing new for a GPU that idles"),
        pytest.param(100, True, False, Verdict.IDLE, id="jobs for another one"),
    ],
)
def test_slow_answers_that_feed_the_gpu_are_learnt(  # noqa: PLR0913 - one row of a table
    server: Program,
    client: Program,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    *,
    held: bool,
    works: bool,
    last: Verdict,
) -> None:
    monkeypatch.setattr(timeouts_module, "PATIENCE_MS", 100)
    monkeypatch.setattr(module, "_LONG_POLL_MS", 400)
    patience = AnswerTimeouts(OF_TESTS_MS)
    tcp, number = TcpTracker(PROC, client.pid, patience), int(client.words[0])
    waits_on = (number,) if held else ()

    def look() -> Verdict:
        return tcp.inspect((number,), (), waits_on, whole=True)[number]

    def asks() -> Verdict:
        """Ask, and wait too long; the verdict then."""
        time.sleep(0.05)  # question and answer are told apart
        does(client, "ask 10")
        until(lambda: look() and tcp._courses and waited() >= 500, "a wait")
        return look()

    def waited() -> int:
        (course,) = tcp._courses.values()
        return course.waited_ms

    for _ in range(4):
        assert asks() is Verdict.IDLE or (patience.feeds(remote(server)) and works)
        does(server, f"say {size}")
        does(client, f"hear {size}")
        look()
        if works:
            patience.worked_ns = time.monotonic_ns()
    found = asks()
    assert found is last


@pytest.mark.parametrize(
    ("size", "late", "fed", "last"),
    [
        pytest.param(200, True, False, Verdict.IDLE, id="nothing new, in many words"),
        pytest.param(200, False, False, Verdict.ANSWER, id="small files, one after the other"),
        pytest.param(5_000, True, False, Verdict.ANSWER, id="parts of a large file"),
        pytest.param(200, True, True, Verdict.ANSWER, id="who has fed the GPU before"),
    ],
)
def test_who_is_asked_in_vain_is_a_queue(  # noqa: PLR0913 - one row of a table
    server: Program,
    client: Program,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    *,
    late: bool,
    fed: bool,
    last: Verdict,
) -> None:
    monkeypatch.setattr(module, "_STREAM_MS", 100)
    patience = AnswerTimeouts(OF_TESTS_MS)
    tcp = TcpTracker(PROC, client.pid, patience)
    if fed:
        patience.note_answer(remote(server), 10)
        patience.worked_ns = time.monotonic_ns()
        assert not patience.never_fed(remote(server))
    patience.worked_ns -= 2 * LATELY_MS * 1_000_000
    does(client, "ask 10")
    for _ in range(NO_ACCIDENT):
        until(lambda: says(tcp, client) is Verdict.ANSWER, "a question")
        time.sleep(0.15 if late else 0)
        if late:
            says(tcp, client)
        does(server, f"say {size}")
        does(client, f"hear {size}")
        does(client, "ask 10")
        says(tcp, client)
    assert says(tcp, client) is last


def test_the_side_that_listens_is_asked(watch: Watch, server: Program, client: Program) -> None:
    tcp = watch(server)
    until(lambda: says_anywhere(tcp, Verdict.SERVED), "a client")
    assert set(tcp.inspect((), whole=True).values()) == {Verdict.LISTENS, Verdict.SERVED}
    time.sleep(0.05)
    does(client, "ask 10")
    until(lambda: says_anywhere(tcp, Verdict.REQUEST), "its question")
    assert tcp.ports == {int(server.words[0])}
    time.sleep(0.05)
    does(server, "say 10")
    assert not says_anywhere(tcp, Verdict.REQUEST)


def test_who_answers_one_question_after_the_other_streams_nothing(
    watch: Watch, server: Program, client: Program
) -> None:
    tcp = watch(server)
    for _ in range(4):
        does(client, "ask 10")
        until(lambda: says_anywhere(tcp, Verdict.REQUEST), "its question")
        time.sleep(0.1)
        does(server, "say 10")
        assert not says_anywhere(tcp, Verdict.REQUEST)
        time.sleep(0.1)


def test_an_answer_in_parts_is_not_over_between_them(
    watch: Watch, server: Program, client: Program
) -> None:
    tcp = watch(server)
    does(client, "ask 10")
    until(lambda: says_anywhere(tcp, Verdict.REQUEST), "its question")
    for _ in range(2):
        time.sleep(0.1)
        does(server, "say 10")
        streams = says_anywhere(tcp, Verdict.REQUEST)
    assert streams


def test_only_those_that_are_asked_for_are_looked_at(watch: Watch, client: Program) -> None:
    tcp = watch(client)
    number = int(client.words[0])
    assert tcp.inspect((number, 0, 999)).keys() == {number}
    assert tcp.inspect(()) == {}


def test_both_sides_of_a_connection_know_it(watch: Watch, server: Program, client: Program) -> None:
    ours, theirs = watch(client), watch(server)
    until(
        lambda: ours.inspect((), whole=True) and len(theirs.inspect((), whole=True)) == 2,
        "both sides",
    )
    ((local, remote),) = ours.ends
    assert theirs.ends == {(remote, local)}
    does(client, "ask 10")
    assert Verdict.OURS in ours.inspect((), theirs.ends, whole=True).values()


def test_a_connection_to_nobody_is_waited_for_but_told_by_no_age(watch: Watch) -> None:
    code = """
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen(0)
full = connect(server.getsockname()[1]); select.select([server], [], [])
s = socket.socket(); s.setblocking(False)
try: s.connect(server.getsockname())
except BlockingIOError: pass
ready(s.fileno()); told()
"""
    with program(code) as one:
        tcp = watch(one)
        assert says(tcp, one) is Verdict.ANSWER
        assert tcp.owed is None


def test_who_asks_itself_waits_for_no_network(watch: Watch) -> None:
    """A notebook's kernel has such a connection between two of its threads."""
    code = """
server = socket.create_server(("127.0.0.1", 0))
s = connect(server.getsockname()[1]); other, _ = server.accept()
s.send(b"question"); ready(s.fileno()); told()
"""
    with program(code) as one:
        tcp = watch(one)
        number = int(one.words[0])
        assert tcp.inspect((number,), whole=True)[number] is Verdict.OURS
        assert tcp.inspect((number,))[number] is Verdict.OURS


def test_what_is_remembered_is_bounded(watch: Watch) -> None:
    code = """
server = socket.create_server(("127.0.0.1", 0), backlog=600)
ready()
for line in iter(told, ""):
    kept = [connect(server.getsockname()[1]) for _ in range(60)]
    ready()
"""
    with program(code) as one:
        tcp = watch(one)
        for _ in range(8):
            does(one, "more")
            tcp.inspect((), whole=True)
        assert len(tcp._courses) <= 256
        assert len(tcp.sockets._names) <= 256


def test_a_process_that_ended_says_nothing(watch: Watch, client: Program) -> None:
    tcp = watch(client)
    assert tcp.inspect((), whole=True)
    client.end()
    assert tcp.inspect((), whole=True) == {}
    assert tcp.refused is None
