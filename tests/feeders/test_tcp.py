"""Which connections were asked and have not answered: by the numbers, and on real sockets."""

from __future__ import annotations

import pickle
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.stall import MIN_OBSERVATIONS
from gpu_bottleneck_exporter.feeders.tcp import (
    AnswerTimeouts,
    ConnectionHistory,
    TcpTracker,
    Verdict,
    awaits_response,
    judge,
)
from gpu_bottleneck_exporter.feeders.thresholds import JUDGED
from gpu_bottleneck_exporter.host.files import MAX_CACHE_ENTRIES
from gpu_bottleneck_exporter.host.sockets import Connection, Endpoint, Sockets, TcpState
from gpu_bottleneck_exporter.schedule import CADENCE
from support.rows import rows

PROC = Path("/proc")
LONGEST_MS = 30_000
OURS, STORE = Endpoint(bytes([10, 0, 0, 1]), 50_000), Endpoint(bytes([10, 0, 0, 2]), 443)
SERVICE = Endpoint(OURS.address, 8_000)
LONG_AGO = 4_000_000_000
"""Kernel's value of times that never happened."""
ANSWER, IDLE, REQUEST, SERVED = Verdict.ANSWER, Verdict.IDLE, Verdict.REQUEST, Verdict.SERVED
CLOSE_WAIT = 8
replace = Connection._replace
ASKED = Connection(3, 1, OURS, STORE, TcpState.ESTABLISHED, 400, 900, 360, 100_000, 50, 10)
"""The ages are those of what was sent, received and acknowledged last."""
ANSWERED = replace(ASKED, sent_ms=900, received_ms=400, acknowledged_ms=400)
NEVER_USED = Connection(3, 1, OURS, STORE, TcpState.ESTABLISHED, LONG_AGO, LONG_AGO, 1_000, 0, 0, 0)
FRESH = replace(ANSWERED, received_ms=20)
LISTENING = replace(NEVER_USED, local=STORE, remote=Endpoint(b"", 0), state=TcpState.LISTEN)
ASKS_US = replace(ASKED, local=STORE, remote=OURS, sent_ms=900, received_ms=400)


def tie(age_ms: int, acknowledged_ms: int) -> Connection:
    """Sent and received within one tick of the kernel's clock."""
    return replace(ASKED, sent_ms=age_ms, received_ms=age_ms, acknowledged_ms=acknowledged_ms)


def asked_ago(ms: int) -> Connection:
    return replace(ASKED, sent_ms=ms, received_ms=LONG_AGO)


