"""Which processes a process is connected with: by pipes, FIFOs, UNIX sockets, TCP on one machine.

Takes the permission to ptrace. No file is touched, only its link and its fdinfo in /proc: a file
system that never answers is not asked.

The socket at the other end of a TCP connection may be in any network namespace of the machine. In
our own, the kernel is asked for single ones (sock_diag(7)), which takes 20 µs. /proc/net/tcp
lists all, also those that ended in the last minute, and takes 10 ms at least: a client that
connects anew for each request is gone by then.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import struct
import time
from collections.abc import Collection, Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import aside
from gpu_bottleneck_exporter.host.descriptors import ask, descriptors, fields, is_file, is_socket
from gpu_bottleneck_exporter.host.files import MANY_BYTES, check_room, read, understood
from gpu_bottleneck_exporter.host.mounts import mounts
from gpu_bottleneck_exporter.host.process import is_our_network, network_namespace, processes
from gpu_bottleneck_exporter.host.sockets import Endpoint, ends_of, unix_peers

_INPUT, _OUTPUT, _ERRORS = range(3)
"""Numbers of the standard streams, which a shell gives to many: they join nobody."""
_MOST_DESCRIPTORS = 32_768
"""Of all processes together, per search: 4 µs each."""
_MAX_SEARCH_SECONDS = 2.0
"""Time of a search: each process of the machine may take as long as its tenant's budget allows."""
_WATCHED = re.compile(r"^tfd:\s*([0-9]+)\s", re.MULTILINE)
_KEPT_NS = 60_000_000_000
"""A pod is new: its addresses are known by then."""
_EPOLL = "anon_inode:[eventpoll]"
_CONNECTED = re.compile(r"^ *[0-9]+: (\S+) (\S+) (?:\S+ +){6}([1-9][0-9]*) ", re.MULTILINE)
"""Local and remote end and inode in /proc/PID/net/tcp (proc_pid_net(5)); 0 after its end."""
_MAPPED = "0000000000000000FFFF0000"
"""How an IPv4 address begins in net/tcp6."""
_OWN_ADDRESS = re.compile(r"\|-- ([0-9.]+)\n +/32 host LOCAL$", re.MULTILINE)
"""In net/fib_trie."""
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
"""linux/netlink.h, linux/sock_diag.h: Python has no names for them."""
_REQUEST = struct.Struct("=IHHII BBBBI 2s2s16s16sIQ")
"""struct nlmsghdr: length, type, flags, sequence number, port; struct inet_diag_req_v2: family,
protocol, extensions, padding, states; struct inet_diag_sockid: ports, addresses, interface,
cookie."""
_ANSWER = struct.Struct("=4xH10x 4x 2s2s44x 16xI")
"""Type in struct nlmsghdr; in struct inet_diag_msg the ports of its sockid, and the inode."""
_ANY_STATE, _NO_COOKIE = 2**32 - 1, 2**64 - 1
"""In a request: do not compare them (INET_DIAG_NOCOOKIE)."""
_ANSWER_BYTES = 4096
"""A page: an answer has some hundred bytes."""
_IPV4_BYTES = 4
"""Of an address; those of IPv6 have 16."""
_Connected = dict[tuple[str, str], int]
"""Inodes of TCP sockets by local and remote end, as net/tcp has them."""


class Links(NamedTuple):
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
    opened = dict(descriptors(proc, pid))
    pipes = {number: link for number, link in opened.items() if link.startswith("pipe:")}
    sockets = [number for number, link in opened.items() if number > _ERRORS and is_socket(link)]
    return Links(
        frozenset(link for number, link in pipes.items() if number > _ERRORS),
        frozenset(unix_peers(proc, pid, sockets).values()) - {pid},
        pipes.get(_INPUT),
        pipes.get(_OUTPUT),
    )


class End(NamedTuple):
    """What the process at the other end has open."""

    name: str
    """Of a socket or a pipe as in /proc/PID/fd, of a FIFO a slash and the last part of its path.

    The slash matters: a job may name a file `socket:[7]`."""
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
    """Pids that have each of `ends` open; of FIFOs and pipes, only those that may write.

    Looks at the processes of the machine, first those `known` to feed, then the youngest, until all
    sockets are found, or too many descriptors or too much time were needed. `again`: in any order,
    as a connection may have ended before it was the turn of who had it. Raises NoRoomError.
    """
    others = processes(proc)
    if again:
        random.shuffle(others)
    found: dict[End, set[int]] = {end: {end.pid} if end.pid else set() for end in ends}
    names: dict[str, list[End]] = {}
    for end in found:
        if not end.pid:
            names.setdefault(end.name, []).append(end)
    left, until = _MOST_DESCRIPTORS, time.monotonic() + _MAX_SEARCH_SECONDS
    for pid in dict.fromkeys([*known, *reversed(others)]):
        if left <= 0 or not names or time.monotonic() > until:
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
    devices = {one.number: one.device for one in mounts(proc / str(pid))}
    return (devices.get(mount, mount), found["ino"]), writes


