"""Which processes a process is connected with: by the pipes it shares and by its UNIX sockets.

Both take the permission to ptrace it. Descriptors 0 to 2 are kept apart: their other ends belong
to the parent that started the process, or to its neighbours in a shell pipeline.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.host.borrow import ask, is_socket, link_of
from gpu_bottleneck_exporter.host.files import listed
from gpu_bottleneck_exporter.host.sockets import unix_peer

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
    pipes, sockets = set(), []
    standard: dict[int, str] = {}
    for number, link in descriptors(proc, pid):
        if link.startswith("pipe:"):
            if number > _ERRORS:
                pipes.add(link)
            else:
                standard[number] = link
        elif number > _ERRORS and is_socket(link):
            sockets.append(number)
    peers = frozenset(unix_peers(proc, pid, sockets).values()) - {pid}
    return Links(frozenset(pipes), peers, standard.get(_INPUT), standard.get(_OUTPUT))


def descriptors(proc: Path, pid: int) -> Iterator[tuple[int, str]]:
    """Numbers and links of what is open; none without the permission. Raises NoRoomError."""
    folder = f"{proc}/{pid}/fd"
    with contextlib.suppress(OSError):
        for number in map(int, listed(folder, _MOST)[0]):
            link = link_of(folder, number)
            if link is not None:
                yield number, link


def unix_peers(proc: Path, pid: int, numbers: Sequence[int]) -> dict[int, int]:
    """Who created the other end of those `numbers` that are connected UNIX sockets.

    None without the permission. Raises NoRoomError.
    """
    with contextlib.suppress(OSError):
        peers = ask(f"{proc}/{pid}/fd", pid, numbers, unix_peer)
        return {number: peer for number, peer in peers.items() if peer}
    return {}
