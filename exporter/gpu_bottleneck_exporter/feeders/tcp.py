"""Finds connections with pending responses. Pure arithmetic, except for `TcpTracker`.

A client that sent last awaits a response. Data that keeps arriving is a stream, or a push if no
request precedes it. Tasks of a queue or broker are never overdue.
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
from gpu_bottleneck_exporter.feeders.thresholds import JUDGED
from gpu_bottleneck_exporter.host.files import MAX_CACHE_ENTRIES, KeptFile
from gpu_bottleneck_exporter.host.process import parse_schedstat
from gpu_bottleneck_exporter.host.sockets import (
    NO_ENDPOINT,
    Connection,
    Endpoint,
    Ends,
    Sockets,
    TcpState,
)
from gpu_bottleneck_exporter.schedule import CADENCE


class Arrivals:
    """Attributes datagrams of a network namespace to process `pid`. Not thread-safe.

    UDP sockets have no state, ages or counters, only a queue. The namespace counts datagrams as
    processes take them; those taken while the process did not run belong to others.
    """

    def __init__(self, proc: Path, pid: int) -> None:
        self._files = [KeptFile(f"{proc}/{pid}/net/{name}") for name in ("snmp", "snmp6")]
        self._schedstat = KeptFile(f"{proc}/{pid}/schedstat")
        self._before: tuple[int, int] | None = None
        """Datagrams of the namespace, and switches to the first thread."""
        self._while_on, self._while_off = 0.0, 0.0
        """Shares of samples with new datagrams, while the process ran and while it did not."""
        self._received = self._received_in_step = False
        self._received_ns: int | None = None
        self._step_ns = 0
        self._step_count, self._fed_share = 0, 0.0

    def close(self) -> None:
        """Close all descriptors."""
        for file in (*self._files, self._schedstat):
            file.close()

    def sample(self, worked_ns: int, *, others_run: bool) -> None:
        """Sample the counters; the GPU last worked at monotonic `worked_ns`.

        `others_run`: threads other than the first were recently scheduled.
        """
        newest_weight = 0.05  # low, against chance
        step_ns = 900_000_000  # the GPU's work is read once a second
        ran = parse_schedstat(self._schedstat.read())
        before, self._before = self._before, (self._taken(), ran[2] if ran else 0)
        self._received = False
        if before is not None:
            taken, ran_since = (now != then for now, then in zip(self._before, before, strict=True))
            if ran_since or others_run:
                self._while_on += newest_weight * (taken - self._while_on)
                self._received = taken and self._is_taker
            else:
                self._while_off += newest_weight * (taken - self._while_off)
        self._received_in_step |= self._received
        if self._received:
            self._received_ns = time.monotonic_ns()
        if worked_ns - self._step_ns >= step_ns:
            self._step_count += 1
            weight = max(EWMA_WEIGHT, 1 / self._step_count)
            self._fed_share += (self._received_in_step - self._fed_share) * weight
            self._step_ns, self._received_in_step = worked_ns, False

    def received(self, now: Connection) -> bool:
        """Whether socket `now` may have received a datagram since the last sample."""
        return self._received and now.received_bytes > 0

    def idle_ms(self, now: Connection) -> int | None:
        """Time since the last datagram; None if one is queued or none ever came."""
        if now.unread_bytes or not now.received_bytes or self._received_ns is None:
            return None
        return (time.monotonic_ns() - self._received_ns) // 1_000_000

    @property
    def _is_taker(self) -> bool:
        margin, negligible = 0.2, 0.02  # four standard errors; no other process takes datagrams
        is_clear = (
            self._while_on - self._while_off > margin and self._while_on > 2 * self._while_off
        )
        return is_clear or self._while_off < negligible

    @property
    def precede_work(self) -> bool:
        """Whether datagrams preceded most of the GPU's work."""
        return self._step_count >= MIN_OBSERVATIONS and self._fed_share > MAJORITY

    def _taken(self) -> int:
        snmp, snmp6 = ((file.read() or b"") for file in self._files)
        taken = 0
        with suppress(ValueError, IndexError):
            taken += int(snmp.rpartition(b"\nUdp: ")[2].split(None, 1)[0])
        with suppress(ValueError, IndexError):
            taken += int(snmp6.partition(b"Udp6InDatagrams")[2].split(None, 1)[0])
        return taken


