"""Which of a process's connections owe it an answer. Pure arithmetic, except for `TcpTracker`.

A client that last sent waits for an answer; one that last received waits for nothing. Data that
keeps coming is a stream; data that comes again and again without a request is being pushed. A
queue or a broker that brings tasks is waited for without an answer being due.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.stall import EWMA_WEIGHT, MAJORITY, MIN_OBSERVATIONS
from gpu_bottleneck_exporter.host.files import MAX_CACHE_ENTRIES, KeptFile
from gpu_bottleneck_exporter.host.process import parse_schedstat
from gpu_bottleneck_exporter.host.sockets import Connection, Endpoint, Ends, Sockets, TcpState
from gpu_bottleneck_exporter.schedule import LATELY_MS, SHORTLY_NS, STEADY_NS

_STEP_NS = 900_000_000
"""Least time between two looks at whether the GPU worked: it is read once a second."""
_WEIGHT = 0.05
"""Weight of the newest look in both shares: they must not differ by chance."""
_QUIET = 0.02
"""Share of the looks between which only others took datagrams, below which there are no others."""
_CLEAR = 0.2
"""Least difference of both shares where there are others: four standard errors."""


class Arrivals:
    """Datagrams that process `pid` took, from look to look. Not thread-safe.

    UDP has no state, no ages and no counters by socket: a socket shows what it has queued, and
    whether it ever received anything. The network namespace counts datagrams as processes take
    them; what it counts while the process did not run is taken by others.
    """

    def __init__(self, proc: Path, pid: int) -> None:
        """`proc`: our own procfs."""
        self._files = [KeptFile(f"{proc}/{pid}/net/{name}") for name in ("snmp", "snmp6")]
        self._schedstat = KeptFile(f"{proc}/{pid}/schedstat")
        self._before: tuple[int, int] | None = None
        """Datagrams, and times that the first thread ran, at the last look."""
        self._running, self._resting = 0.0, 0.0
        """Shares of recent looks since which datagrams were taken: where the process ran meanwhile,
        and where it did not, so that others took them."""
        self._came = self._came_since = False
        self._came_ns: int | None = None
        self._step_ns = 0
        """When the GPU had worked as of the last step."""
        self._steps, self._fed = 0, 0.0

    def close(self) -> None:
        """Close all descriptors."""
        for file in (*self._files, self._schedstat):
            file.close()

    def look(self, worked_ns: int, *, others_run: bool) -> None:
        """Count again; the GPU last worked at monotonic `worked_ns`.

        `others_run`: whether other threads than the first were scheduled lately.
        """
        ran = parse_schedstat(self._schedstat.read())
        before, self._before = self._before, (self._taken(), ran[2] if ran else 0)
        self._came = False
        if before is not None:
            came, ran_since = (now != then for now, then in zip(self._before, before, strict=True))
            if ran_since or others_run:
                self._running += _WEIGHT * (came - self._running)
                self._came = came and self._takes
            else:
                self._resting += _WEIGHT * (came - self._resting)
        self._came_since |= self._came
        if self._came:
            self._came_ns = time.monotonic_ns()
        if worked_ns - self._step_ns >= _STEP_NS:
            self._steps += 1
            weight = max(EWMA_WEIGHT, 1 / self._steps)
            self._fed += (self._came_since - self._fed) * weight
            self._step_ns, self._came_since = worked_ns, False

    def came(self, now: Connection) -> bool:
        """Whether a datagram was taken since the last look, maybe from socket `now`."""
        return self._came and now.received_bytes > 0

    def waits_since(self, now: Connection) -> int | None:
        """Milliseconds since a datagram was taken, if socket `now` has none.

        None if it waits for none: one is there and is not taken, or it never received any.
        """
        if now.unread_bytes or not now.received_bytes or self._came_ns is None:
            return None
        return (time.monotonic_ns() - self._came_ns) // 1_000_000

    @property
    def _takes(self) -> bool:
        """Whether what is taken while the process runs is its own."""
        clear = self._running - self._resting > _CLEAR and self._running > 2 * self._resting
        return clear or self._resting < _QUIET

    @property
    def feed_steps(self) -> bool:
        """Whether datagrams came before the GPU worked, most of the time."""
        return self._steps >= MIN_OBSERVATIONS and self._fed > MAJORITY

    def _taken(self) -> int:
        """Datagrams that processes of the network namespace took."""
        snmp, snmp6 = ((file.read() or b"") for file in self._files)
        taken = 0
        with suppress(ValueError, IndexError):
            taken += int(snmp.rpartition(b"\nUdp: ")[2].split(None, 1)[0])
        with suppress(ValueError, IndexError):
            taken += int(snmp6.partition(b"Udp6InDatagrams")[2].split(None, 1)[0])
        return taken


PATIENCE_MS = 3_000
"""A request older than this is no slow answer, unless answers that took longer were seen.

