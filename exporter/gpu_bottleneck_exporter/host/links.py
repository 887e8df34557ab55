"""Links between processes of one machine: pipes, FIFOs, UNIX sockets and TCP connections.

Takes the permission to ptrace. Reads links and fdinfo only, as files may block. For a TCP
connection in our own network namespace, sock_diag(7) takes 20 µs; in others net/tcp takes at least
10 ms.
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

from gpu_bottleneck_exporter.host.aside import memory_reads
from gpu_bottleneck_exporter.host.descriptors import (
    descriptors,
    fields,
    is_file,
    is_socket,
    query_sockets,
)
from gpu_bottleneck_exporter.host.files import (
    MAX_TABLE_BYTES,
    none_if_malformed,
    raise_if_file_limit,
    read,
)
from gpu_bottleneck_exporter.host.mounts import EPOLL, mounts
from gpu_bottleneck_exporter.host.process import is_our_network, network_namespace, processes
from gpu_bottleneck_exporter.host.sockets import Endpoint, ends_of, unix_peers

_MAX_SEARCH_SECONDS = 2.0
"""Duration of a search: a process may use up its tenant's time."""
_EPOLL_TARGETS = re.compile(r"^tfd:\s*([0-9]+)\s", re.MULTILINE)
_ADDRESS_INTERVAL_NS = 60_000_000_000
"""Interval between reads of addresses: a pod has its own."""
_CONNECTED = re.compile(r"^ *[0-9]+: (\S+) (\S+) (?:\S+ +){6}([1-9][0-9]*) ", re.MULTILINE)
"""Ends and inode in net/tcp; an ended connection has inode 0."""
_SOCK_DIAG_BY_FAMILY = 20
"""Message type in linux/sock_diag.h."""
_DIAG_REQUEST = struct.Struct("=IHHII BBBBI 2s2s16s16sIQ")
"""struct nlmsghdr: length, type, flags, sequence number, port; struct inet_diag_req_v2: family,
protocol, extensions, padding, states; struct inet_diag_sockid: ports, addresses, interface, cookie.
"""
_DIAG_RESPONSE = struct.Struct("=4xH10x 4x 2s2s44x 16xI")
"""Type in struct nlmsghdr; in struct inet_diag_msg the ports of its sockid, and the inode."""
_Connections = dict[tuple[str, str], int]
"""Inodes by local and remote end, as in net/tcp."""


class Links(NamedTuple):
    """The links of one process."""

    pipes: frozenset[str] = frozenset()
    """Names in /proc/PID/fd, without standard streams."""
    peers: frozenset[int] = frozenset()
    """Pids at the other ends of its UNIX sockets."""
    read_from: str | None = None
    """Pipe on standard input."""
    written_to: str | None = None
    """Pipe on standard output."""


def links(proc: Path, pid: int) -> Links:
    """Links of process `pid`; none without the permission. Raises FileLimitError."""
    opened = dict(descriptors(proc, pid))
    pipes = {number: link for number, link in opened.items() if link.startswith("pipe:")}
    # Standard streams, which a shell's processes share, link none.
    sockets = [
        number for number, link in opened.items() if number not in range(3) and is_socket(link)
    ]
    return Links(
        frozenset(link for number, link in pipes.items() if number not in range(3)),
        frozenset(unix_peers(proc, pid, sockets).values()) - {pid},
        pipes.get(0),
        pipes.get(1),
    )


class End(NamedTuple):
    """The other end of a pipe, a FIFO or a socket."""

    name: str
    """Name as in /proc/PID/fd; of a FIFO a slash and its name, against forgery."""
    file: tuple[str, str] | None = None
    """Device and inode of a FIFO."""
    pid: int = 0
    """Process that has it open, if known; else 0."""