_MAX_RESPONSES = 8


class _Delivery(NamedTuple):
    """Messages from one remote before GPU work."""

    latency_ms: int
    messages: int
    received: int
    requested: bool
    """Whether a request, or the reply to a task, came first."""


@dataclass(slots=True)
class _Deliveries:
    """Messages from one remote since the GPU last worked."""

    at_ns: int = 0
    """Monotonic time of the newest message."""
    latency_ms: int = 0
    """Longest time to a response."""
    messages: int = 0
    received: int = 0
    requested: bool = False
    fed: deque[_Delivery] = field(default_factory=lambda: deque(maxlen=_MAX_RESPONSES))
    """Earlier messages, followed by GPU work."""

    def settle(self, worked_ns: int) -> None:
        """Move the messages to `fed` if the GPU worked after them."""
        if self.at_ns and worked_ns > self.at_ns:
            self.fed.append(
                _Delivery(self.latency_ms, self.messages, self.received, self.requested)
            )
            self.at_ns = self.latency_ms = self.messages = self.received = 0
            self.requested = False

    @property
    def are_tasks(self) -> bool:
        """Whether each message is work for the GPU, rather than part of its data."""
        requested = sum(fed.requested for fed in self.fed)
        if len(self.fed) < JUDGED.min_responses or 2 * requested <= len(self.fed):
            return False
        messages, received = sum(f.messages for f in self.fed), sum(f.received for f in self.fed)
        min_wait_ms = 250  # services respond to small requests sooner
        slow = sorted(fed.latency_ms for fed in self.fed)[-JUDGED.min_responses] >= min_wait_ms
        # Smaller messages are acknowledgements; larger ones are data.
        return slow and received // messages in range(16, 4096)


class AnswerTimeouts:
    """Learns which remotes send a job data or tasks, and how late.

    GPU work follows both. A wait for data is a bottleneck, a wait for a task is a lack of demand.
    Tasks are small, come after long waits, and are requested or replied to. No work follows empty
    polls, pings and heartbeats.
    """

    def __init__(self, max_timeout_ms: int) -> None:
        """`max_timeout_ms`: upper bound on the timeout of a request."""
        self.max_timeout_ms = max_timeout_ms
        self.worked_ns = time.monotonic_ns()
        """Monotonic time of the GPU's last known work."""
        self.polled: set[Endpoint] = set()
        """Remotes with empty polls, until they send data."""
        self._of: dict[Endpoint, _Deliveries] = {}

    def record_work(self, now_ns: int) -> None:
        """Record that the GPU worked."""
        self.worked_ns = now_ns

    def timeout_for(self, remote: Endpoint) -> int:
        """Timeout of a request to `remote`, in ms."""
        deliveries = self._fed(remote)
        # Twice the second slowest, as one may be slow by chance.
        latencies = sorted(delivery.latency_ms for delivery in deliveries)
        least = JUDGED.min_responses
        slow = 2 * latencies[-least] if len(latencies) >= least else 0
        return min(max(slow, JUDGED.min_response_timeout_ms), self.max_timeout_ms)

    def feeds(self, remote: Endpoint) -> bool:
        """Whether GPU work follows messages from `remote`, also recently."""
        if len(self._fed(remote)) < JUDGED.min_responses:
            return False
        # Even fast messages do not feed a GPU that idles for this long.
        return not self._gpu_idled(max(self.timeout_for(remote) * 1_000_000, CADENCE.recent_ns))

    def are_futile(self, remote: Endpoint, responses: int) -> bool:
        """Whether this many slow small `responses` from `remote` do not feed the idle GPU."""
        before = max((fed.messages for fed in self._fed(remote)), default=0)
        return responses >= max(2 * before, MIN_OBSERVATIONS) and self._gpu_idled(CADENCE.recent_ns)

    def sends_tasks(self, remote: Endpoint) -> bool:
        """Whether messages from `remote` are tasks."""
        return bool(self._fed(remote)) and self._of[remote].are_tasks

    def record_response(
        self,
        remote: Endpoint,
        latency_ms: int,
        age_ms: int = 0,
        size: int = 0,
        *,
        requested: bool = True,
    ) -> bool:
        """Record a response of `size` bytes that arrived `age_ms` ago, at least `latency_ms` late.

        `requested`: something was sent before. The age matters as an idle GPU is read rarely.
        Returns whether GPU work followed the previous response.
        """
        has_fed = len(self._fed(remote))
        if remote not in self._of and len(self._of) >= MAX_CACHE_ENTRIES:
            self._of.clear()
        deliveries = self._of.setdefault(remote, _Deliveries())
        fed = not deliveries.at_ns and has_fed > 0
        if latency_ms <= self.max_timeout_ms:
            deliveries.latency_ms = max(deliveries.latency_ms, latency_ms)
            deliveries.messages += 1
            deliveries.received += size
            deliveries.requested |= requested
            deliveries.at_ns = time.monotonic_ns() - age_ms * 1_000_000
        return fed

    def record_polled(self, remote: Endpoint) -> None:
        """Record an empty poll of `remote`, unless it feeds the GPU."""
        if len(self.polled) >= MAX_CACHE_ENTRIES:
            self.polled.clear()
        if not self.feeds(remote):
            self.polled.add(remote)

    def _gpu_idled(self, for_ns: int) -> bool:
        return time.monotonic_ns() - self.worked_ns > for_ns

    def _fed(self, remote: Endpoint) -> deque[_Delivery]:
        deliveries = self._of.get(remote)
        if deliveries is None:
            return deque()
        deliveries.settle(self.worked_ns)
        return deliveries.fed