A worker that polls its job queue, a long poll, or a wait for a dead peer may last for ever and
are no slow answers. Object stores answer within about a second.
"""
_GROWTH = 2
"""How many times as long as known answers the next one may take."""
ENOUGH, REMEMBERED = 2, 8
"""So many answers that fed the GPU tell how long they take, and so many parts in a row make a
stream, as a single answer between two looks resembles one; of more, so many are remembered."""
_TASK_BYTES = range(16, 4096)
"""Mean size of tasks: fewer bytes are an acknowledgement, as a task has a name and a payload; more
are data."""
_MIN_TASK_WAIT_MS = 250
"""Wait from which a small answer is a task: services answer a small request sooner."""


class _Fed(NamedTuple):
    """What came from one remote address before the GPU worked once."""

    longest_ms: int
    """Wait for the slowest answer."""
    messages: int
    received: int
    """Bytes."""
    asked: bool
    """Whether something was sent before: a request, or the reply to a task."""


@dataclass(slots=True)
class _Answers:
    """What came from one remote address."""

    at_ns: int = 0
    """When the last one came (monotonic)."""
    longest_ms: int = 0
    """What the slowest one took since the GPU last worked."""
    messages: int = 0
    received: int = 0
    asked: bool = False
    fed: deque[_Fed] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """The same of earlier times: the GPU worked after each."""

    def settle(self, worked_ns: int) -> None:
        """The GPU last worked at `worked_ns`."""
        if self.at_ns and worked_ns > self.at_ns:
            self.fed.append(_Fed(self.longest_ms, self.messages, self.received, self.asked))
            self.at_ns = self.longest_ms = self.messages = self.received = 0
            self.asked = False

    @property
    def are_tasks(self) -> bool:
        """Whether each message is work for the GPU, rather than a part of its data."""
        if len(self.fed) < ENOUGH or 2 * sum(fed.asked for fed in self.fed) <= len(self.fed):
            return False
        messages, received = sum(f.messages for f in self.fed), sum(f.received for f in self.fed)
        slow = sorted(fed.longest_ms for fed in self.fed)[-ENOUGH] >= _MIN_TASK_WAIT_MS
        return slow and received // messages in _TASK_BYTES


class AnswerTimeouts:
    """What a job's servers send it, data or tasks, and how late; by what the GPU worked on.

    Data that holds the GPU up comes, the GPU works, and more is waited for. A task also makes the
    GPU work, but a wait for the next one is for demand. Tasks are small, come after long waits, and
    the process asks for each or replies to it. Polls that bring nothing new, pings and heartbeats
    are followed by no work.
    """

    def __init__(self, longest_ms: int) -> None:
        """`longest_ms`: at most."""
        self.longest_ms = longest_ms
        self.worked_ns = time.monotonic_ns()
        """When the GPU last worked as far as anybody saw (monotonic)."""
        self.polled: set[Endpoint] = set()
        """Remotes that are polled and mostly have nothing new, until they send data."""
        self._of: dict[Endpoint, _Answers] = {}

    def note_work(self, now_ns: int) -> None:
        """Note that the GPU has worked."""
        self.worked_ns = now_ns

    def longest_for(self, remote: Endpoint) -> int:
        """Oldest age of a request to `remote`, in ms."""
        fed = self._fed(remote)
        # The second slowest: one that was slow by chance, or a job after a long poll, teaches
        # nothing.
        longest = sorted(answers.longest_ms for answers in fed)
        slow = _GROWTH * longest[-ENOUGH] if len(fed) >= ENOUGH else 0
        return min(max(slow, PATIENCE_MS), self.longest_ms)

    def feeds(self, remote: Endpoint) -> bool:
        """Whether what comes from `remote` feeds the GPU, which worked lately."""
        if len(self._fed(remote)) < ENOUGH:
            return False
        # What came while the GPU has not worked for so long does not feed it, however quick it is.
        return not self._idles(max(self.longest_for(remote), LATELY_MS))

    def are_vain(self, remote: Endpoint, answers: int) -> bool:
        """Whether so many late answers from `remote`, without much data, do not feed the GPU.

        It has not worked for long, and never took as many to work, or half as many.
        """
        before = max((fed.messages for fed in self._fed(remote)), default=0)
        return answers >= max(2 * before, MIN_OBSERVATIONS) and self._idles(LATELY_MS)

    def brings_tasks(self, remote: Endpoint) -> bool:
        """Whether messages from `remote` are tasks: each makes the GPU work."""
        return bool(self._fed(remote)) and self._of[remote].are_tasks

    def note_answer(
        self,
        remote: Endpoint,
        took_ms: int,
        ago_ms: int = 0,
        size: int = 0,
        *,
        asked: bool = True,
    ) -> bool:
        """An answer of `size` bytes came from `remote` after at least `took_ms`.

        It may feed the GPU. `asked`: something was sent before. It came `ago_ms` ago: a GPU
        that rested for long is looked at seldom, and may have worked.

        Returns whether the one before fed it: whether the GPU worked since.
        """
        known = len(self._fed(remote))
        if remote not in self._of and len(self._of) >= MAX_CACHE_ENTRIES:
            self._of.clear()
        answers = self._of.setdefault(remote, _Answers())
        fed = not answers.at_ns and known > 0
        if took_ms <= self.longest_ms:
            answers.longest_ms = max(answers.longest_ms, took_ms)
            answers.messages += 1
            answers.received += size
            answers.asked |= asked
            answers.at_ns = time.monotonic_ns() - ago_ms * 1_000_000
        return fed

    def note_polled(self, remote: Endpoint) -> None:
        """Nothing came from `remote` for so long that it is polled, unless it feeds the GPU."""
        if len(self.polled) >= MAX_CACHE_ENTRIES:
            self.polled.clear()
        if not self.feeds(remote):
            self.polled.add(remote)

    def _idles(self, for_ms: int) -> bool:
        return time.monotonic_ns() - self.worked_ns > for_ms * 1_000_000

    def _fed(self, remote: Endpoint) -> deque[_Fed]:
        answers = self._of.get(remote)
        if answers is None:
            return deque()
        answers.settle(self.worked_ns)
        return answers.fed


_SIGNAL_BYTES = 64
"""Answers of fewer bytes carry no data, unless they feed the GPU: pings, "nothing new", "yes"."""
_OLDEST_REQUEST_MS = 30_000
"""What a client sent longer ago expects no answer: a ping, the end of a stream."""
_STREAM_BYTES = 4096
"""Parts of a stream are larger than what is said to keep a connection alive."""
_STREAM_MS = 250
"""Between two parts of a stream, at most: as far apart as two looks."""
_FLOW_MS = 30
"""Longest pause within an answer: after a longer one it may be complete."""
_LONG_POLL_MS = 2 * _STREAM_MS
"""An answer without data that took so long means that there was nothing new."""
_DELAYED_ACK_MS = 60
"""Linux delays acknowledgements by 40 ms (TCP_DELACK_MIN) where answers are usual."""
_TICK_MS = 10
"""The longest tick of the kernel's clock (CONFIG_HZ=100)."""
_MIN_TIES = 5
"""Answers with a request in the same tick, and none without, after which they take longer: if they
took half a tick, that would be so by chance once in 30 times."""
_LIVELY_MS = STEADY_NS // 1_000_000
"""So long ago at most: clients are counted as often."""
_MIN_REQUEST_BYTES = 24
"""Requests have more bytes than acknowledgements and pings: MQTT's have 4, those of HTTP/2 17."""
_NOWHERE = Endpoint(b"", 0)
_ANY = (bytes(4), bytes(16))
"""The addresses 0.0.0.0 and ::."""
_OPEN = frozenset({TcpState.ESTABLISHED, TcpState.FIN_WAIT1, TcpState.FIN_WAIT2})