def peer_ends(
    proc: Path, pid: int, numbers: Collection[int | None], networks: TcpNetworks
) -> set[End]:
    """Ends opposite to descriptors `numbers` of process `pid`; None: those in its epolls.

    Raises FileLimitError.
    """
    targets = dict(descriptors(proc, pid))
    selected = {number for number in numbers if number is not None}
    if None in numbers:
        epolls = [number for number, target in targets.items() if target == EPOLL]
        selected.update(*(_watched(proc, pid, number) for number in epolls))
    ends, inodes = set(), {}
    for number in selected & targets.keys():
        target = targets[number]
        if is_socket(target):
            inodes[number] = target
        elif target.startswith("pipe:"):
            ends.add(End(target))
        elif is_file(target) and (file := _file_identity(proc, pid, number)):
            ends.add(End(_basename(target), file[0]))
    peers = unix_peers(proc, pid, [*inodes])
    ends.update(End(inodes[number], pid=peer) for number, peer in peers.items())
    with contextlib.suppress(OSError):
        others = query_sockets(f"{proc}/{pid}/fd", pid, [*inodes.keys() - peers.keys()], ends_of)
        pairs = (pair for pair in others.values() if pair and pair[1].port)
        remote = (networks.peer_inode(pid, *pair) for pair in pairs)
        ends.update(End(f"socket:[{inode}]") for inode in remote if inode)
    return ends


def find_processes(
    proc: Path, ends: Iterable[End], feeders: Collection[int], *, again: bool = False
) -> dict[End, set[int]]:
    """Pids that have each of `ends` open; for FIFOs and pipes, for writing.

    Searches `feeders`, then the youngest; `again`: in random order. Raises FileLimitError.
    """
    others = processes(proc)
    if again:
        random.shuffle(others)
    pids: dict[End, set[int]] = {end: {end.pid} if end.pid else set() for end in ends}
    names: dict[str, list[End]] = {}
    for end in pids:
        if not end.pid:
            names.setdefault(end.name, []).append(end)
    # 4 µs per descriptor.
    left, until = 32_768, time.monotonic() + _MAX_SEARCH_SECONDS
    for pid in dict.fromkeys([*feeders, *reversed(others)]):
        if left <= 0 or not names or time.monotonic() > until:
            break
        for number, target in descriptors(proc, pid):
            left -= 1
            name = _basename(target) if target.startswith("/") else target
            for end in names.get(name, ()):
                if _has_open(proc, pid, number, end):
                    pids[end].add(pid)
            if is_socket(name):
                names.pop(name, None)
    return pids


def _has_open(proc: Path, pid: int, number: int, end: End) -> bool:
    if is_socket(end.name):
        return True
    file, writes = _file_identity(proc, pid, number) or (None, False)
    return writes and end.file in (None, file)


def _file_identity(proc: Path, pid: int, number: int) -> tuple[tuple[str, str], bool] | None:
    """Device and inode of an open file, and whether it is writable; None before Linux 5.14."""
    values = fields(_fdinfo(proc, pid, number))
    if not values.keys() >= {"flags", "mnt_id", "ino"}:
        return None
    writes = int(values["flags"], 8) & os.O_ACCMODE != os.O_RDONLY
    number_of_mount = values["mnt_id"]
    devices = {mount.number: mount.device for mount in mounts(proc / str(pid))}
    return (devices.get(number_of_mount, number_of_mount), values["ino"]), writes


def _basename(path: str) -> str:
    return "/" + path.rpartition("/")[2]


def _fdinfo(proc: Path, pid: int, number: int) -> str:
    """Read with a timeout: an epoll is locked while it delivers events."""
    return memory_reads.call(pid, lambda: read(f"{proc}/{pid}/fdinfo/{number}")) or ""


def _watched(proc: Path, pid: int, number: int) -> Iterator[int]:
    return map(int, _EPOLL_TARGETS.findall(_fdinfo(proc, pid, number)))


