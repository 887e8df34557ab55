"""Samples the clients of a server on a GPU, by the sockets of the server's processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from gpu_bottleneck_exporter.feeders.tcp import ConnectionHistory, Verdict, judge
from gpu_bottleneck_exporter.host.files import FileLimitError
from gpu_bottleneck_exporter.host.sockets import Connection, Ends, Sockets, TcpState
from gpu_bottleneck_exporter.schedule import CADENCE


@dataclass(frozen=True, slots=True)
class Serving:
    """The clients of a GPU's server. Figures are lower bounds unless `complete`."""

    ports: tuple[int, ...]
    """Listening ports, at most three, the one with most clients first."""
    clients: int
    """Connections from outside of the job."""
    waiting_clients: int
    """Clients that the server has not accepted yet."""
    requests_in_flight: int
    """Connections with a request in flight; HTTP/2 may have several on each."""
    longest_request_seconds: float | None
    """Time since the oldest of these requests arrived."""
    complete: bool
    """Whether all sockets were sampled."""


class ServerSampler:
    """Samples the clients of one GPU's mains and kin. Not thread-safe."""

    def __init__(self, proc: Path) -> None:
        """`proc`: of our own PID namespace, as for system calls."""
        self._proc = proc
        self._sockets: dict[int, Sockets] = {}
        self._listening: dict[int, list[int]] = {}
        """Descriptors of listening sockets by pid."""
        self._histories: dict[int, ConnectionHistory] = {}
        """Histories of clients by SO_COOKIE."""
        self._streamed_ns: int | None = None
        """Monotonic time of the last sample with a response in parts."""
        self._due_ns = 0

    def sample(self, now_ns: int, pids: Collection[int], ours: Collection[Ends]) -> Serving | None:
        """The clients of processes `pids`; None if unknown, or if none of these listens.

        `ours`: connection ends of the job's other processes.
        """
        if self._sockets.keys() != {*pids}:
            sockets = ((pid, self._sockets.get(pid) or Sockets(self._proc, pid)) for pid in pids)
            self._sockets, self._listening, self._due_ns = dict(sockets), {}, now_ns
        if now_ns < self._due_ns:
            return None
        try:
            connections = [*chain.from_iterable(map(self._query, pids))]
        except (OSError, FileLimitError):
            return None
        listeners = {conn.cookie: conn for conn in connections if conn.listens}.values()
        ends = {(conn.local, conn.remote) for conn in connections}.union(ours)
        ports = {conn.local.port for conn in listeners}
        accepted = {
            conn.cookie: conn
            for conn in connections
            if conn.state == TcpState.ESTABLISHED and conn.local.port in ports
        }.values()
        clients = [conn for conn in accepted if (conn.remote, conn.local) not in ends]
        per_port = Counter(conn.local.port for conn in clients)
        # Between the front end and its engines.
        ports -= {conn.local.port for conn in accepted} - per_port.keys()
        complete = all(sockets.complete for sockets in self._sockets.values())
        if not ports:
            # Of many sockets, the listening one may be sampled next.
            self._due_ns = now_ns + CADENCE.slow_ns * complete
            return None
        waiting = sum(conn.unacknowledged for conn in listeners if conn.local.port in ports)
        histories = self._histories
        self._histories = {
            conn.cookie: histories.get(conn.cookie) or _new_history(conn) for conn in clients
        }
        ages_ms = [self._request_ms(now_ns, conn, ports) for conn in clients]
        requests_ms = [age_ms for age_ms in ages_ms if age_ms is not None]
        return Serving(
            ports=tuple(sorted(ports, key=lambda port: (-per_port[port], port))[:3]),
            clients=len(clients) + waiting,
            waiting_clients=waiting,
            requests_in_flight=len(requests_ms),
            longest_request_seconds=max(requests_ms) / 1000 if requests_ms else None,
            complete=complete,
        )

    def _query(self, pid: int) -> list[Connection]:
        sockets = self._sockets[pid]
        sockets.recheck()  # numbers of closed files become clients
        connections = sockets.query(self._listening.get(pid, ()))
        self._listening[pid] = [conn.fd for conn in connections if conn.listens]
        return connections

    def _request_ms(self, now_ns: int, now: Connection, ports: Collection[int]) -> int | None:
        """Age of the request in flight on a client's connection; None without one."""
        history = self._histories[now.cookie]
        before = history.last
        history.update(now, main_waits=False, feeds=False)
        verdict = judge(now, ports, due=False, ours=False)
        is_open = verdict is Verdict.REQUEST and not history.replied_at_once
        history.was_served = not is_open
        if is_open:
            return now.received_ms
        max_pause_ms = 250  # between tokens
        responds = now.sent_ms <= max_pause_ms and now.sent_ms < now.received_ms
        if (
            responds
            and before.sent_ms < before.received_ms
            and before.received_segments == now.received_segments
            and before.sent_segments < now.sent_segments
        ):
            self._streamed_ns = now_ns
        # A single sample does not tell a stream from a response that was just sent.
        streams = (
            self._streamed_ns is not None and now_ns - self._streamed_ns < CADENCE.cache_ttl_ns
        )
        return now.received_ms if responds and streams else None


def _new_history(now: Connection) -> ConnectionHistory:
    history = ConnectionHistory(now)
    # Within one tick: a request and its response, unless more came than went.
    is_ambiguous = now.sent_ms == now.received_ms
    history.replied_at_once = is_ambiguous and now.received_segments <= now.sent_segments
    return history
