"""Requests in flight in io_uring rings (/proc/PID/fdinfo), and use of kernel AIO.

Takes the permission to ptrace.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import memory_reads
from gpu_bottleneck_exporter.host.descriptors import fields, is_file, link_of
from gpu_bottleneck_exporter.host.files import MAX_TABLE_BYTES, none_if_malformed, read_bounded

RING, EVENTFD = "anon_inode:[io_uring]", "anon_inode:[eventfd]"
"""Links in /proc/PID/fd."""
_MAX_RINGS = 4
"""Rings read per sample, 30 µs each."""
_MAX_FDINFO_BYTES = 262_144
"""Bytes read of a ring's fdinfo: 4 000 queued requests."""
_MAX_CHECKED_FILES = 16
"""Open or registered files checked per process."""


class Ring(NamedTuple):
    """One ring at one moment."""

    number: int
    """Descriptor."""
    polls: int
    """Requests that wait until a socket, pipe or eventfd is ready."""
    others: int | None
    """Other requests in flight. None if hidden, or one completed repeatedly (multishot)."""
    completed: int
    """Completed requests, modulo 2**32; 0 if `others` is None."""
    files: tuple[str, ...] = ()
    """Names of the first registered files, without sockets."""


@none_if_malformed
def parse_ring(number: int, text: str) -> Ring:
    """The ring with this descriptor and fdinfo."""
    head, separator, tail = text.partition("\nPollList:\n")
    if not separator:  # it is locked
        raise ValueError(number)
    rest = tail.splitlines()
    polls = next((at for at, line in enumerate(rest) if not line.startswith("  op=")), len(rest))
    registered = head.rpartition("\nUserFiles:")[2].partition("\nUserBufs:")[0].splitlines()[1:]
    names = (line.partition(": ")[2] for line in registered)
    # Older kernels name the protocols of sockets.
    sockets = ("socket:", "TCP", "UDP", "UNIX")
    files = [name for name in names if name != "<none>" and not name.startswith(sockets)]
    others, completed = _others(head, polls)
    return Ring(number, polls, others, completed, tuple(files[:_MAX_CHECKED_FILES]))


def _others(head: str, polls: int) -> tuple[int | None, int]:
    values = fields(head)
    if "SqMask" not in values:
        return None, 0
    completed = int(values["CachedCqTail"])
    others = distance(completed, int(values["CachedSqHead"])) - polls
    return (others, completed) if others >= 0 else (None, 0)


def distance(position: int, other: int) -> int:
    """Distance from `position` to `other`, modulo 2**32; negative if `other` is behind."""
    return (other - position + 2**31) % 2**32 - 2**31


def read_rings(proc: Path, pid: int, numbers: Iterable[int]) -> list[Ring] | None:
    """Unlocked rings among descriptors `numbers`; None if one's queues are too long to read."""
    # With a timeout, for the locks of an execve or an epoll.
    return memory_reads.call(pid, partial(_rings, f"{proc}/{pid}", [*numbers][:_MAX_RINGS]))


def _rings(process: str, numbers: Iterable[int]) -> list[Ring] | None:
    rings = []
    for number in numbers:
        if _link(process, number) != RING:
            continue
        part = read_bounded(f"{process}/fdinfo/{number}", _MAX_FDINFO_BYTES)
        if part and not part.whole:
            return None
        ring = parse_ring(number, part.text) if part else None
        rings += [ring] if ring else []
    return rings


def _link(process: str, number: int) -> str | None:
    try:
        return link_of(f"{process}/fd", number)
    except PermissionError:
        return None


def reads_files(proc: Path, pid: int, numbers: Iterable[int]) -> bool:
    """Whether one of the first `numbers` is a file open for reading."""
    return (
        memory_reads.call(
            pid, partial(_reads_files, f"{proc}/{pid}", [*numbers][:_MAX_CHECKED_FILES])
        )
        or False
    )


@none_if_malformed
def _reads_files(process: str, numbers: Iterable[int]) -> bool:
    for number in numbers:
        if is_file(_link(process, number) or ""):
            part = read_bounded(f"{process}/fdinfo/{number}", _MAX_FDINFO_BYTES)
            flags = fields(part.text)["flags"] if part else "1"
            if int(flags, 8) & os.O_ACCMODE != os.O_WRONLY:
                return True
    return False


def uses_aio(proc: Path, pid: int) -> bool:
    """Whether a process has set up kernel AIO; False if its maps exceed 1 MiB."""
    # Maps wait for page faults of the process.
    part = memory_reads.call(pid, partial(read_bounded, f"{proc}/{pid}/maps", MAX_TABLE_BYTES))
    return part is not None and " /[aio]" in part.text
