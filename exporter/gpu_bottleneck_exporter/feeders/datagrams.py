"""Whether a process is fed by datagrams: UDP has no state, no ages and no counters by socket.

A socket shows what it has queued, and whether it ever received anything. The network namespace
counts datagrams as processes take them; what it counts while the process did not run is taken by
others.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from gpu_bottleneck_exporter.accounting.stall import MOSTLY
from gpu_bottleneck_exporter.feeders.habits import NO_ACCIDENT, WEIGHT
from gpu_bottleneck_exporter.host.files import KeptFile
from gpu_bottleneck_exporter.host.process import parse_schedstat
from gpu_bottleneck_exporter.host.sockets import Connection

_STEP_NS = 900_000_000
"""Least time between two looks at whether the GPU worked: it is read once a second."""
_WEIGHT = 0.05
"""Weight of the newest look in both shares: they must not differ by chance."""
_QUIET = 0.02
"""Share of the looks between which only others took datagrams, below which there are no others."""
_CLEAR = 0.2
"""Least difference of both shares where there are others: four standard errors."""


class Arrivals:
    """Datagrams that process `pid` took, from look to look. Not thread-safe."""

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
            weight = max(WEIGHT, 1 / self._steps)
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
        return self._steps >= NO_ACCIDENT and self._fed > MOSTLY

    def _taken(self) -> int:
        """Datagrams that processes of the network namespace took."""
        snmp, snmp6 = ((file.read() or b"") for file in self._files)
        taken = 0
        with suppress(ValueError, IndexError):
            taken += int(snmp.rpartition(b"\nUdp: ")[2].split(None, 1)[0])
        with suppress(ValueError, IndexError):
            taken += int(snmp6.partition(b"Udp6InDatagrams")[2].split(None, 1)[0])
        return taken
