"""Which processes a process is connected with: by the pipes it shares and by its UNIX sockets.

Both take the permission to ptrace it. Descriptors 0 to 2 are kept apart: their other ends belong
to the parent that started the process, or to its neighbours in a shell pipeline.
"""

from __future__ import annotations

import contextlib
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
    folder = f"{proc}/{pid}/fd"
    peers: set[int] = set()
    with contextlib.suppress(OSError):
        for number in map(int, listed(folder, _MOST)[0]):
            link = link_of(folder, number) or ""
            if link.startswith("pipe:"):
                if number > _ERRORS:
                    pipes.add(link)
                else:
                    standard[number] = link
            elif number > _ERRORS and is_socket(link):
                sockets.append(number)
        peers = {peer for peer in ask(folder, pid, sockets, unix_peer).values() if peer}
    return Links(
        frozenset(pipes), frozenset(peers - {pid}), standard.get(_INPUT), standard.get(_OUTPUT)
    )
