"""Samples the clients of a server on a GPU, by the sockets of the server's processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.feeders.probe import DeepProbe
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts, TcpTracker
from gpu_bottleneck_exporter.feeders.thresholds import JUDGED
from gpu_bottleneck_exporter.host.files import FileLimitError
from gpu_bottleneck_exporter.host.sockets import Ends, TcpState
from gpu_bottleneck_exporter.schedule import CADENCE

_MAX_INSPECTED = 4
"""Processes inspected per sample."""


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
    """Whether all sockets were just sampled."""


class ServerSampler:
    """Samples the clients of one GPU's mains and kin. Not thread-safe."""

    def __init__(self, proc: Path) -> None:
        """`proc`: of our own PID namespace, as for system calls."""
        self._proc = proc
        self._trackers: dict[int, TcpTracker] = {}
        """Trackers of processes without a deep probe, by pid."""
        self._pids: set[int] = set()
        self._due_ns = 0

    def sample(
        self, now_ns: int, probes: Mapping[int, DeepProbe | None], ours: Collection[Ends]
    ) -> Serving | None:
        """The clients of processes; None if unknown, or if none of these listens.

        `probes` by pid, whose recent inspections are reused. `ours`: connection ends of the job's
        other processes.
        """
        if self._pids != {*probes}:
            self._pids, self._due_ns = {*probes}, now_ns
            for pid in self._trackers.keys() - probes:
                self._trackers.pop(pid).arrivals.close()
        if now_ns < self._due_ns:
            return None
        try:
            trackers, complete = self._inspect(now_ns, probes)
        except FileLimitError:
            return None
        if not trackers:
            return None
        connections = [conn for tracker in trackers for conn in tracker.connections.values()]
        listeners = {conn.cookie: conn for conn in connections if conn.listens}.values()
        ends = {(conn.local, conn.remote) for conn in connections}.union(ours)
        ports = {conn.local.port for conn in listeners}
        open_cookies = {
            tracker.connections[fd].cookie
            for tracker in trackers
            for fd, verdict in tracker.verdicts.items()
            if verdict.has_request
        }
        accepted = {
            conn.cookie: conn
            for conn in connections
            if conn.local.port in ports
            and (
                conn.state == TcpState.ESTABLISHED
                or (conn.state == TcpState.CLOSE_WAIT and conn.cookie in open_cookies)
            )
        }.values()
        clients = [conn for conn in accepted if (conn.remote, conn.local) not in ends]
        per_port = Counter(conn.local.port for conn in clients)
        # Between the front end and its engines.
        ports -= {conn.local.port for conn in accepted} - per_port.keys()
        if not ports:
            # Of many sockets, the listening one may be sampled next.
            self._due_ns = now_ns + CADENCE.slow_ns * complete
            return None
        waiting = sum(conn.unacknowledged for conn in listeners if conn.local.port in ports)
        requests_ms = [conn.received_ms for conn in clients if conn.cookie in open_cookies]
        return Serving(
            ports=tuple(sorted(ports, key=lambda port: (-per_port[port], port))[:3]),
            clients=len(clients) + waiting,
            waiting_clients=waiting,
            requests_in_flight=len(requests_ms),
            longest_request_seconds=max(requests_ms) / 1000 if requests_ms else None,
            complete=complete,
        )

    def close(self) -> None:
        """Close all descriptors."""
        for tracker in self._trackers.values():
            tracker.arrivals.close()

    def _inspect(
        self, now_ns: int, probes: Mapping[int, DeepProbe | None]
    ) -> tuple[list[TcpTracker], bool]:
        """Readable trackers, newest last, and whether all sockets were sampled."""
        trackers = {pid: self._tracker(pid, deep) for pid, deep in probes.items()}
        recent_ns = time.monotonic_ns() - CADENCE.gauge_ns
        due = [
            pid
            for pid, tracker in trackers.items()
            if tracker is self._trackers.get(pid) or tracker.inspected_ns < recent_ns
        ]
        due.sort(key=lambda pid: trackers[pid].inspected_ns)
        for pid in due[:_MAX_INSPECTED]:
            deep = probes[pid]
            if deep and deep.tcp:
                deep.inspect_connections(now_ns, now=True)
            else:
                trackers[pid].sockets.recheck()
                trackers[pid].inspect((), whole=True, others_run=False)
        readable = [tracker for tracker in trackers.values() if tracker.refused is None]
        complete = len(due) <= _MAX_INSPECTED and len(readable) == len(trackers)
        readable.sort(key=lambda tracker: tracker.inspected_ns)
        return readable, complete and all(tracker.sockets.complete for tracker in readable)

    def _tracker(self, pid: int, deep: DeepProbe | None) -> TcpTracker:
        if deep and deep.tcp:
            return deep.tcp
        if pid not in self._trackers:
            timeouts = AnswerTimeouts(JUDGED.min_response_timeout_ms)
            self._trackers[pid] = TcpTracker(self._proc, pid, timeouts)
        return self._trackers[pid]