class Verdict(Enum):
    """What one connection says about the process that waits on it."""

    ANSWER = "answer"
    """Its answer is due, or data is arriving."""
    OURS = "ours"
    """Its answer is due, from another process of the same job."""
    IDLE = "idle"
    """No answer is due."""
    SERVED = "served"
    """A client's, whose request was answered."""
    REQUEST = "request"
    """A client's, whose request is open."""
    LISTENS = "listens"
    DATAGRAMS = "datagrams"
    """Those that came before fed the GPU; UDP sockets do not show when the last one came."""
    DATAGRAM_STEPS = "datagram_steps"
    """The same, where datagrams came before most of what the GPU did: an event loop waits for them,
    whatever else it waits for."""
    TASK = "task"
    """No task is due, but those that came before made the GPU work: it waits for demand."""
    UPLOAD = "upload"
    """A client's, whose request is still arriving."""
    STUCK = "stuck"
    """The other side takes slowly what it is sent."""

    def __init__(self, name: str) -> None:
        self.due = name in {"answer", "stuck", "upload"}
        """Whether the other side is waited for."""
        self.datagrams = name in {"datagrams", "datagram_steps"}
        """The same for who waits for nothing else."""
        self.asks = name in {"request", "upload"}
        self.of_client = self.asks or name == "served"

    __hash__ = object.__hash__