_OPEN_STATES = frozenset({TcpState.ESTABLISHED, TcpState.FIN_WAIT1, TcpState.FIN_WAIT2})


class Verdict(Enum):
    """The state of a connection that a process waits on."""

    ANSWER = "answer"
    """Client side, response pending or arriving."""
    OURS = "ours"
    """Client side, response pending within the job."""
    IDLE = "idle"
    """Client side, nothing pending."""
    SERVED = "served"
    """Server side, request answered."""
    REQUEST = "request"
    """Server side, request open."""
    LISTENS = "listens"
    DATAGRAMS = "datagrams"
    """UDP, fed the GPU before; the kernel keeps no receive time."""
    DATAGRAM_STEPS = "datagram_steps"
    """UDP, precedes most of the GPU's work: an event loop that also awaits others."""
    TASK = "task"
    """Broker, its tasks fed the GPU: a wait for demand."""
    UPLOAD = "upload"
    """Server side, request still arriving."""
    STUCK = "stuck"
    """Sent data not taken by the peer."""
    UNREAD = "unread"
    """Server side: a wait of the sending thread only."""

    def __init__(self, name: str) -> None:
        self.due = name in {"answer", "stuck", "upload"}
        """Whether the process waits for the peer."""
        self.blocks_if_sole_wait = name in {"datagrams", "datagram_steps"}
        """Whether it does so if it waits for nothing else."""
        self.has_request = name in {"request", "upload"}
        self.is_server_side = self.has_request or name in {"served", "unread"}

    __hash__ = object.__hash__


def judge(
    now: Connection, ports: Collection[int], *, due: bool, ours: bool, request_bytes: int = 0
) -> Verdict:
    """The verdict on a connection in state `now`.

    `ports`: listening ports. `due`: a response is pending or arriving. `ours`: the peer is part of
    the job. `request_bytes`: size of the newest request, 0 if unknown.
    """
    if now.listens:
        return Verdict.REQUEST if now.unacknowledged else Verdict.LISTENS
    if now.local.port in ports:
        return Verdict.REQUEST if _is_unanswered(now, request_bytes) else Verdict.SERVED
    if not due:
        return Verdict.IDLE
    return Verdict.OURS if ours else Verdict.ANSWER