def _last(path: str) -> str:
    return "/" + path.rpartition("/")[2]


def _fdinfo(proc: Path, pid: int, number: int) -> str:
    """Aside, as an epoll's is locked while its process gets events, maybe in memory of FUSE."""
    return aside.call(pid, lambda: read(f"{proc}/{pid}/fdinfo/{number}")) or ""


def _watched(proc: Path, pid: int, number: int) -> Iterator[int]:
    """The descriptors that an epoll instance watches."""
    return map(int, _WATCHED.findall(_fdinfo(proc, pid, number)))


class TcpNetworks:
    """The network namespaces of the machine; used by one thread."""

    def __init__(self, proc: Path) -> None:
        """`proc`: our own procfs."""
        self._proc = proc
        self._own = network_namespace(proc, os.getpid())
        self._connected: dict[int | None, _Connected] = {}
        self._addresses: dict[bytes, int] = {}
        """By address, a process in the namespace that has it."""
        self._due_ns = 0

    def begin(self, now_ns: int) -> None:
        """Forget the connections, which change, and now and then who has which address."""
        self._connected.clear()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _KEPT_NS
            self._addresses = _addresses(self._proc)

    def opposite(self, pid: int, local: Endpoint, remote: Endpoint) -> int:
        """The inode of the socket opposite to one of process `pid`; 0 if it is elsewhere.

        Another network namespace has it only if no user can have chosen the addresses of either.
        """
        found, other = self._inode(pid, remote, local), self._addresses.get(remote.address)
        if found or other is None or remote.is_here:
            return found
        are_ours = all(is_our_network(self._proc, one) for one in (pid, other))
        return self._inode(other, remote, local) if are_ours else 0

    def _inode(self, pid: int, local: Endpoint, remote: Endpoint) -> int:
        """Inode of a socket in the network namespace of process `pid`. Raises NoRoomError."""
        network = network_namespace(self._proc, pid)
        if network == self._own:
            try:
                return inode_of(local, remote)
            except OSError as error:
                check_room(error)
        if network not in self._connected:
            self._connected[network] = _connected(f"{self._proc}/{pid}/net")
        return self._connected[network].get((_hexadecimal(local), _hexadecimal(remote)), 0)


def inode_of(local: Endpoint, remote: Endpoint) -> int:
    """Inode of the socket of our own network namespace with these ends; 0 if there is none.

    Raises OSError if the kernel may not be asked.
    """
    ports = [end.port.to_bytes(2, "big") for end in (local, remote)]
    addresses = [end.address.ljust(16, b"\0") for end in (local, remote)]
    family = socket.AF_INET if len(local.address) == _IPV4_BYTES else socket.AF_INET6
    header = (_REQUEST.size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    about = (family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE, *ports, *addresses, 0, _NO_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(0)  # it has answered by the time that it takes the question
        kernel.send(_REQUEST.pack(*header, *about))
        answer = kernel.recv(_ANSWER_BYTES).ljust(_ANSWER.size, b"\0")  # an error is shorter
    kind, *found, inode = _ANSWER.unpack_from(answer)
    # With other ports it is one that listens.
    return inode if kind == _SOCK_DIAG_BY_FAMILY and found == ports else 0


def _addresses(proc: Path) -> dict[bytes, int]:
    """The oldest process of each network namespace by the addresses of the namespace.

    Without namespaces whose addresses a user can choose.
    """
    oldest = {network_namespace(proc, pid): pid for pid in reversed(processes(proc))}
    return {
        address: pid
        for network, pid in oldest.items()
        if network is not None and is_our_network(proc, pid)
        for address in _own_addresses(f"{proc}/{pid}/net") or ()
    }


@understood
def _own_addresses(folder: str) -> list[bytes]:
    trie = read(f"{folder}/fib_trie", MANY_BYTES) or ""
    lines = (read(f"{folder}/if_inet6", MANY_BYTES) or "").splitlines()
    return [
        *(ip_address(text).packed for text in _OWN_ADDRESS.findall(trie)),
        *(bytes.fromhex(line.split()[0]) for line in lines),
    ]


def _hexadecimal(end: Endpoint) -> str:
    """The form of net/tcp: words of four bytes in the byte order of the machine, and the port."""
    words = struct.unpack(f"={len(end.address) // 4}I", end.address)
    return f"{''.join(f'{word:08X}' for word in words)}:{end.port:04X}"


def _connected(folder: str) -> _Connected:
    tables = (read(f"{folder}/{name}", MANY_BYTES) or "" for name in ("tcp", "tcp6"))
    return {
        (local.removeprefix(_MAPPED), remote.removeprefix(_MAPPED)): int(inode)
        for table in tables
        for local, remote, inode in _CONNECTED.findall(table)
    }
