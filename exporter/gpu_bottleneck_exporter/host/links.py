"""Who a process is joined with: pipes that it shares, and whom its UNIX sockets lead to.

Both take the right to ptrace it. Descriptors 0 to 2 are told apart: whoever started a process
holds the other end of those, or the shell that made a pipeline joined them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.host.files import listed
from gpu_bottleneck_exporter.host.sockets import borrowed, pidfd_open, unix_peer

_INPUT, _OUTPUT, _ERRORS = range(3)
_MOST = 512
"""So many descriptors of a process are followed."""


@dataclass(frozen=True, slots=True)
class Links:
    """Those of one process."""

    pipes: frozenset[str] = frozenset()
    """As /proc/PID/fd names them: the same for all that hold an end."""
    peers: frozenset[int] = frozenset()
    """Processes that its UNIX sockets were made with."""
    read_from: str | None = None
    """The pipe that is its standard input."""
    written_to: str | None = None
    """The pipe that is its standard output."""


def links(proc: Path, pid: int) -> Links:
    """Those of process `pid`; none where we may not know."""
    pipes, peers = set(), set()
    standard: dict[int, str] = {}
    with contextlib.suppress(OSError):
        pidfd = pidfd_open(pid)
        try:
            for number, target in _descriptors(proc / str(pid) / "fd"):
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
        frozenset(pipes),
        frozenset(peers - {0, pid}),
        standard.get(_INPUT),
        standard.get(_OUTPUT),
    )


def _descriptors(folder: Path) -> Iterator[tuple[int, str]]:
    for name in listed(folder, _MOST)[0]:
        with contextlib.suppress(OSError):
            yield int(name), os.readlink(f"{folder}/{name}")  # noqa: PTH115 - half the time


def _peer(pidfd: int, number: int) -> int:
    """Who made the other end of a UNIX socket; 0 where nobody did, or it is none."""
    with contextlib.suppress(OSError), borrowed(pidfd, number) as descriptor:
        return 0 if descriptor is None else unix_peer(descriptor)
    return 0