def awaits_response(now: Connection, timeout_ms: int, latency_ms: int | None) -> bool:
    """Whether a request newer than `timeout_ms` has no response.

    `latency_ms`: usual time to a response, None if unknown.
    """
    if now.state == TcpState.SYN_SENT:
        return True
    if now.state not in _OPEN_STATES or not now.sent_segments or now.sent_ms > timeout_ms:
        return False
    if now.sent_ms > now.received_ms:
        return False
    if now.sent_ms < now.received_ms or not now.received_segments:
        return True
    # Both within one tick: where responses take longer, a response and the next request; else, an
    # unanswered request is acknowledged after a delay.
    if now.unacknowledged or now.acknowledged_ms < now.received_ms:
        return True
    is_recent = now.sent_ms <= JUDGED.max_ack_delay_ms
    return is_recent if latency_ms is None else latency_ms > JUDGED.kernel_tick_ms


def _are_pings(received: int, segments: int) -> bool:
    """The same, also if the last segment came twice (tail loss probe)."""
    return all(_is_ping(received, count) for count in {segments, max(segments - 1, 1)})


def _is_ping(received: int, segments: int) -> bool:
    """Whether bytes are frames without payload."""
    if received in {size * segments for size in (2, 4, 6, 10)}:  # MQTT, WebSocket
        return True
    # HTTP/2 acknowledges in 9, updates in 13, pings in 17 bytes.
    is_frames = any(received - 9 * n in range(0, 8 * n + 1, 4) for n in (segments, 2 * segments))
    return is_frames and received < segments * JUDGED.min_request_bytes


def _is_unanswered(now: Connection, request_bytes: int) -> bool:
    # The client may await a response.
    is_half_closed = now.state == TcpState.CLOSE_WAIT and not now.sent_segments
    if not (is_half_closed or now.state in _OPEN_STATES) or not now.received_segments:
        return False
    size = request_bytes if now.sent_segments else now.received_bytes
    is_request = size >= JUDGED.min_request_bytes
    # Older messages expect no response: a ping, the end of a stream.
    if now.received_ms > (JUDGED.max_request_ms if is_request else JUDGED.max_ping_ms):
        return False
    if now.received_ms > now.sent_ms:
        return not now.sent_segments
    if now.received_ms < now.sent_ms or not now.sent_segments:
        return True
    # Both within one tick: a response is acknowledged after a delay, or by the next request.
    if now.unacknowledged:
        return False
    return now.received_ms <= JUDGED.max_ack_delay_ms or now.acknowledged_ms >= now.received_ms


def _ends(now: Connection) -> Ends:
    return now.local, NO_ENDPOINT if now.listens else now.remote


def _moved_bytes(connections: Collection[Connection]) -> Mapping[int, int]:
    return {conn.cookie: conn.received_bytes + conn.acknowledged_bytes for conn in connections}


def _peer_ends(now: Connection) -> Iterator[Ends]:
    """Ends of the peer's socket; it only listens until the connection is accepted."""
    yield now.remote, now.local
    yield now.remote, NO_ENDPOINT
    if now.local.address == now.remote.address:
        wildcards = bytes(4), bytes(16)  # 0.0.0.0 and ::
        yield from (
            (Endpoint(any_address, now.remote.port), NO_ENDPOINT) for any_address in wildcards
        )


class PendingRequest(NamedTuple):
    """A request without a complete response at the time of sampling."""

    remote: Endpoint
    waited_ms: int
    at_ns: int
    """Monotonic time of the sample."""
    is_request: bool = False
    """Whether it is a client's, still arriving."""


