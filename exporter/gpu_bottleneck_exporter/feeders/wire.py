"""Which of a process's connections owe it an answer. Pure arithmetic, except for `Wire`.

A client that last sent waits for an answer; one that last received waits for nothing. Data that
keeps coming is a stream; data that comes again and again without a request is being pushed.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.borrow import RefusedError
from gpu_bottleneck_exporter.host.sockets import (
    Connection,
    Endpoint,
    Sockets,
    TcpState,
)

PATIENCE_MS = 3_000
"""A request older than this is no slow answer, unless answers that took longer were seen.

A worker that polls its job queue, a long poll, or a wait for a dead peer may last for ever and
are no slow answers. Object stores answer within about a second.
"""
_GROWTH = 2
_SIGNAL_BYTES = 64
"""Answers of at most so many bytes on average carry no data: pings, "nothing new", "yes"."""
_ENOUGH_ANSWERS = 3
_LONG_POLL_MS = 500
"""An answer without data that took so long means that there was nothing new."""
_OLDEST_REQUEST_MS = 30_000
"""What a client sent longer ago expects no answer: a ping, the end of a stream."""
_STREAM_BYTES = 4096
_STREAM_MS = 250
_DELAYED_ACK_MS = 60
"""Linux delays acknowledgements by 40 ms (TCP_DELACK_MIN) where answers are usual."""
_ENOUGH_PUSHES = 2
_LIVELY_MS = 2_000
_STREAK = 2
"""At least so many, as a single answer between two looks resembles one part of a stream."""
_KEPT = 256
_OWED_NS = 5_000_000_000
Ends = tuple[Endpoint, Endpoint]
"""The local and the remote end of a connection."""
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

    __hash__ = object.__hash__


@dataclass(slots=True)
class Patience:
    """How old a request may be, by remote address; grows with answers that took longer."""

    longest_ms: int
    """At most."""
    of: dict[Endpoint, int] = field(default_factory=dict)
    polled: set[Endpoint] = field(default_factory=set)
    """Remotes that are polled and mostly have nothing new, until they send data."""

    def with_(self, remote: Endpoint) -> int:
        """How old a request to `remote` may be, in ms."""
        return self.of.get(remote, min(PATIENCE_MS, self.longest_ms))

    def give_up(self, remote: Endpoint) -> None:
        """Nothing came from `remote` for so long that it is being polled and has nothing new."""
        if len(self.polled) >= _KEPT:
            self.polled.clear()
        self.polled.add(remote)

    def learn(self, remote: Endpoint, took_ms: int) -> None:
        """An answer came from `remote` after at least `took_ms`."""
        known = self.with_(remote)
        if known < took_ms <= _GROWTH * known:
            if len(self.of) >= _KEPT:
                self.of.clear()
            self.of[remote] = min(_GROWTH * known, self.longest_ms)


def judge(
    now: Connection,
    before: Connection | None,
    ports: Collection[int],
    ours: Collection[Ends],
    patience_ms: int,
) -> Verdict:
    """What a connection in state `now` says, which was `before` at the last look.

    `ports`: those that the process listens on. `ours`: local and remote ends of the connections
    of the job's other processes.
    """
    if now.listens:
        return Verdict.LISTENS
    if now.local.port in ports:
        return Verdict.REQUEST if _is_asked(now) else Verdict.SERVED
    if not (_asked(now, patience_ms) or _arriving(now, before)):
        return Verdict.IDLE
    return Verdict.OURS if (now.remote, now.local) in ours else Verdict.ANSWER


def _asked(now: Connection, patience_ms: int) -> bool:
    if now.state == TcpState.SYN_SENT:
        return True
    if now.state not in _OPEN or not now.sent_segments or now.sent_ms > patience_ms:
        return False
    if _only_signals(now) or now.sent_ms > now.received_ms:
        return False
    if now.sent_ms < now.received_ms or not now.received_segments:
        return True
    # Question and answer within one tick of the kernel's clock, nobody knows in which order. A
    # question that is not answered at once is acknowledged after a while, an answer brings that.
    return now.sent_ms <= _DELAYED_ACK_MS or now.acknowledged_ms < now.received_ms


def _is_asked(now: Connection) -> bool:
    """Whether a client sent something and was sent nothing since."""
    if now.state not in _OPEN or not now.received_segments:
        return False
    if now.received_ms > min(now.sent_ms, _OLDEST_REQUEST_MS):
        return not now.sent_segments
    if now.received_ms < now.sent_ms or not now.sent_segments:
        return True
    # Within one tick of the clock, as below: an answer is acknowledged after a delay.
    return now.received_ms <= _DELAYED_ACK_MS or now.acknowledged_ms >= now.received_ms


def _only_signals(now: Connection) -> bool:
    answers = now.received_segments
    return answers >= _ENOUGH_ANSWERS and now.received_bytes < _SIGNAL_BYTES * answers


def _arriving(now: Connection, before: Connection | None) -> bool:
    if before is None or now.received_ms > _STREAM_MS:
        return False
    return now.received_bytes - before.received_bytes >= _STREAM_BYTES


class Owed(NamedTuple):
    """An answer that the process waited for."""

    remote: Endpoint
    waited_ms: int
    at_ns: int
    """Monotonic time of the look."""


class Pushes:
    """Whether data keeps coming on a connection, with pauses, without any request."""

    def __init__(self) -> None:
        self._sent_segments = -1
        self._pauses = False
        self._times = 0

    def look(self, now: Connection, before: Connection | None) -> bool:
        """Take in the next look, which follows `before`."""
        if now.sent_segments != self._sent_segments:
            self._sent_segments, self._pauses, self._times = now.sent_segments, False, 0
        elif before and now.received_bytes - before.received_bytes >= _STREAM_BYTES:
            self._times += self._pauses
            self._pauses = False
        elif now.received_ms > _STREAM_MS:
            self._pauses = True
        return self._times >= _ENOUGH_PUSHES


class Wire:
    """The connections of process `pid`, inspected repeatedly."""

    def __init__(self, proc: Path, pid: int, patience: Patience) -> None:
        """`proc`: our own procfs."""
        self.sockets = Sockets(proc, pid)
        self.refused: str | None = None
        """Why the last look saw nothing, if it failed."""
        self.ends: frozenset[Ends] = frozenset()
        """Local and remote end of each connection, as of the last complete look."""
        self.ports: frozenset[int] = frozenset()
        """Ports that it listens on."""
        self.asks_here = False
        """Whether, at the last look, it waited for a process of the same machine."""
        self.lively_clients = False
        """Whether, at the last complete look, a client had just sent or received something."""
        self.owed: Owed | None = None
        """The oldest recent request that was open at a look."""
        self._patience = patience
        self._before: dict[int, Connection] = {}
        self._pushes: dict[int, Pushes] = {}
        self._streaks: dict[int, int] = {}
        """Number of looks in a row at which a client was sent more without a new request."""
        self._latest: dict[int, int] = {}
        """By descriptor: its connection at the last look."""

    def look(
        self, numbers: Collection[int], ours: Collection[Ends] = (), *, whole: bool = False
    ) -> dict[int, Verdict]:
        """Verdicts by descriptor: of those in `numbers`, or of all if `whole`."""
        try:
            found = self.sockets.all(numbers) if whole else self.sockets.of([*numbers])
        except RefusedError as error:
            self.refused = str(error)
            return {}
        self.refused = None
        if whole:
            self.ports = frozenset(one.local.port for one in found if one.listens)
            self.ends = frozenset((one.local, one.remote) for one in found if not one.listens)
            self.lively_clients = any(self._is_lively(one) for one in found)
        verdicts = {one.fd: self._judge(one, ours) for one in found}
        self.asks_here = any(
            verdicts[one.fd] is Verdict.ANSWER and one.local.address == one.remote.address
            for one in found
        )
        return verdicts

    def _is_lively(self, one: Connection) -> bool:
        if one.listens or one.local.port not in self.ports:
            return False
        return min(one.sent_ms, one.received_ms) < _LIVELY_MS

    def _judge(self, now: Connection, ours: Collection[Ends]) -> Verdict:
        before = self._before.get(now.cookie)
        if before is None:
            self._replaced(now)
        if before and now.received_bytes > before.received_bytes:
            self._learn(before, now)
        patience_ms = self._patience.with_(now.remote)
        verdict = judge(now, before, self.ports, ours, patience_ms)
        pushed = self._pushes.setdefault(now.cookie, Pushes()).look(now, before)
        if verdict is Verdict.IDLE and pushed and now.received_ms <= patience_ms:
            verdict = Verdict.OURS if (now.remote, now.local) in ours else Verdict.ANSWER
        if verdict is Verdict.ANSWER and now.remote in self._patience.polled:
            verdict = Verdict.IDLE
        # At each look, as a request between two answers ends a streak.
        streams = self._streams(now, before)
        if verdict is Verdict.SERVED and streams:
            verdict = Verdict.REQUEST
        if len(self._before) >= _KEPT:
            self._before.clear()
            self._streaks.clear()
            self._pushes.clear()
        self._before[now.cookie] = now
        if verdict is Verdict.ANSWER and now.state != TcpState.SYN_SENT:  # ages do not count yet
            self._remember(now)
        return verdict

    def _streams(self, now: Connection, before: Connection | None) -> bool:
        """Whether an answer is being streamed, as tokens are."""
        more = (
            before is not None
            and now.sent_segments > before.sent_segments
            and now.received_segments == before.received_segments
        )
        self._streaks[now.cookie] = self._streaks.get(now.cookie, 0) + 1 if more else 0
        return self._streaks[now.cookie] >= _STREAK

    def _remember(self, now: Connection) -> None:
        waited, at_ns = min(now.sent_ms, now.received_ms), time.monotonic_ns()
        known = self.owed
        if known is None or waited >= known.waited_ms or at_ns - known.at_ns > _OWED_NS:
            self.owed = Owed(now.remote, waited, at_ns)

    def _learn(self, before: Connection, now: Connection) -> None:
        """Data came since the connection was last inspected; it may be an answer."""
        asked = before.sent_segments and _asked(before, self._patience.longest_ms)
        if now.received_bytes - before.received_bytes >= _SIGNAL_BYTES:
            self._patience.polled.discard(now.remote)
            if asked:
                self._patience.learn(now.remote, before.sent_ms)
        elif asked and before.sent_ms > _LONG_POLL_MS:
            self._patience.give_up(now.remote)

    def _replaced(self, now: Connection) -> None:
        """A client that closes a connection unanswered and asks again is polling."""
        old = self._before.get(self._latest.get(now.fd, 0))
        self._latest[now.fd] = now.cookie
        if len(self._latest) > _KEPT:
            self._latest.clear()
        if old is None or old.remote != now.remote:
            return
        open_ = _asked(old, self._patience.longest_ms)
        if open_ and old.sent_ms > self._patience.with_(old.remote):
            self._patience.give_up(old.remote)