@rows(
    "found, now",
    {
        "asked after the last answer": (ANSWER, ASKED),
        "asked for the first time": (ANSWER, replace(NEVER_USED, sent_ms=100, sent_segments=1)),
        "answered since": (IDLE, ANSWERED),
        "never used": (IDLE, NEVER_USED),
        "data arrived unasked": (IDLE, replace(NEVER_USED, received_ms=50, received_segments=1)),
        "answered long since": (IDLE, replace(ASKED, sent_ms=JUDGED.min_response_timeout_ms)),
        "just young enough": (ANSWER, asked_ago(JUDGED.min_response_timeout_ms)),
        "too old: a long poll, or a dead peer": (
            IDLE,
            asked_ago(JUDGED.min_response_timeout_ms + 1),
        ),
        "we closed our side": (ANSWER, replace(ASKED, state=TcpState.FIN_WAIT1)),
        "they know that": (ANSWER, replace(ASKED, state=TcpState.FIN_WAIT2)),
        "they closed their side": (IDLE, replace(ASKED, state=CLOSE_WAIT)),
        "closed": (IDLE, replace(ASKED, state=TcpState.CLOSE)),
        "being connected": (ANSWER, replace(NEVER_USED, state=TcpState.SYN_SENT)),
        "at once: too young to tell": (ANSWER, tie(20, 20)),
        "at once: as long as an acknowledgement may take": (ANSWER, tie(60, 60)),
        "at once: acknowledged by the answer": (IDLE, tie(400, 400)),
        "at once: acknowledged by itself": (ANSWER, tie(400, 360)),
        "at once, and just young enough": (ANSWER, tie(3_000, 2_960)),
        "at once, and too old": (IDLE, tie(3_001, 2_961)),
        "data may still arrive": (IDLE, FRESH),
        "a client's question in flight": (REQUEST, ASKS_US),
        "its first one": (REQUEST, replace(ASKS_US, sent_ms=LONG_AGO)),
        "answered": (SERVED, replace(ASKS_US, sent_ms=400, received_ms=900)),
        "answered at once": (SERVED, replace(ASKS_US, sent_ms=400, acknowledged_ms=360)),
        "answered at once, which is not acknowledged yet": (
            SERVED,
            replace(ASKS_US, sent_ms=400, acknowledged_ms=400, unacknowledged=1),
        ),
        "has asked nothing": (SERVED, replace(NEVER_USED, local=STORE, remote=OURS)),
        "one that takes long": (REQUEST, replace(ASKS_US, sent_ms=LONG_AGO, received_ms=9_000)),
        "received data unasked": (SERVED, replace(ASKS_US, received_segments=0)),
        "as soon as connected": (REQUEST, replace(ASKS_US, sent_ms=400, sent_segments=0)),
        "no response can come": (SERVED, replace(ASKS_US, sent_ms=LONG_AGO, received_ms=30_001)),
        "a response may come": (REQUEST, replace(ASKS_US, sent_ms=LONG_AGO, received_ms=30_000)),
        "never answered": (REQUEST, replace(ASKS_US, sent_segments=0, received_ms=30_001)),
        "a closed connection": (SERVED, replace(ASKS_US, state=CLOSE_WAIT)),
        "the socket that listens": (Verdict.LISTENS, LISTENING),
        "a client that is not accepted yet": (REQUEST, replace(LISTENING, unacknowledged=1)),
    },
)
def test_verdict_on_a_connection(found: Verdict, now: Connection) -> None:
    ours = Verdict.OURS if found is ANSWER else found
    due = awaits_response(now, JUDGED.min_response_timeout_ms, None)
    assert judge(now, {STORE.port}, due=due, ours=False) is found
    assert judge(now, {STORE.port}, due=due, ours=True) is ours


@rows(
    "due, now, latency_ms",
    {
        "an answer, then a request": (True, tie(400, 400), 11),
        "a request and its answer": (False, tie(20, 20), 10),
        "a request that is on its way": (True, replace(tie(20, 20), unacknowledged=1), 1),
        "a request that was acknowledged alone": (True, tie(400, 360), 1),
    },
)
def test_within_a_tick_the_latency_of_responses_shows_which_came_last(
    now: Connection, latency_ms: int, *, due: bool
) -> None:
    assert awaits_response(now, JUDGED.min_response_timeout_ms, latency_ms) is due