class ConnectionHistory:
    """The history of one connection. Attributes are as of the last sample."""

    def __init__(self, now: Connection) -> None:
        self.last = now
        self.main_waits = False
        """Whether the GPU's own thread waited on it alone."""
        self.empty_responses = 0
        """Successive responses without data."""
        self.keepalives = 0
        """Successive small messages that the GPU's own thread did not await."""
        self.slow_small_responses = 0
        """Slow responses smaller than a part of a stream, since the GPU worked."""
        self.sends_without_request = 0
        """Successive samples with more sent but no request."""
        self.responds = self.streams = False
        """Whether a response was just sent, and another part before."""
        self.arriving = False
        self.request_bytes = 0
        """Bytes received since the last response."""
        self.was_served = self.pinged = False
        """Whether requests were answered, and only pings came since."""
        self._is_guess = now.sent_ms == now.received_ms
        """Whether the order of a request and a response is unknown."""
        self.replied_at_once = self._is_guess and now.received_segments <= now.sent_segments
        """Whether a request or pings were then answered within a tick."""
        self._is_sole = self.replied_at_once
        """Whether a single request came after a response."""
        self._acks_before = -1
        """Segments without data sent before the newest traffic."""
        self._request_parts = int(now.received_ms < now.sent_ms)
        """Samples with a part of a client's request."""
        self._latency_ms: int | None = None
        self._same_tick_responses = 0
        self._stream_parts = 0
        """Samples with data since something was sent."""
        self._paused = False
        self._pushes = 0
        self._sent_before = now.sent_segments
        """Segments sent before the last message."""
        self._acknowledged_before = now.acknowledged_bytes
        """Bytes acknowledged by then."""

    def has_data(self, now: Connection) -> bool:
        """Whether the bytes received since the last sample are more than a ping."""
        # Pings are responses, or get one.
        unasked = now.sent_segments == self._sent_before
        return unasked or self.main_waits or self.received_since(now) >= JUDGED.min_payload_bytes

    def follows_request(self, now: Connection) -> bool:
        """Whether a request or a reply preceded the bytes received since the last sample."""
        return now.acknowledged_bytes - self._acknowledged_before >= JUDGED.min_request_bytes

    @property
    def uploading(self) -> bool:
        """Whether a client's request arrives in parts."""
        recent = self.last.received_ms <= JUDGED.min_response_timeout_ms
        return recent and self._request_parts >= JUDGED.min_responses

    @property
    def pushed(self) -> bool:
        """Whether data arrives repeatedly without a request."""
        return self._pushes >= JUDGED.min_responses

    @property
    def _was_due(self) -> bool:
        """Whether a response was pending for more than a tick."""
        sent_ms = self.last.sent_ms
        return sent_ms > JUDGED.kernel_tick_ms and awaits_response(
            self.last, sent_ms, self.latency_ms
        )

    @property
    def waited_ms(self) -> int:
        """Time without traffic."""
        return min(self.last.sent_ms, self.last.received_ms)

    @property
    def latency_ms(self) -> int | None:
        """Time to a recent response, None if unknown; long if requests follow within a tick."""
        min_responses = 5  # 1 in 30 by chance, if responses took half a tick
        if self._latency_ms is None and self._same_tick_responses >= min_responses:
            return JUDGED.max_stream_pause_ms
        return self._latency_ms

    def received_since(self, now: Connection) -> int:
        """Bytes received since the last sample."""
        return now.received_bytes - self.last.received_bytes

    def update(self, now: Connection, *, main_waits: bool, feeds: bool) -> None:
        """Add sample `now`. `feeds`: the remote fed the GPU before."""
        received, sent = self.received_since(now), now.sent_segments != self.last.sent_segments
        streams = received >= JUDGED.min_stream_bytes
        if received or sent:
            requests = now.received_segments - self.last.received_segments
            is_ping = received > 0 and _are_pings(received, requests)
            self.request_bytes = received + (0 if sent else self.request_bytes)
            is_clear = requests == 1 or is_ping
            usual = (
                self.last.received_bytes > self.last.received_segments * JUDGED.min_request_bytes
            )
            self.pinged = is_ping and usual and self.was_served
            self._is_sole = self.was_served and is_clear and not self._is_guess
            self._is_guess, self._acks_before = False, self.last.sent_acks
        # Pending requests are acknowledged by themselves, later keep-alive probes, too.
        if received or sent or self.last.received_ms <= JUDGED.max_ack_delay_ms:
            is_late = now.received_ms > JUDGED.max_ack_delay_ms
            replied = self._is_sole or (is_late and now.sent_acks == self._acks_before)
            self.replied_at_once = replied and now.sent_ms == now.received_ms
        if received:
            if now.sent_ms > now.received_ms:
                self._latency_ms = now.sent_ms - now.received_ms
            elif self._was_due:
                self._latency_ms = self.last.sent_ms
            self._same_tick_responses += now.sent_ms == now.received_ms
            self.empty_responses = (
                0 if received >= JUDGED.min_payload_bytes else self.empty_responses + 1
            )
            self.keepalives = 0 if self.has_data(now) else self.keepalives + 1
            late = sent and self.waited_ms >= JUDGED.max_stream_pause_ms
            self.slow_small_responses = 0 if streams else self.slow_small_responses + late
            self._sent_before = now.sent_segments
            self._acknowledged_before = now.acknowledged_bytes
        self._stream_parts = (0 if sent else self._stream_parts) + streams
        # After a longer pause, a response may be complete.
        pause_ms = JUDGED.max_stream_pause_ms if self._stream_parts >= JUDGED.min_responses else 30
        self.arriving = self._stream_parts > 0 and now.received_ms <= pause_ms
        answered = sent and now.sent_ms < now.received_ms
        parts = 0 if sent else self._request_parts
        self._request_parts = 0 if answered or self.pinged else parts + (received > 0)
        more = now.sent_segments > self.last.sent_segments
        same = now.received_segments == self.last.received_segments
        self.sends_without_request = self.sends_without_request + 1 if more and same else 0
        responded = self.responds
        self.responds = now.sent_ms <= JUDGED.max_stream_pause_ms and now.sent_ms < now.received_ms
        self.streams = responded and self.responds and more and same
        if sent:  # a response may follow
            self._paused = False
            is_response = now.received_ms < now.sent_ms
            self._pushes = max(self._pushes - (is_response or not received), 0)
        elif self._paused if streams else (feeds and received):
            self._paused = False
            self._pushes = min(self._pushes + 1, _MAX_RESPONSES)
        elif now.received_ms > JUDGED.max_stream_pause_ms or (feeds and not received):
            self._paused = True
        self.last, self.main_waits = now, main_waits