def judge(now: Connection, ports: Collection[int], *, due: bool, ours: bool) -> Verdict:
    """The verdict on a connection in state `now`.

    `ports`: those that the process listens on. `due`: whether an answer is, or data is arriving.
    `ours`: whether its other end is the job's.
    """
    if now.listens:
        return Verdict.REQUEST if now.unacknowledged else Verdict.LISTENS
    if now.local.port in ports:
        return Verdict.REQUEST if _is_asked(now) else Verdict.SERVED
    if not due:
        return Verdict.IDLE
    return Verdict.OURS if ours else Verdict.ANSWER


def awaits_answer(now: Connection, patience_ms: int, latency_ms: int | None) -> bool:
    """Whether a request was sent after the last answer, and at most `patience_ms` ago.

    `latency_ms`: of the connection's answers, None if unknown.
    """
    if now.state == TcpState.SYN_SENT:
        return True
    if now.state not in _OPEN or not now.sent_segments or now.sent_ms > patience_ms:
        return False
    if now.sent_ms > now.received_ms:
        return False
    if now.sent_ms < now.received_ms or not now.received_segments:
        return True
    # Within one tick of the kernel's clock. Where answers take longer, it was an answer and the
    # next request. Else, a request without an answer is acknowledged after a while.
    if now.unacknowledged or now.acknowledged_ms < now.received_ms:
        return True
    return now.sent_ms <= _DELAYED_ACK_MS if latency_ms is None else latency_ms > _TICK_MS


