"""Requests in flight in a process's io_uring rings (/proc/PID/fdinfo), and its use of kernel AIO.

Takes the permission to ptrace. Each kernel shows registered files and requests that poll; since
Linux 5.16 it also shows how many requests were submitted and completed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import aside
from gpu_bottleneck_exporter.host.descriptors import fields, is_file, link_of
from gpu_bottleneck_exporter.host.files import MANY_BYTES, read_part, understood

RING, EVENT = "anon_inode:[io_uring]", "anon_inode:[eventfd]"
"""Links of a ring and of an eventfd in /proc/PID/fd."""
MOST_RINGS = 4
"""Rings of a process that are read per look, at 30 µs each."""
_MOST_BYTES = 262_144
"""Text of a ring that is read: enough for 4 000 requests that wait in its queues."""
_MOST_FILES = 16
"""Open or registered files of a process whose kind is checked."""
_SIGN, _WRAP = 2**31, 2**32
_AIO = " /[aio]"
"""The end of the line in /proc/PID/maps where completions are; ` (deleted)` follows."""
_SOCKETS = ("socket:", "TCP", "UDP", "UNIX")
"""How the names of registered sockets begin; on older kernels they are their protocols."""
_POLL = "  op="


class Ring(NamedTuple):
    """One ring at one moment."""

    number: int
    """Its descriptor."""
    polls: int
    """Requests that wait until a socket, a pipe or an eventfd is ready."""
    others: int | None
    """Other requests in flight: reads, writes and timers. None: the kernel does not show them, or
    a request completed more than once (multishot)."""
    completed: int
    """Requests that were completed so far, modulo 2**32; 0 if `others` is None."""
    files: tuple[str, ...] = ()
    """Names of registered files that are no sockets; the first few."""


@understood
def parsed(number: int, text: str) -> Ring:
    """The ring that has descriptor `number` and this fdinfo."""
    head, found, tail = text.partition("\nPollList:\n")
    if not found:  # its lock was taken
        raise ValueError(number)
    rest = tail.splitlines()
    polls = next((at for at, line in enumerate(rest) if not line.startswith(_POLL)), len(rest))
    registered = head.rpartition("\nUserFiles:")[2].partition("\nUserBufs:")[0].splitlines()[1:]
    names = (line.partition(": ")[2] for line in registered)
    files = [name for name in names if name != "<none>" and not name.startswith(_SOCKETS)]
    others, completed = _others(head, polls)
    return Ring(number, polls, others, completed, tuple(files[:_MOST_FILES]))


def _others(head: str, polls: int) -> tuple[int | None, int]:
    values = fields(head)
    if "SqMask" not in values:
        return None, 0
    completed = int(values["CachedCqTail"])
    others = behind(completed, int(values["CachedSqHead"])) - polls
    return (others, completed) if others >= 0 else (None, 0)


def behind(position: int, other: int) -> int:
    """By how much `position` is behind `other`, where both count modulo 2**32; negative: ahead."""
    return (other - position + _SIGN) % _WRAP - _SIGN


def rings(proc: Path, pid: int, numbers: Iterable[int]) -> list[Ring] | None:
    """Those of descriptors `numbers` of process `pid` that are rings, and are not locked.

    None: too much is queued in one to read all of it, or the process does not answer.
    """
    # Aside, for the locks of an execve, and of an epoll that takes over a ring's number.
    return aside.call(pid, partial(_rings, f"{proc}/{pid}", [*numbers][:MOST_RINGS]))


def _rings(process: str, numbers: Iterable[int]) -> list[Ring] | None:
    found = []
    for number in numbers:
        if _link(process, number) != RING:
            continue
        part = read_part(f"{process}/fdinfo/{number}", _MOST_BYTES)
        if part and not part.whole:
            return None
        ring = parsed(number, part.text) if part else None
        found += [ring] if ring else []
    return found


def _link(process: str, number: int) -> str | None:
    try:
        return link_of(f"{process}/fd", number)
    except PermissionError:
        return None


def reads_files(proc: Path, pid: int, numbers: Iterable[int]) -> bool:
    """Whether one of `numbers`, the first few, is a file that is open for reading."""
    return (
        aside.call(pid, partial(_reads_files, f"{proc}/{pid}", [*numbers][:_MOST_FILES])) or False
    )


@understood
def _reads_files(process: str, numbers: Iterable[int]) -> bool:
    for number in numbers:
        if is_file(_link(process, number) or ""):
            part = read_part(f"{process}/fdinfo/{number}", _MOST_BYTES)
            flags = fields(part.text)["flags"] if part else "1"
            if int(flags, 8) & os.O_ACCMODE != os.O_WRONLY:
                return True
    return False


def uses_aio(proc: Path, pid: int) -> bool:
    """Whether process `pid` has set up kernel AIO; False if its maps are longer than 1 MiB."""
    # Aside, as they wait for page faults of the process.
    part = aside.call(pid, partial(read_part, f"{proc}/{pid}/maps", MANY_BYTES))
    return part is not None and _AIO in part.text