class TcpTracker:
    """Samples the connections of process `pid`. Not thread-safe.

    Ends, ports, clients and bytes are as of the last complete inspection.
    """

    def __init__(self, proc: Path, pid: int, timeouts: AnswerTimeouts) -> None:
        self.sockets = Sockets(proc, pid)
        self.refused: str | None = None
        """Error of the inspection, None if it succeeded."""
        self.ends: frozenset[Ends] = frozenset()
        """Local and remote end by connection, `NO_ENDPOINT` for listening sockets."""
        self.ports: frozenset[int] = frozenset()
        self.awaits_local_process = False
        """Whether it awaited a response from this machine."""
        self.has_active_clients = False
        """Whether a client's connection had recent traffic."""
        self.received_bytes = 0
        self.moved_bytes: Mapping[int, int] | None = None
        """Bytes received and sent by SO_COOKIE; None if incomplete, or with UDP, which counts
        nothing."""
        self.pending: PendingRequest | None = None
        """The slowest recent request."""
        self.arrivals = Arrivals(proc, pid)
        self.datagram_source: tuple[int, Endpoint] | None = None
        """Monotonic time of the last wait for datagrams that feed the GPU, and their source, or
        else the local end."""
        self._timeouts = timeouts
        self._histories: dict[int, ConnectionHistory] = {}
        self._cookies: dict[int, int] = {}
        """SO_COOKIE of the connection by descriptor."""
        self.connections: Mapping[int, Connection] = {}
        """Connections, and `verdicts`, by descriptor as of monotonic `inspected_ns`."""
        self.verdicts: Mapping[int, Verdict] = {}
        self.inspected_ns = 0
        self._streamed_ns: int | None = None
        """Monotonic time of the last response in parts."""

    def inspect(
        self,
        numbers: Collection[int],
        ours: Collection[Ends] = (),
        main_fds: Collection[int] = (),
        *,
        others_run: bool,
        whole: bool = False,
    ) -> dict[int, Verdict]:
        """Verdicts on descriptors `numbers`, or on all if `whole`.

        `main_fds`: awaited by the GPU's own thread. `others_run`: threads other than the first were
        recently scheduled and may have taken datagrams.
        """
        if whole:
            self.inspected_ns = time.monotonic_ns()
        has_request = [fd for fd, verdict in self.verdicts.items() if verdict.has_request]
        try:
            connections = (
                self.sockets.query([*has_request, *numbers])  # until it is answered
                if whole
                else self.sockets.query_descriptors([*numbers])
            )
        except OSError as error:
            self.refused, self.moved_bytes = str(error), None
            return {}
        self.refused = None
        if any(conn.state == TcpState.DATAGRAMS for conn in connections):
            self.arrivals.sample(self._timeouts.worked_ns, others_run=others_run)
        if whole:
            self.ports = frozenset(conn.local.port for conn in connections if conn.listens)
            self.ends = frozenset(
                _ends(conn) for conn in connections if conn.connects or conn.listens
            )
            self.has_active_clients = any(self._is_active_client(conn) for conn in connections)
            self.received_bytes = sum(conn.received_bytes for conn in connections)
            all_count = self.sockets.complete and not self.sockets.datagrams
            self.moved_bytes = _moved_bytes(connections) if all_count else None
        verdicts = {
            conn.fd: self._judge(conn, ours, main_waits=conn.fd in main_fds) for conn in connections
        }
        if whole:
            self.connections, self.verdicts = {conn.fd: conn for conn in connections}, verdicts
        self.awaits_local_process = any(
            verdicts[conn.fd] is Verdict.ANSWER and conn.local.address == conn.remote.address
            for conn in connections
        )
        return verdicts

    def is_connected_to(self, number: int, ends: Collection[Ends]) -> bool:
        """Whether descriptor `number` is connected to one of `ends`."""
        history = self._histories.get(self._cookies.get(number, 0))
        return history is not None and (history.last.remote, history.last.local) in ends

    def _is_active_client(self, conn: Connection) -> bool:
        if not conn.connects or conn.local.port not in self.ports:
            return False
        return (
            min(conn.sent_ms, conn.received_ms) < CADENCE.gauge_ns // 1_000_000
        )  # the interval of counting them

    def _judge(self, now: Connection, others: Collection[Ends], *, main_waits: bool) -> Verdict:
        if now.state == TcpState.DATAGRAMS:
            return self._judge_datagrams(now)
        history = self._histories.get(now.cookie)
        if history is None:
            self._record_replaced(now)
            if len(self._histories) >= MAX_CACHE_ENTRIES:
                self._histories.clear()
            history = self._histories[now.cookie] = ConnectionHistory(now)
        if history.received_since(now) and now.local.port not in self.ports:
            self._record_response(history, now)
        history.update(now, main_waits=main_waits, feeds=self._timeouts.feeds(now.remote))
        timeout_ms = self._timeouts.timeout_for(now.remote)
        # A connection of the process to itself is no network wait.
        ours = any(ends in others or ends in self.ends for ends in _peer_ends(now))
        due = awaits_response(now, timeout_ms, history.latency_ms) or history.arriving
        size = history.request_bytes
        verdict = judge(now, self.ports, due=due, ours=ours, request_bytes=size)
        if verdict in (Verdict.SERVED, Verdict.REQUEST):
            verdict = self._judge_server(history, verdict, ours=ours)
        if self._is_stuck(now) and not ours:
            verdict = Verdict.UNREAD if now.local.port in self.ports else Verdict.STUCK
        if verdict in (Verdict.IDLE, Verdict.ANSWER):
            verdict = self._judge_client(history, verdict, timeout_ms, ours=ours)
        if verdict is Verdict.ANSWER and now.state != TcpState.SYN_SENT:  # no ages yet
            self._set_pending(history)
        return verdict

    def _judge_server(self, history: ConnectionHistory, verdict: Verdict, *, ours: bool) -> Verdict:
        if verdict is Verdict.REQUEST and (history.replied_at_once or history.pinged):
            verdict = Verdict.SERVED
        now_ns = time.monotonic_ns()
        if history.streams:
            self._streamed_ns = now_ns
        # A single sample does not tell a stream from a response that was just sent.
        streams = (
            self._streamed_ns is not None and now_ns - self._streamed_ns < CADENCE.cache_ttl_ns
        )
        if history.sends_without_request >= JUDGED.min_responses or (streams and history.responds):
            verdict = Verdict.REQUEST
        history.was_served = verdict is Verdict.SERVED
        if verdict is Verdict.REQUEST and history.uploading and not ours:
            verdict = Verdict.UPLOAD
            self._set_pending(history, is_request=True)
        return verdict

    def _judge_client(
        self, history: ConnectionHistory, verdict: Verdict, timeout_ms: int, *, ours: bool
    ) -> Verdict:
        if self._timeouts.sends_tasks(history.last.remote):
            return Verdict.TASK
        now, feeds = history.last, self._timeouts.feeds(history.last.remote)
        if verdict is Verdict.IDLE and history.pushed and now.received_ms <= timeout_ms:
            verdict = Verdict.OURS if ours else Verdict.ANSWER
        is_noise = history.empty_responses >= MIN_OBSERVATIONS and not feeds
        is_noise |= history.keepalives >= MIN_OBSERVATIONS
        is_noise |= self._timeouts.are_futile(now.remote, history.slow_small_responses)
        if verdict is Verdict.ANSWER and (is_noise or now.remote in self._timeouts.polled):
            verdict = Verdict.IDLE
        return verdict

    def _is_stuck(self, now: Connection) -> bool:
        if not now.unsent_bytes or now.state not in _OPEN_STATES:
            return False
        if now.local.port in self.ports and now.backoff < JUDGED.min_backoff:
            return False
        return now.acknowledged_ms <= self._timeouts.max_timeout_ms  # else the peer is dead

    def _judge_datagrams(self, now: Connection) -> Verdict:
        source = now.remote if now.remote.address else now.local
        if self.arrivals.received(now):
            self._timeouts.record_response(source, 0)
        idle_ms = self.arrivals.idle_ms(now)
        if idle_ms is None or idle_ms > self._timeouts.timeout_for(source):
            return Verdict.IDLE
        if not self._timeouts.feeds(source):
            return Verdict.IDLE
        self.datagram_source = time.monotonic_ns(), source
        return Verdict.DATAGRAM_STEPS if self.arrivals.precede_work else Verdict.DATAGRAMS

    def _set_pending(self, history: ConnectionHistory, *, is_request: bool = False) -> None:
        waited, at_ns = history.waited_ms, time.monotonic_ns()
        pending = self.pending
        # Keep the slowest one, while faster ones are pending.
        if (
            pending is None
            or waited >= pending.waited_ms
            or at_ns - pending.at_ns > CADENCE.probe_ns
        ):
            self.pending = PendingRequest(history.last.remote, waited, at_ns, is_request)

    def _record_response(self, history: ConnectionHistory, now: Connection) -> None:
        before, data = history.last, history.received_since(now) >= JUDGED.min_payload_bytes
        requested = before.sent_segments and awaits_response(
            before, self._timeouts.max_timeout_ms, history.latency_ms
        )
        has_data = history.has_data(now)
        fed = has_data and self._timeouts.record_response(
            now.remote,
            history.waited_ms,
            now.received_ms,
            history.received_since(now),
            requested=history.follows_request(now),
        )
        if fed:
            history.slow_small_responses = 0
        if fed or (data and requested):
            self._timeouts.polled.discard(now.remote)
        elif requested and not data and before.sent_ms > 2 * JUDGED.max_stream_pause_ms:
            self._timeouts.record_polled(now.remote)

    def _record_replaced(self, now: Connection) -> None:
        """Record the response or the empty poll implied by a reconnect."""
        old = self._histories.get(self._cookies.get(now.fd, 0))
        self._cookies[now.fd] = now.cookie
        if len(self._cookies) > MAX_CACHE_ENTRIES:
            self._cookies.clear()
        if old is None or old.last.remote != now.remote:
            return
        if not awaits_response(old.last, self._timeouts.max_timeout_ms, old.latency_ms):
            return
        if self._timeouts.record_response(now.remote, old.waited_ms):
            self._timeouts.polled.discard(now.remote)
        elif old.last.sent_ms > self._timeouts.timeout_for(now.remote):
            self._timeouts.record_polled(now.remote)
