"""Counts what the TCP sockets of a job move, where its network namespace is also that of others.

Reads nothing: it adds up what deep probes saw of the connections.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.host.files import MOST_REMEMBERED
from gpu_bottleneck_exporter.schedule import SHORTLY_NS, Every


class SocketTraffic:
    """The bytes that a job's connections moved while its GPU idled. Not thread-safe.

    A connection that processes share counts once, and one that was closed keeps what it counted.
    """

    def __init__(self) -> None:
        self._known = False
        self._moved_bytes = 0
        self._last: dict[int, int] | None = None
        """Bytes by socket, as last seen; None: the next look is the first to count from."""
        self._looking = Every(SHORTLY_NS)

    @property
    def moved_bytes(self) -> int | None:
        """Bytes received and sent since the start; None if not all connections are known."""
        return self._moved_bytes if self._known else None

    def advance(self, processes: Collection[Process], now_ns: int, *, whole: bool) -> None:
        """Take what was seen of `processes`; `whole`: they are all of the job."""
        if not self._looking.is_due(now_ns):
            return
        looks = [_moved(process) for process in processes]
        self._known = whole and bool(looks) and None not in looks
        now: dict[int, int] = {}
        for moved in filter(None, looks):
            for cookie, total_bytes in moved.items():
                now[cookie] = max(total_bytes, now.get(cookie, 0))
        if self._known and self._last is None:
            self._last = now
        elif self._known and self._last is not None:
            before = self._last
            self._moved_bytes += sum(
                max(total_bytes - before.get(cookie, 0), 0) for cookie, total_bytes in now.items()
            )
            self._last = {**before, **now} if len(before) < MOST_REMEMBERED else now

    def pause(self) -> None:
        """Leave out what is moved until the next look: the GPU works, and nothing is looked at."""
        self._last = None


def _moved(process: Process) -> Mapping[int, int] | None:
    tcp = process.deep.tcp if process.deep else None
    return tcp.moved if tcp else None