class Talk(Sockets):
    """One connection on a simulated clock, looked at as if the kernel told of it."""

    def __init__(self, patch: pytest.MonkeyPatch, *others: Connection, now: Connection) -> None:
        super().__init__(PROC, 0)
        self._at_ms = 1_000_000
        patch.setattr(time, "monotonic_ns", lambda: self._at_ms * 1_000_000)
        self.timeouts = AnswerTimeouts(LONGEST_MS)
        self.tcp = TcpTracker(PROC, 0, self.timeouts)
        self.tcp.sockets = self
        self.now, self._others = now, others
        self._owes_ack = False

    def query_descriptors(self, numbers: Sequence[int]) -> list[Connection]:
        return [item for item in self.query() if item.fd in numbers]

    def query(self, _required: Collection[int] = ()) -> list[Connection]:
        return [self.now, *self._others]

    def waits(self, ms: int) -> None:
        self._at_ms += ms
        names = ("sent_ms", "received_ms", "acknowledged_ms")
        self.now = replace(self.now, **{name: getattr(self.now, name) + ms for name in names})
        if self._owes_ack and ms >= 40:
            self.now, self._owes_ack = replace(self.now, sent_acks=self.now.sent_acks + 1), False

    def works(self) -> None:
        """The GPU works."""
        self.timeouts.worked_ns = time.monotonic_ns()

    def sends(self, size: int = 30) -> None:
        now = self.now
        sent, segments = now.acknowledged_bytes + size, now.sent_segments + 1
        self.now = replace(now, sent_ms=0, acknowledged_bytes=sent, sent_segments=segments)
        self._owes_ack = False

    def hears(self, size: int) -> None:
        now = self.now
        data, segments = now.received_bytes + size, now.received_segments + 1
        self.now = replace(
            now, received_ms=0, acknowledged_ms=0, received_bytes=data, received_segments=segments
        )
        self._owes_ack = True

    def look(self, *, held: bool = False) -> Verdict:
        awaited = (self.now.fd,) if held else ()
        return self.tcp.inspect((), (), awaited, whole=True, others_run=False)[self.now.fd]

    def works_after_answers(self, count: int) -> None:
        """Have this many responses feed the GPU."""
        for _ in range(count):
            self.timeouts.record_response(self.now.remote, 10)
            self.waits(1)
            self.works()


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Talk:
    """A client's connection."""
    return Talk(monkeypatch, now=NEVER_USED)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Talk:
    """A server's connection with a client."""
    ours = replace(NEVER_USED, local=STORE, remote=OURS)
    return Talk(monkeypatch, replace(LISTENING, fd=4, cookie=2), now=ours)


def test_an_answer_is_owed_until_it_comes(talk: Talk) -> None:
    assert talk.look() is IDLE
    talk.sends()
    talk.waits(150)
    assert talk.look() is ANSWER
    assert talk.tcp.pending is not None
    assert (talk.tcp.pending.remote, talk.tcp.pending.waited_ms) == (STORE, 150)
    talk.hears(100)
    assert talk.look() is IDLE


