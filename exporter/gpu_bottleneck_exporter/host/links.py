"""Which processes a process is connected with: by pipes, FIFOs, UNIX sockets, TCP on one machine.

Takes the permission to ptrace. No file is touched, only its link and its fdinfo in /proc: a file
system that never answers is not asked.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import aside
from gpu_bottleneck_exporter.host.descriptors import (
    ask,
    descriptors,
    fields,
    is_file,
    is_socket,
)
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.mounts import mounts
from gpu_bottleneck_exporter.host.process import processes
from gpu_bottleneck_exporter.host.sockets import ends_of, unix_peers
from gpu_bottleneck_exporter.host.tcpnetworks import TcpNetworks

_INPUT, _OUTPUT, _ERRORS = range(3)
_MOST_DESCRIPTORS = 32_768
"""Of all processes together, per search."""
_WATCHED = re.compile(r"^tfd:\s*([0-9]+)\s", re.MULTILINE)
_EPOLL = "anon_inode:[eventpoll]"


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


class End(NamedTuple):
    """What the process at the other end has open."""

    name: str
    """Of a socket or a pipe as in /proc/PID/fd, of a FIFO the last part of its path."""
    file: tuple[str, str] | None = None
    """Of a FIFO: the device of its file system, and its inode."""
    pid: int = 0
    """Who has it open, where the kernel says so; else 0."""


def other_ends(
    proc: Path, pid: int, numbers: Collection[int | None], networks: TcpNetworks
) -> set[End]:
    """What is opposite to descriptors `numbers` of process `pid`; None: those in its epolls.

    Only what can be waited for may be among them: a path counts as a FIFO's. Raises NoRoomError.
    """
    targets = dict(descriptors(proc, pid))
    wanted = {number for number in numbers if number is not None}
    if None in numbers:
        epolls = [number for number, target in targets.items() if target == _EPOLL]
        wanted.update(*(_watched(proc, pid, number) for number in epolls))
    ends, inodes = set(), {}
    for number in wanted & targets.keys():
        target = targets[number]
        if is_socket(target):
            inodes[number] = target
        elif target.startswith("pipe:"):
            ends.add(End(target))
        elif is_file(target) and (opened := _opened(proc, pid, number)):
            ends.add(End(_last(target), opened[0]))
    peers = unix_peers(proc, pid, [*inodes])
    ends.update(End(inodes[number], pid=peer) for number, peer in peers.items())
    with contextlib.suppress(OSError):
        others = ask(f"{proc}/{pid}/fd", pid, [*inodes.keys() - peers.keys()], ends_of)
        found = (networks.opposite(pid, *one) for one in others.values() if one and one[1].port)
        ends.update(End(f"socket:[{inode}]") for inode in found if inode)
    return ends


def find(
    proc: Path, ends: Iterable[End], known: Collection[int], *, again: bool = False
) -> dict[End, set[int]]:
    """Who has each of `ends` open; of FIFOs and pipes, only those that may write.

    Looks at the processes of the machine, first those `known` to feed, then the youngest, until all
    sockets are found or too many descriptors were looked at. `again`: in any order, as a connection
    may have ended before it was the turn of who had it. Raises NoRoomError.
    """
    others = processes(proc)
    if again:
        random.shuffle(others)
    found: dict[End, set[int]] = {end: {end.pid} if end.pid else set() for end in ends}
    names: dict[str, list[End]] = {}
    for end in found:
        if not end.pid:
            names.setdefault(end.name, []).append(end)
    left = _MOST_DESCRIPTORS
    for pid in dict.fromkeys([*known, *reversed(others)]):
        if left <= 0 or not names:
            break
        for number, target in descriptors(proc, pid):
            left -= 1
            name = _last(target) if target.startswith("/") else target
            for end in names.get(name, ()):
                if _has_open(proc, pid, number, end):
                    found[end].add(pid)
            if is_socket(name):
                names.pop(name, None)
    return found


def _has_open(proc: Path, pid: int, number: int, end: End) -> bool:
    if is_socket(end.name):
        return True
    file, writes = _opened(proc, pid, number) or (None, False)
    return writes and end.file in (None, file)


def _opened(proc: Path, pid: int, number: int) -> tuple[tuple[str, str], bool] | None:
    """Device and inode of an open file, the same for all processes, and whether it may be written.

    None if it is closed by now, or before Linux 5.14, which tells no inode.
    """
    found = fields(_fdinfo(proc, pid, number))
    if not found.keys() >= {"flags", "mnt_id", "ino"}:
        return None
    writes = int(found["flags"], 8) & os.O_ACCMODE != os.O_RDONLY
    mount = found["mnt_id"]
    devices = {f"{one.number}": one.device for one in mounts(proc / str(pid))}
    return (devices.get(mount, mount), found["ino"]), writes


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _fdinfo(proc: Path, pid: int, number: int) -> str:
    """Aside, as an epoll's is locked while its process gets events, maybe in memory of FUSE."""
    return aside.call(pid, lambda: read(f"{proc}/{pid}/fdinfo/{number}")) or ""


def _watched(proc: Path, pid: int, number: int) -> Iterator[int]:
    """The descriptors that an epoll instance watches."""
    return map(int, _WATCHED.findall(_fdinfo(proc, pid, number)))
