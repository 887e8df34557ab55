"""Which processes a process is connected with: by the pipes it shares and by its UNIX sockets.

Both take the permission to ptrace it. Descriptors 0 to 2 are kept apart: their other ends belong
to the parent that started the process, or to its neighbours in a shell pipeline.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.host.files import listed
from gpu_bottleneck_exporter.host.sockets import borrowed, pidfd_open, unix_peer

_INPUT, _OUTPUT, _ERRORS = range(3)
_MOST = 512
"""Descriptors of a process that are looked at."""


@dataclass(frozen=True, slots=True)
class Links:
    """Links of one process."""

    pipes: frozenset[str] = frozenset()
    """Their names in /proc/PID/fd, the same for all processes that hold an end."""
    peers: frozenset[int] = frozenset()
    """Pids that created the other ends of its UNIX sockets."""
    read_from: str | None = None
    """The pipe on its standard input."""
    written_to: str | None = None
    """The pipe on its standard output."""


def links(proc: Path, pid: int) -> Links:
    """The links of process `pid`; none without the permission. Raises NoRoomError."""
    pipes, peers = set(), set()
    standard: dict[int, str] = {}
    with contextlib.suppress(OSError):
        pidfd = pidfd_open(pid)
        try:
            for number, target in descriptors(proc, pid):
                if target.startswith("pipe:"):
                    if number > _ERRORS:
                        pipes.add(target)
                    else:
                        standard[number] = target
                elif number > _ERRORS and target.startswith("socket:"):
                    peers.add(_peer(pidfd, number))
        finally:
            os.close(pidfd)
    return Links(
        frozenset(pipes), frozenset(peers - {0, pid}), standard.get(_INPUT), standard.get(_OUTPUT)
    )


def descriptors(proc: Path, pid: int) -> Iterator[tuple[int, str]]:
    """Numbers and targets; none if they may not be read. Raises NoRoomError."""
    folder = f"{proc}/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in listed(folder, _MOST)[0]:
            with contextlib.suppress(OSError):
                yield int(name), os.readlink(f"{folder}/{name}")  # noqa: PTH115 - half the time


def unix_peers(pid: int, numbers: Iterable[int]) -> dict[int, int]:
    """Who created the other end of those `numbers` that are connected UNIX sockets."""
    with contextlib.suppress(OSError):
        pidfd = pidfd_open(pid)
        try:
            peers = {number: _peer(pidfd, number) for number in numbers}
        finally:
            os.close(pidfd)
        return {number: peer for number, peer in peers.items() if peer}
    return {}


def _peer(pidfd: int, number: int) -> int:
    """The pid at the other end of socket `number`; 0 if it is no UNIX socket or has no peer."""
    with contextlib.suppress(OSError), borrowed(pidfd, number) as descriptor:
        return 0 if descriptor is None else unix_peer(descriptor)
    return 0