def test_a_connection_being_established_has_no_age(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(monkeypatch, now=replace(NEVER_USED, state=TcpState.SYN_SENT))
    assert talk.look() is ANSWER
    assert talk.tcp.pending is None


def test_a_process_that_is_sent_data_repeatedly_waits_for_more(talk: Talk) -> None:
    talk.sends()
    talk.waits(100)
    values = []
    for _ in range(4):
        talk.hears(10_000)
        at_once = talk.look()
        talk.waits(300)
        values.append((at_once, talk.look()))
    assert values == [(IDLE, IDLE), (ANSWER, IDLE), (ANSWER, ANSWER), (ANSWER, ANSWER)]


@rows(
    "size, parts, ms, found",
    {
        "one that may be complete": (4096, 1, 31, IDLE),
        "one that just came": (4096, 1, 30, ANSWER),
        "very few": (4095, 3, 0, IDLE),
        "one part after the other": (4096, 2, 250, ANSWER),
        "all of it": (4096, 2, 251, IDLE),
    },
)
def test_a_stream_has_growing_bytes(
    talk: Talk, size: int, parts: int, ms: int, found: Verdict
) -> None:
    talk.look()
    for _ in range(parts):
        talk.waits(100)
        talk.hears(size)
        talk.look()
    talk.waits(ms)
    assert talk.look() is found


def test_answers_that_are_requested_together_are_all_waited_for(talk: Talk) -> None:
    """Two requests at once: after the first answer, the second is due."""
    for _ in range(4):
        talk.sends()
        talk.look()
        for _ in range(2):
            for _ in range(4):
                talk.waits(100)
                verdict = talk.look()
            talk.hears(10_000)
    assert verdict is ANSWER


def test_a_fast_call_is_over_and_a_slow_one_is_not(talk: Talk) -> None:
    """Requests and answers within a tick, looked at later: the latency shows the order."""
    talk.look()
    for latency_ms, result in ((50, ANSWER), (4, IDLE)):
        talk.sends()
        talk.waits(latency_ms)
        talk.hears(100)
        talk.look()
        talk.sends()
        talk.hears(100)
        talk.waits(100)
        assert talk.look() is result


def test_a_request_that_follows_an_answer_within_a_tick_is_open(talk: Talk) -> None:
    """The answer was due when it was last looked at."""
    talk.sends()
    talk.waits(2900)
    assert talk.look() is ANSWER
    for _ in range(3):
        talk.hears(10_000)
        talk.sends()
        talk.waits(100)
        assert talk.look() is ANSWER


def polls_in_vain(talk: Talk, count: int) -> Verdict:
    """Send requests that are answered after half a second, without GPU work; the verdict."""
    for _ in range(count):
        talk.sends()
        talk.look()
        talk.waits(400)
        verdict = talk.look()
        talk.waits(100)
        talk.hears(187)
    return verdict


@rows(
    "a_step, polls, found",
    {
        "as soon as the GPU has worked by itself": (1, 30, IDLE),
        "until then": (1, 15, ANSWER),
        "of which twenty made a step": (20, 36, ANSWER),
        "of which twenty made a step, and more": (20, 42, IDLE),
    },
)
def test_polls_are_in_vain(talk: Talk, a_step: int, polls: int, found: Verdict) -> None:
    """Although the GPU worked once after an answer, as it does after those of its start."""
    polls_in_vain(talk, a_step)
    talk.works()
    assert polls_in_vain(talk, polls) is found


def test_pushes_differ_from_responses_by_data_sent_in_between() -> None:
    history = ConnectionHistory(replace(FRESH, sent_ms=LONG_AGO))

    def comes(data: int = 10_000, sent: int = 0, rest: int = 251, *, feeds: bool = False) -> bool:
        more = replace(
            history.last,
            received_ms=20,
            received_bytes=history.last.received_bytes + data,
            sent_segments=history.last.sent_segments + sent,
        )
        history.update(more, main_waits=False, feeds=feeds)
        history.update(
            replace(more, received_ms=100 if feeds else rest), main_waits=False, feeds=feeds
        )
        return history.pushed

    assert not any(comes(rest=250) for _ in range(4)), "parts of one"
    assert [comes() for _ in range(4)] == [False, False, True, True]
    assert comes(sent=1), "a ping"
    assert [comes(sent=1) for _ in range(4)][2:] == [False, False], "maybe answers"
    assert not any(comes(100) for _ in range(4)), "signals"
    assert [comes(100, feeds=True) for _ in range(3)] == [False, True, True]


def test_a_peer_that_fed_the_gpu_once_may_send_mere_signals_later(talk: Talk) -> None:
    talk.works_after_answers(2)
    talk.look()
    values = []
    for _ in range(MIN_OBSERVATIONS + 1):
        talk.sends()
        values.append(talk.look())
        talk.waits(5)
        talk.hears(10)
        talk.look()
    assert talk.timeouts.feeds(STORE)
    assert values[0] is ANSWER
    assert values[-1] is IDLE


@rows(
    "sent, wait_ms, size, found",
    {
        "a blocking pop": ((30, 0), 400, 100, Verdict.TASK),
        "a task with a stored result": ((30, 200), 400, 100, Verdict.TASK),
        "a sample": ((30, 0), 400, 4096, ANSWER),
        "a small sample, soon": ((30, 0), 200, 100, ANSWER),
        "an acknowledgement": ((30, 0), 400, 15, IDLE),
        "a delivery that is answered": ((0, 24), 400, 100, Verdict.TASK),
        "one that comes soon": ((0, 24), 200, 100, ANSWER),
        "a delivery that is acknowledged": ((0, 21), 400, 100, ANSWER),
        "samples, and a report after each": ((0, 600), 400, 10_000, ANSWER),
    },
)
def test_tasks_differ_from_data_by_the_reply_of_the_process(
    talk: Talk, sent: tuple[int, int], wait_ms: int, size: int, found: Verdict
) -> None:
    """Bytes `sent` before the wait, and after the GPU worked."""
    request, reply = sent
    talk.look()
    for _ in range(4):
        if request:
            talk.sends(request)
            talk.look()
        talk.waits(wait_ms)
        talk.look()
        talk.hears(size)
        talk.look()
        talk.waits(30)
        talk.works()
        if reply:
            talk.sends(reply)
    if request:
        talk.sends(request)
    talk.waits(wait_ms)
    assert talk.look() is found
    talk.waits(60_000)
    assert (talk.look() is Verdict.TASK) is (found is Verdict.TASK), "however long none comes"


@rows(
    "size, held, works, last",
    {
        "answers with data that feed the GPU": (5_000, False, True, ANSWER),
        "tasks": (100, False, True, Verdict.TASK),
        "small ones that its own thread waits for": (5, True, True, ANSWER),
        "pings beside a GPU that works": (5, False, True, IDLE),
        "nothing new for a GPU that idles": (5, True, False, IDLE),
        "jobs for another one": (100, True, False, IDLE),
    },
)
def test_slow_answers_that_feed_the_gpu_are_learnt(
    talk: Talk, size: int, *, held: bool, works: bool, last: Verdict
) -> None:
    def asks() -> Verdict:
        """Ask, and wait too long; the verdict then."""
        talk.waits(50)
        talk.sends()
        talk.look(held=held)
        talk.waits(JUDGED.min_response_timeout_ms + 500)
        return talk.look(held=held)

    for _ in range(4):
        assert asks() in {IDLE, Verdict.TASK} or (talk.timeouts.feeds(STORE) and works)
        talk.hears(size)
        talk.look(held=held)
        if works:
            talk.waits(5)
            talk.works()
    assert asks() is last


@rows(
    "size, late_ms, fed, last",
    {
        "nothing new, in many words": (200, 300, 0, IDLE),
        "small files, one after the other": (200, 5, 0, ANSWER),
        "parts of a large file": (5_000, 300, 0, ANSWER),
        "a peer that fed the GPU by one response": (200, 300, 1, IDLE),
    },
)
def test_a_peer_with_empty_responses_is_a_queue(
    talk: Talk, size: int, late_ms: int, fed: int, last: Verdict
) -> None:
    talk.works_after_answers(fed)
    talk.waits(2 * CADENCE.recent_ns // 1_000_000)
    talk.sends()
    for _ in range(MIN_OBSERVATIONS):
        assert talk.look() is ANSWER
        talk.waits(late_ms)
        talk.look()
        talk.hears(size)
        talk.sends()
        talk.look()
    assert talk.look() is last


def test_the_side_that_listens_is_asked(service: Talk) -> None:
    assert service.look() is SERVED
    assert service.tcp.ports == {STORE.port}
    for _ in range(4):  # who answers one question after the other streams nothing
        service.hears(10)
        assert service.look() is REQUEST
        assert service.tcp.has_active_clients
        service.waits(100)
        service.sends()
        assert service.look() is SERVED
        service.waits(100)


def test_an_immediate_response_leaves_no_open_request(service: Talk) -> None:
    service.hears(200)
    service.waits(100)
    service.sends()
    assert service.look() is SERVED
    for pings in (1, 2, 3):
        for _ in range(pings):
            service.hears(17)
            service.sends()
        service.waits(100)
        assert service.look() is SERVED, "each is acknowledged at once"
    service.hears(200)
    service.waits(50)
    service.sends()
    service.hears(200)  # the next request follows the answer within a tick
    service.waits(100)
    assert service.look() is REQUEST
    service.sends()
    service.hears(200)
    service.waits(100)
    assert service.look() is REQUEST


def test_a_connection_with_earlier_responses_is_judged_at_the_first_look(service: Talk) -> None:
    used = replace(service.now, received_segments=5, sent_segments=9, acknowledged_ms=900)
    service.now = replace(used, sent_ms=900, received_ms=400)
    assert service.look() is REQUEST
    service.now = replace(used, cookie=5, sent_ms=900, received_ms=900)
    assert service.look() is SERVED, "answered within a tick"
    service.now = replace(used, cookie=6, sent_ms=900, received_ms=900, received_segments=10)
    assert service.look() is REQUEST, "the next one"


def test_small_messages_after_a_response_are_no_request(service: Talk) -> None:
    """HTTP/2 updates a window in 13 bytes and acknowledges settings in 9."""
    service.look()
    service.hears(200)
    service.waits(100)
    service.sends()
    assert service.look() is SERVED
    for size in (13, 9, 13):
        service.waits(100)
        service.hears(size)
        service.waits(100)
        assert service.look() is SERVED
    service.hears(200)
    service.waits(100)
    assert service.look() is REQUEST
    service.hears(13)
    assert service.look().has_request, "pending before"


def test_a_later_request_is_open_for_longer_than_a_ping(service: Talk) -> None:
    service.look()
    service.hears(200)
    service.waits(100)
    service.sends()
    assert service.look() is SERVED
    service.waits(100)
    service.hears(200)
    assert service.look() is REQUEST
    service.waits(JUDGED.max_request_ms)
    assert service.look() is REQUEST
    service.waits(1)
    assert service.look() is SERVED


def test_probes_of_an_idle_connection_are_no_request(service: Talk) -> None:
    service.look()
    for _ in range(2):
        service.hears(200)
        service.sends()
        service.waits(100)
        assert service.look() is SERVED
        service.now = replace(service.now, sent_acks=service.now.sent_acks + 1)
        service.waits(100)
        assert service.look() is SERVED


def test_a_request_that_comes_in_parts_is_still_arriving(service: Talk) -> None:
    service.look()
    values = []
    for _ in range(3):
        service.hears(1000)
        service.waits(300)
        values.append(service.look())
    assert values == [REQUEST, Verdict.UPLOAD, Verdict.UPLOAD]
    assert service.tcp.pending is not None
    assert service.tcp.pending.is_request
    service.waits(JUDGED.min_response_timeout_ms)
    assert service.look() is REQUEST
    service.sends()
    assert service.look() is SERVED


def test_a_request_after_earlier_ones_is_no_part_of_them(service: Talk) -> None:
    service.now = replace(service.now, sent_ms=800, sent_segments=1)
    service.now = replace(service.now, received_ms=900, received_segments=1, received_bytes=200)
    assert service.look() is SERVED
    service.hears(200)
    assert service.look() is REQUEST


def test_an_answer_in_parts_is_not_over_between_them(service: Talk) -> None:
    service.hears(10)
    for verdict in (REQUEST, SERVED, REQUEST):
        assert service.look() is verdict
        service.waits(100)
        service.sends()


def test_a_new_request_on_another_connection_means_a_response_or_a_poll(talk: Talk) -> None:
    for cookie in range(2, 6):
        talk.sends()
        talk.look()
        talk.waits(JUDGED.min_response_timeout_ms + 500)
        talk.look()
        talk.now = replace(NEVER_USED, cookie=cookie, sent_ms=100, sent_segments=1)
        assert talk.look() is IDLE
    assert STORE in talk.timeouts.polled
    for cookie in range(6, 10):
        talk.now = replace(NEVER_USED, cookie=cookie, sent_ms=100, sent_segments=1)
        verdict = talk.look()
        talk.waits(100)
        talk.works()
    assert verdict is ANSWER
    assert STORE not in talk.timeouts.polled


@rows(
    "found, now",
    {
        "more than is taken": (Verdict.STUCK, replace(ANSWERED, unsent_bytes=1)),
        "a server's, for a moment": (
            SERVED,
            replace(ANSWERED, local=SERVICE, sent_ms=0, unsent_bytes=60),
        ),
        "a server's, whose client does not read": (
            Verdict.UNREAD,
            replace(ANSWERED, local=SERVICE, unsent_bytes=60, backoff=3),
        ),
        "a dead peer": (IDLE, replace(ANSWERED, unsent_bytes=1, acknowledged_ms=30_001)),
        "no process any longer": (IDLE, replace(ANSWERED, unsent_bytes=1, state=TcpState.CLOSE)),
    },
)
def test_a_slow_receiver_holds_up_its_sender(
    monkeypatch: pytest.MonkeyPatch, found: Verdict, now: Connection
) -> None:
    listens = replace(LISTENING, fd=4, cookie=2, local=SERVICE)
    assert Talk(monkeypatch, listens, now=now).look() is found


def test_a_poll_that_brings_nothing_new_is_no_slow_answer(talk: Talk) -> None:
    for ms, size, polled in ((500, 10, False), (600, 63, True), (600, 64, False)):
        talk.sends()
        talk.look()
        talk.waits(ms)
        talk.look()
        talk.hears(size)
        talk.look()
        talk.waits(5)
        assert (STORE in talk.timeouts.polled) is polled


def test_a_request_to_its_own_job_or_itself_is_no_network_wait(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.sends()
    talk.waits(100)
    assert talk.look() is ANSWER
    assert talk.tcp.inspect((3,), {(STORE, OURS)}, others_run=False) == {3: Verdict.OURS}
    assert talk.tcp.inspect((3,), {(OURS, STORE)}, others_run=False) == {3: ANSWER}
    answering = replace(ASKS_US, fd=4, cookie=2)
    itself = Talk(monkeypatch, answering, now=ASKED)
    assert itself.tcp.inspect((), whole=True, others_run=False)[3] is Verdict.OURS
    assert itself.tcp.ends == {(OURS, STORE), (STORE, OURS)}


@rows(
    "listens, ours",
    {
        "at that address": (STORE, True),
        "at all addresses": (Endpoint(bytes(4), STORE.port), True),
        "at all addresses of IPv6": (Endpoint(bytes(16), STORE.port), True),
        "at another port": (Endpoint(bytes(4), 80), False),
        "at another address": (Endpoint(bytes([10, 0, 0, 3]), STORE.port), False),
    },
)
def test_a_client_that_is_not_accepted_yet_waits_for_its_job(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, listens: Endpoint, *, ours: bool
) -> None:
    here = Endpoint(STORE.address, 50_000)
    talk.now = replace(ASKED, local=here)
    server = Talk(monkeypatch, now=replace(LISTENING, local=listens))
    server.look()
    assert (talk.tcp.inspect((3,), server.tcp.ends, others_run=False) == {3: Verdict.OURS}) is ours
    talk.now = replace(ASKED, cookie=2)
    elsewhere = talk.tcp.inspect((3,), server.tcp.ends, others_run=False) == {3: Verdict.OURS}
    assert elsewhere is (listens == STORE)


def test_the_peer_is_on_the_same_machine_or_not(talk: Talk) -> None:
    for remote in (STORE, Endpoint(OURS.address, 443)):
        talk.now = replace(NEVER_USED, remote=remote, cookie=remote.port)
        assert not talk.tcp.awaits_local_process
        talk.sends()
        assert talk.look() is ANSWER
    assert talk.tcp.awaits_local_process


def test_retained_connections_are_bounded(talk: Talk) -> None:
    for number in range(1, 1_000):
        talk.now = replace(FRESH, fd=number, cookie=number)
        talk.look()
        values = [value for value in vars(talk.tcp).values() if value is not talk]
        assert len(pickle.dumps(values)) < 250 * MAX_CACHE_ENTRIES