def _is_asked(now: Connection) -> bool:
    """Whether a client sent something and was sent nothing since."""
    if now.state not in _OPEN or not now.received_segments:
        return False
    if now.received_ms > min(now.sent_ms, _OLDEST_REQUEST_MS):
        return not now.sent_segments
    if now.received_ms < now.sent_ms or not now.sent_segments:
        return True
    # Within one tick of the clock, as below: an answer is acknowledged after a delay, and by the
    # next request at the latest.
    if now.unacknowledged:
        return False
    return now.received_ms <= _DELAYED_ACK_MS or now.acknowledged_ms >= now.received_ms


def _ends(now: Connection) -> Ends:
    return now.local, _NOWHERE if now.listens else now.remote


def _moved_bytes(connections: Collection[Connection]) -> Mapping[int, int]:
    return {one.cookie: one.received_bytes + one.acknowledged_bytes for one in connections}


def _opposite(now: Connection) -> Iterator[Ends]:
    """The ends that the process at the other end of a connection may have.

    One that has not accepted the connection yet only listens.
    """
    yield now.remote, now.local
    yield now.remote, _NOWHERE
    if now.local.address == now.remote.address:
        yield from ((Endpoint(any_address, now.remote.port), _NOWHERE) for any_address in _ANY)


class Owed(NamedTuple):
    """An answer, or the rest of a client's request, that the process waited for."""

    remote: Endpoint
    waited_ms: int
    at_ns: int
    """Monotonic time of the look."""
    is_request: bool = False
    """Whether it is the rest of a client's request."""