class TcpNetworks:
    """The machine's network namespaces. Not thread-safe."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._own = network_namespace(proc, os.getpid())
        self._connected: dict[int | None, _Connections] = {}
        self._addresses: dict[bytes, int] = {}
        """A process per address."""
        self._due_ns = 0

    def refresh(self, now_ns: int) -> None:
        """Drop the connections, and each minute the addresses."""
        self._connected.clear()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _ADDRESS_INTERVAL_NS
            self._addresses = _addresses(self._proc)

    def peer_inode(self, pid: int, local: Endpoint, remote: Endpoint) -> int:
        """Inode of the peer of a socket of `pid`, in a namespace with trusted addresses; else 0."""
        inode, other = self._inode(pid, remote, local), self._addresses.get(remote.address)
        if inode or other is None or remote.is_here:
            return inode
        are_ours = all(is_our_network(self._proc, process) for process in (pid, other))
        return self._inode(other, remote, local) if are_ours else 0

    def _inode(self, pid: int, local: Endpoint, remote: Endpoint) -> int:
        """Inode in the network namespace of process `pid`. Raises FileLimitError."""
        network = network_namespace(self._proc, pid)
        if network == self._own:
            try:
                return inode_of(local, remote)
            except OSError as error:
                raise_if_file_limit(error)
        if network not in self._connected:
            self._connected[network] = _connected(f"{self._proc}/{pid}/net")
        return self._connected[network].get((_hexadecimal(local), _hexadecimal(remote)), 0)


def inode_of(local: Endpoint, remote: Endpoint) -> int:
    """Inode of the socket with these ends in our own network namespace; else 0. Raises OSError."""
    ports = [end.port.to_bytes(2, "big") for end in (local, remote)]
    addresses = [end.address.ljust(16, b"\0") for end in (local, remote)]
    family = socket.AF_INET6 if local.address[4:] else socket.AF_INET
    header = (_DIAG_REQUEST.size, _SOCK_DIAG_BY_FAMILY, 1, 0, 0)  # 1: NLM_F_REQUEST
    # Any state, and any cookie (INET_DIAG_NOCOOKIE).
    key = (family, socket.IPPROTO_TCP, 0, 0, 2**32 - 1, *ports, *addresses, 0, 2**64 - 1)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as kernel:  # 4: NETLINK_SOCK_DIAG
        kernel.settimeout(0)  # the response is there when `send` returns
        kernel.send(_DIAG_REQUEST.pack(*header, *key))
        response = kernel.recv(4096).ljust(_DIAG_RESPONSE.size, b"\0")  # an error is shorter
    kind, *response_ports, inode = _DIAG_RESPONSE.unpack_from(response)
    # With other ports it is a listening one.
    return inode if kind == _SOCK_DIAG_BY_FAMILY and response_ports == ports else 0


def _addresses(proc: Path) -> dict[bytes, int]:
    """The oldest process per address that no user can choose, of all namespaces."""
    oldest = {network_namespace(proc, pid): pid for pid in reversed(processes(proc))}
    return {
        address: pid
        for network, pid in oldest.items()
        if network is not None and is_our_network(proc, pid)
        for address in _own_addresses(f"{proc}/{pid}/net") or ()
    }


@none_if_malformed
def _own_addresses(folder: str) -> list[bytes]:
    trie = read(f"{folder}/fib_trie", MAX_TABLE_BYTES) or ""
    own = re.findall(r"\|-- ([0-9.]+)\n +/32 host LOCAL$", trie, re.MULTILINE)
    lines = (read(f"{folder}/if_inet6", MAX_TABLE_BYTES) or "").splitlines()
    return [
        *(ip_address(text).packed for text in own),
        *(bytes.fromhex(line.split()[0]) for line in lines),
    ]


def _hexadecimal(end: Endpoint) -> str:
    """The form of net/tcp: four-byte words in machine order, and the port."""
    words = struct.unpack(f"={len(end.address) // 4}I", end.address)
    return f"{''.join(f'{word:08X}' for word in words)}:{end.port:04X}"


def _connected(folder: str) -> _Connections:
    tables = (read(f"{folder}/{name}", MAX_TABLE_BYTES) or "" for name in ("tcp", "tcp6"))
    mapped = "0000000000000000FFFF0000"  # prefix of an IPv4 address in tcp6
    return {
        (local.removeprefix(mapped), remote.removeprefix(mapped)): int(inode)
        for table in tables
        for local, remote, inode in _CONNECTED.findall(table)
    }
