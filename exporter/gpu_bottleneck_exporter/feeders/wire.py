"""Which of a process's connections were asked and have not answered: pure but for `Wire`.

A client that sent after it last received waits for an answer; one that has received since is
waiting for nobody. Where data keeps coming, a stream is arriving; where it comes again and again
and nothing is asked, somebody pushes it.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.sockets import (
    Connection,
    Endpoint,
    RefusedError,
    Sockets,
    TcpState,
)

PATIENCE_MS = 3_000
"""So old may a question be that counts as a slow answer, until longer answers have been seen.

A job queue's worker asks for its next job and waits, a long poll for news, a dead peer is waited
for for ever: none of them is a slow answer. Object stores answer within a second or so.
"""
_GROWTH = 2
_SIGNAL_BYTES = 64
"""Answers that are no longer than this on average carry no data: pings, nothing new, yes."""
_ENOUGH_ANSWERS = 3
_LONG_POLL_MS = 500
"""An answer without data that took so long says that there was nothing new."""
_OLDEST_REQUEST_MS = 30_000
"""What a client sent longer ago needs no answer: a ping, the end of a stream."""
_STREAM_BYTES = 4096
_STREAM_MS = 250
_DELAYED_ACK_MS = 60
"""Linux puts acknowledgements off for 40 ms (TCP_DELACK_MIN) where answers are usual."""
_ENOUGH_PUSHES = 2
_LIVELY_MS = 2_000
_STREAK = 2
"""An answer that comes between two looks looks like one part of a stream."""
_KEPT = 256
_OWED_NS = 5_000_000_000
Ends = tuple[Endpoint, Endpoint]
"""The local and the remote one of a connection."""
_OPEN = frozenset({TcpState.ESTABLISHED, TcpState.FIN_WAIT1, TcpState.FIN_WAIT2})


class Verdict(Enum):
    """What one connection says about the process that waits on it."""

    ANSWER = "answer"
    """It was asked, and has not answered yet; or data is arriving."""
    OURS = "ours"
    """It was asked, and leads to another process of the same job."""
    IDLE = "idle"
    """Nothing is owed to us."""
    SERVED = "served"
    """A client's, who has been answered."""
    REQUEST = "request"
    """A client's, who has asked us and has not been answered."""
    LISTENS = "listens"

    __hash__ = object.__hash__


@dataclass(slots=True)
class Patience:
    """How old a question may be, by whom it was put to; it grows with answers that took longer."""

    longest_ms: int
    """At most."""
    of: dict[Endpoint, int] = field(default_factory=dict)
    polled: set[Endpoint] = field(default_factory=set)
    """Who is asked for news and mostly has none; until data comes."""

    def with_(self, remote: Endpoint) -> int:
        """For questions to `remote`, in ms."""
        return self.of.get(remote, min(PATIENCE_MS, self.longest_ms))

    def give_up(self, remote: Endpoint) -> None:
        """Nothing came from `remote` for so long that it is asked for news, and has none."""
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
    """What `now` says, that was `before` when last looked at.

    `ports`: those that the process listens on; `ours`: local and remote ends of the connections
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
    """Whether a client has sent, and not been sent anything since."""
    if now.state not in _OPEN or not now.received_segments:
        return False
    if now.received_ms > min(now.sent_ms, _OLDEST_REQUEST_MS):
        return not now.sent_segments
    if now.received_ms < now.sent_ms or not now.sent_segments:
        return True
    # Within one tick of the clock, as below: an answer is acknowledged after a while.
    return now.received_ms <= _DELAYED_ACK_MS or now.acknowledged_ms >= now.received_ms


def _only_signals(now: Connection) -> bool:
    answers = now.received_segments
    return answers >= _ENOUGH_ANSWERS and now.received_bytes < _SIGNAL_BYTES * answers


def _arriving(now: Connection, before: Connection | None) -> bool:
    if before is None or now.received_ms > _STREAM_MS:
        return False
    return now.received_bytes - before.received_bytes >= _STREAM_BYTES


class Owed(NamedTuple):
    """An answer that somebody waited for."""

    remote: Endpoint
    waited_ms: int
    at_ns: int
    """Monotonic time of the look."""


class Pushes:
    """Whether data comes on one connection again and again, with pauses, and nothing is asked."""

    def __init__(self) -> None:
        self._sent_segments = -1
        self._pauses = False
        self._times = 0

    def look(self, now: Connection, before: Connection | None) -> bool:
        """What the next look says, that comes after `before`."""
        if now.sent_segments != self._sent_segments:
            self._sent_segments, self._pauses, self._times = now.sent_segments, False, 0
        elif before and now.received_bytes - before.received_bytes >= _STREAM_BYTES:
            self._times += self._pauses
            self._pauses = False
        elif now.received_ms > _STREAM_MS:
            self._pauses = True
        return self._times >= _ENOUGH_PUSHES


class Wire:
    """The connections of process `pid`, looked at again and again."""

    def __init__(self, proc: Path, pid: int, patience: Patience) -> None:
        """`proc`: our own procfs."""
        self.sockets = Sockets(proc, pid)
        self.refused: str | None = None
        """Why nothing could be seen at the last look, if so."""
        self.ends: frozenset[Ends] = frozenset()
        """Local and remote of each connection, as of the last look at all."""
        self.ports: frozenset[int] = frozenset()
        """Those it listens on."""
        self.asks_here = False
        """Whether, at the last look, it waited for a process of the same machine."""
        self.lively_clients = False
        """Whether, at the last look at all, a client had just sent or been sent anything."""
        self.owed: Owed | None = None
        """The oldest question of late that was still open when it was looked at."""
        self._patience = patience
        self._before: dict[int, Connection] = {}
        self._pushes: dict[int, Pushes] = {}
        self._streaks: dict[int, int] = {}
        """At so many looks in a row a client had been sent more, and asked for nothing."""
        self._latest: dict[int, int] = {}
        """By descriptor, the connection that it last was."""

    def close(self) -> None:
        """Give the descriptor back."""
        self.sockets.close()

    def look(
        self,
        numbers: Collection[int],
        ours: Collection[Ends] = (),
        *,
        whole: bool = False,
    ) -> dict[int, Verdict]:
        """Verdicts by descriptor, of those in `numbers` or, `whole`, of all."""
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
        # Asked at each look: a question that was seen between two answers ends a streak.
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
        """Whether an answer is going out in parts, as an engine's tokens do."""
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
        """Data has come since the connection was last looked at, maybe an answer."""
        asked = before.sent_segments and _asked(before, self._patience.longest_ms)
        if now.received_bytes - before.received_bytes >= _SIGNAL_BYTES:
            self._patience.polled.discard(now.remote)
            if asked:
                self._patience.learn(now.remote, before.sent_ms)
        elif asked and before.sent_ms > _LONG_POLL_MS:
            self._patience.give_up(now.remote)

    def _replaced(self, now: Connection) -> None:
        """Who closes a connection without an answer, and asks anew, waits for news."""
        old = self._before.get(self._latest.get(now.fd, 0))
        self._latest[now.fd] = now.cookie
        if len(self._latest) > _KEPT:
            self._latest.clear()
        if old is None or old.remote != now.remote:
            return
        open_ = _asked(old, self._patience.longest_ms)
        if open_ and old.sent_ms > self._patience.with_(old.remote):
            self._patience.give_up(old.remote)