class Course:
    """The course of one connection, from look to look."""

    def __init__(self, now: Connection) -> None:
        self.now = now
        """As of the last look."""
        self.held = False
        """Whether the GPU's own thread waited on it alone at the last look."""
        self.small = 0
        """How many answers in a row carried no data."""
        self.signals = 0
        """The same of those on which the GPU's own thread did not wait either."""
        self.vain = 0
        """How many questions were answered late since the GPU worked, with less than a stream."""
        self.streak = 0
        """How many looks in a row at which more was sent without a new request."""
        self.arriving = False
        """Whether data was arriving at the last look: it had just come, or comes for longer."""
        self.rested = False
        """Whether, at the last look, it was a client's, and its request was answered."""
        self.answers_at_once = False
        """Whether one request, or pings, came after that and were answered within a tick."""
        self._request_parts = int(now.received_bytes > 0)
        """How many looks found more of a client's request."""
        self._latency_ms: int | None = None
        self._ties = 0
        """Number of answers that were followed or preceded by a request within a tick."""
        self._parts = 0
        """How many looks found data since something was sent."""
        self._pauses = False
        self._pushes = 0
        self._sent_before = now.sent_segments
        """How many segments had been sent when something last came."""
        self._acknowledged_before = now.acknowledged_bytes
        """The same of bytes."""

    def brings_data(self, now: Connection) -> bool:
        """Whether what came since the last look is no mere signal, such as a ping."""
        # Pings are answers, or are answered.
        unasked = now.sent_segments == self._sent_before
        return unasked or self.held or self.came(now) >= _SIGNAL_BYTES

    def is_asked(self, now: Connection) -> bool:
        """Whether a request, or a reply, was sent before what came since the last look."""
        return now.acknowledged_bytes - self._acknowledged_before >= _MIN_REQUEST_BYTES

    @property
    def uploading(self) -> bool:
        """Whether a client's request is still arriving, one part after the other."""
        return self._request_parts >= ENOUGH and self.now.received_ms <= PATIENCE_MS

    @property
    def pushed(self) -> bool:
        """Whether data keeps coming, with pauses, without any request."""
        return self._pushes >= ENOUGH

    @property
    def _was_due(self) -> bool:
        """Whether, at the last look, an answer was due that no tick of the clock explains."""
        sent_ms = self.now.sent_ms
        return sent_ms > _TICK_MS and awaits_answer(self.now, sent_ms, self.latency_ms)

    @property
    def waited_ms(self) -> int:
        """Time without anything sent or received, at the last look."""
        return min(self.now.sent_ms, self.now.received_ms)

    @property
    def latency_ms(self) -> int | None:
        """Time that an answer took lately, None if unknown.

        Where a request follows each answer within a tick, none is as short as a tick.
        """
        if self._latency_ms is None and self._ties >= _MIN_TIES:
            return _STREAM_MS
        return self._latency_ms

    def came(self, now: Connection) -> int:
        """Bytes received since the last look."""
        return now.received_bytes - self.now.received_bytes

    def update(self, now: Connection, *, held: bool, feeds: bool) -> None:
        """Take in the next look. `feeds`: what came before from there fed the GPU."""
        came, sent = self.came(now), now.sent_segments != self.now.sent_segments
        if came or sent:
            requests = now.received_segments - self.now.received_segments
            clear = requests == 1 or 0 < came < requests * _MIN_REQUEST_BYTES
            self.answers_at_once = self.rested and clear and now.sent_ms == now.received_ms
        if came:
            if now.sent_ms > now.received_ms:
                self._latency_ms = now.sent_ms - now.received_ms
            elif self._was_due:
                self._latency_ms = self.now.sent_ms
            self._ties += now.sent_ms == now.received_ms
            self.small = 0 if came >= _SIGNAL_BYTES else self.small + 1
            self.signals = 0 if self.brings_data(now) else self.signals + 1
            late = sent and self.waited_ms >= _STREAM_MS
            self.vain = 0 if came >= _STREAM_BYTES else self.vain + late
            self._sent_before = now.sent_segments
            self._acknowledged_before = now.acknowledged_bytes
        self._parts = (0 if sent else self._parts) + (came >= _STREAM_BYTES)
        pause_ms = _STREAM_MS if self._parts >= ENOUGH else _FLOW_MS
        self.arriving = self._parts > 0 and now.received_ms <= pause_ms
        answered = sent and now.sent_ms < now.received_ms
        self._request_parts = 0 if answered else (0 if sent else self._request_parts) + (came > 0)
        more = now.sent_segments > self.now.sent_segments
        same = now.received_segments == self.now.received_segments
        self.streak = self.streak + 1 if more and same else 0
        if sent:  # what follows may be an answer
            self._pauses = False
            is_answer = now.received_ms < now.sent_ms
            self._pushes = max(self._pushes - (is_answer or not came), 0)
        elif (feeds and came) if came < _STREAM_BYTES else self._pauses:
            self._pauses = False
            self._pushes = min(self._pushes + 1, REMEMBERED)
        elif now.received_ms > _STREAM_MS or (feeds and not came):
            self._pauses = True
        self.now, self.held = now, held


class TcpTracker:
    """The connections of process `pid`, inspected repeatedly."""

    def __init__(self, proc: Path, pid: int, timeouts: AnswerTimeouts) -> None:
        """`proc`: our own procfs."""
        self.sockets = Sockets(proc, pid)
        self.refused: str | None = None
        """Why the last look saw nothing, if it failed."""
        self.ends: frozenset[Ends] = frozenset()
        """Local and remote end of each connection, as of the last complete look.

        Sockets that listen have no remote end: `_NOWHERE`.
        """
        self.ports: frozenset[int] = frozenset()
        """Ports that it listens on."""
        self.asks_here = False
        """Whether, at the last look, it waited for a process of the same machine."""
        self.lively_clients = False
        """Whether, at the last complete look, a client had just sent or received something."""
        self.received_bytes = 0
        """Bytes that its connections had received at the last complete look."""
        self.moved: Mapping[int, int] | None = None
        """Bytes that each of its connections had received and sent by the last complete look, by
        SO_COOKIE; None unless that covered all, and with sockets of UDP, which count nothing."""
        self.owed: Owed | None = None
        """The oldest recent request that was open at a look."""
        self.arrivals = Arrivals(proc, pid)
        self.fed_by: tuple[int, Endpoint] | None = None
        """When datagrams that feed the GPU were last waited for, and their other end, or where it
        is unknown, their own."""
        self._timeouts = timeouts
        self._courses: dict[int, Course] = {}
        self._latest: dict[int, int] = {}
        """By descriptor: its connection at the last look."""

    def inspect(
        self,
        numbers: Collection[int],
        ours: Collection[Ends] = (),
        held: Collection[int] = (),
        *,
        others_run: bool,
        whole: bool = False,
    ) -> dict[int, Verdict]:
        """Verdicts by descriptor: of those in `numbers`, or of all if `whole`.

        `held`: those on which the GPU's own thread waits. `others_run`: whether other threads than
        the first were scheduled lately, which may have taken its datagrams.
        """
        try:
            found = (
                self.sockets.query(numbers) if whole else self.sockets.query_descriptors([*numbers])
            )
        except OSError as error:
            self.refused, self.moved = str(error), None
            return {}
        self.refused = None
        if any(one.state == TcpState.DATAGRAMS for one in found):
            self.arrivals.look(self._timeouts.worked_ns, others_run=others_run)
        if whole:
            self.ports = frozenset(one.local.port for one in found if one.listens)
            self.ends = frozenset(_ends(one) for one in found if one.connects or one.listens)
            self.lively_clients = any(self._is_lively(one) for one in found)
            self.received_bytes = sum(one.received_bytes for one in found)
            all_count = self.sockets.complete and not self.sockets.datagrams
            self.moved = _moved_bytes(found) if all_count else None
        verdicts = {one.fd: self._judge(one, ours, held=one.fd in held) for one in found}
        self.asks_here = any(
            verdicts[one.fd] is Verdict.ANSWER and one.local.address == one.remote.address
            for one in found
        )
        return verdicts

    def leads_to(self, number: int, ends: Collection[Ends]) -> bool:
        """Whether descriptor `number`, as last inspected, is connected to one of `ends`."""
        course = self._courses.get(self._latest.get(number, 0))
        return course is not None and (course.now.remote, course.now.local) in ends

    def _is_lively(self, one: Connection) -> bool:
        if not one.connects or one.local.port not in self.ports:
            return False
        return min(one.sent_ms, one.received_ms) < _LIVELY_MS

    def _judge(self, now: Connection, others: Collection[Ends], *, held: bool) -> Verdict:
        if now.state == TcpState.DATAGRAMS:
            return self._datagrams(now)
        course = self._courses.get(now.cookie)
        if course is None:
            self._replaced(now)
            if len(self._courses) >= MAX_CACHE_ENTRIES:
                self._courses.clear()
            course = self._courses[now.cookie] = Course(now)
        if course.came(now) and now.local.port not in self.ports:
            self._note_answer(course, now)
        course.update(now, held=held, feeds=self._timeouts.feeds(now.remote))
        patience_ms = self._timeouts.longest_for(now.remote)
        # A process that asks itself waits for no network.
        ours = any(ends in others or ends in self.ends for ends in _opposite(now))
        due = awaits_answer(now, patience_ms, course.latency_ms) or course.arriving
        verdict = judge(now, self.ports, due=due, ours=ours)
        if verdict in (Verdict.SERVED, Verdict.REQUEST):
            verdict = self._of_client(course, verdict, ours=ours)
        if self._is_stuck(now) and not ours:
            verdict = Verdict.STUCK
        if verdict in (Verdict.IDLE, Verdict.ANSWER):
            verdict = self._waited_for(course, verdict, patience_ms, ours=ours)
        if verdict is Verdict.ANSWER and now.state != TcpState.SYN_SENT:  # ages do not count yet
            self._remember(course)
        return verdict

    def _of_client(self, course: Course, verdict: Verdict, *, ours: bool) -> Verdict:
        """The verdict on a client's connection, given what came so far."""
        if verdict is Verdict.REQUEST and course.answers_at_once:
            verdict = Verdict.SERVED
        course.rested = verdict is Verdict.SERVED
        if verdict is Verdict.SERVED and course.streak >= ENOUGH:
            verdict = Verdict.REQUEST
        if verdict is Verdict.REQUEST and course.uploading and not ours:
            verdict = Verdict.UPLOAD
            self._remember(course, is_request=True)
        return verdict

    def _waited_for(
        self, course: Course, verdict: Verdict, patience_ms: int, *, ours: bool
    ) -> Verdict:
        """The verdict on a connection that may bring data, given what it brought so far."""
        if self._timeouts.brings_tasks(course.now.remote):
            return Verdict.TASK
        now, feeds = course.now, self._timeouts.feeds(course.now.remote)
        if verdict is Verdict.IDLE and course.pushed and now.received_ms <= patience_ms:
            verdict = Verdict.OURS if ours else Verdict.ANSWER
        small = course.small >= MIN_OBSERVATIONS and not feeds
        small |= course.signals >= MIN_OBSERVATIONS
        small |= self._timeouts.are_vain(now.remote, course.vain)
        if verdict is Verdict.ANSWER and (small or now.remote in self._timeouts.polled):
            verdict = Verdict.IDLE
        return verdict

    def _is_stuck(self, now: Connection) -> bool:
        if not now.unsent_bytes or now.state not in _OPEN:
            return False
        return now.acknowledged_ms <= self._timeouts.longest_ms  # else it is dead

    def _datagrams(self, now: Connection) -> Verdict:
        """The verdict on datagrams, which have no ages: the GPU works after those that feed it."""
        source = now.remote if now.remote.address else now.local
        if self.arrivals.came(now):
            self._timeouts.note_answer(source, 0)
        waits_ms = self.arrivals.waits_since(now)
        if waits_ms is None or waits_ms > self._timeouts.longest_for(source):
            return Verdict.IDLE
        if not self._timeouts.feeds(source):
            return Verdict.IDLE
        self.fed_by = time.monotonic_ns(), source
        return Verdict.DATAGRAM_STEPS if self.arrivals.feed_steps else Verdict.DATAGRAMS

    def _remember(self, course: Course, *, is_request: bool = False) -> None:
        waited, at_ns = course.waited_ms, time.monotonic_ns()
        known = self.owed
        # So long the slowest answer is told, while faster ones are waited for.
        if known is None or waited >= known.waited_ms or at_ns - known.at_ns > SHORTLY_NS:
            self.owed = Owed(course.now.remote, waited, at_ns, is_request)

    def _note_answer(self, course: Course, now: Connection) -> None:
        """Something came since the last look, maybe an answer."""
        before, data = course.now, course.came(now) >= _SIGNAL_BYTES
        asked = before.sent_segments and awaits_answer(
            before, self._timeouts.longest_ms, course.latency_ms
        )
        data_came = course.brings_data(now)
        fed = data_came and self._timeouts.note_answer(
            now.remote,
            course.waited_ms,
            now.received_ms,
            course.came(now),
            asked=course.is_asked(now),
        )
        if fed:
            course.vain = 0
        if fed or (data and asked):
            self._timeouts.polled.discard(now.remote)
        elif asked and not data and before.sent_ms > _LONG_POLL_MS:
            self._timeouts.note_polled(now.remote)

    def _replaced(self, now: Connection) -> None:
        """A client that closes a connection and asks again got its answer, or is polling."""
        old = self._courses.get(self._latest.get(now.fd, 0))
        self._latest[now.fd] = now.cookie
        if len(self._latest) > MAX_CACHE_ENTRIES:
            self._latest.clear()
        if old is None or old.now.remote != now.remote:
            return
        if not awaits_answer(old.now, self._timeouts.longest_ms, old.latency_ms):
            return
        if self._timeouts.note_answer(now.remote, old.waited_ms):
            self._timeouts.polled.discard(now.remote)
        elif old.now.sent_ms > self._timeouts.longest_for(now.remote):
            self._timeouts.note_polled(now.remote)
