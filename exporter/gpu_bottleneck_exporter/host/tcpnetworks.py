"""The sockets at the other ends of TCP connections, in all network namespaces of the machine.

In our own, the kernel is asked for single ones (sock_diag(7)), which takes 20 µs. /proc/net/tcp
lists all, also those that ended in the last minute, and takes 10 ms at least: a client that
connects anew for each request is gone by then.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from ipaddress import ip_address
from pathlib import Path

from gpu_bottleneck_exporter.host.files import MANY_BYTES, check_room, read, understood
from gpu_bottleneck_exporter.host.process import network_namespace, processes
from gpu_bottleneck_exporter.host.sockets import Endpoint

_KEPT_NS = 60_000_000_000
"""A pod is new: its addresses are known by then."""
_LOCAL, _REMOTE, _INODE = 1, 2, 9
"""Fields of a line of /proc/PID/net/tcp (proc_pid_net(5))."""
_MAPPED = "0000000000000000FFFF0000"
"""How an IPv4 address begins in net/tcp6."""
_OWN_ADDRESS = re.compile(r"\|-- ([0-9.]+)\n +/32 host LOCAL$", re.MULTILINE)
"""In net/fib_trie."""
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence number, port."""
_REQUEST = struct.Struct("=BBBBI 2s2s16s16sIQ")
"""struct inet_diag_req_v2: family, protocol, extensions, padding, states; struct inet_diag_sockid:
ports, addresses, interface, cookie."""
_ANSWER = struct.Struct("=16x4x 2s2s44x 16xI")
"""struct inet_diag_msg after its header: ports of its sockid, and the inode."""
_ANY_STATE, _NO_COOKIE = 2**32 - 1, 2**64 - 1
_MOST_BYTES = 4096
_IPV4_BYTES = 4
_Connected = dict[tuple[str, str], int]
"""Inodes of TCP sockets by local and remote end, as net/tcp has them."""


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
        """The inode of the socket opposite to one of process `pid`; 0 if it is elsewhere."""
        found = self._inode(pid, remote, local)
        if not found and not remote.is_here and remote.address in self._addresses:
            return self._inode(self._addresses[remote.address], remote, local)
        return found

    def _inode(self, pid: int, local: Endpoint, remote: Endpoint) -> int:
        """That of a socket in the network namespace of process `pid`. Raises NoRoomError."""
        network = network_namespace(self._proc, pid)
        if network == self._own:
            try:
                return inode_of(local, remote)
            except OSError as error:
                check_room(error)
        if network not in self._connected:
            self._connected[network] = _connected(f"{self._proc}/{pid}/net") or {}
        return self._connected[network].get((_hexadecimal(local), _hexadecimal(remote)), 0)


def inode_of(local: Endpoint, remote: Endpoint) -> int:
    """That of the socket of our own network namespace with these ends; 0 if there is none.

    Raises OSError if the kernel may not be asked.
    """
    ports = [end.port.to_bytes(2, "big") for end in (local, remote)]
    addresses = [end.address.ljust(16, b"\0") for end in (local, remote)]
    family = socket.AF_INET if len(local.address) == _IPV4_BYTES else socket.AF_INET6
    about = (*ports, *addresses, 0, _NO_COOKIE)
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE, *about)
    size = _HEADER.size + _REQUEST.size
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(0)  # it has answered by the time that it takes the question
        kernel.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + request)
        answer = kernel.recv(_MOST_BYTES)
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return 0
    *found, inode = _ANSWER.unpack_from(answer)
    return inode if found == ports else 0  # else it is one that listens


def _addresses(proc: Path) -> dict[bytes, int]:
    """The oldest process of each network namespace by the addresses of the namespace."""
    found: dict[bytes, int] = {}
    seen: set[int | None] = {None}
    for pid in processes(proc):
        network = network_namespace(proc, pid)
        if network not in seen:
            seen.add(network)
            found |= dict.fromkeys(_own_addresses(f"{proc}/{pid}/net") or (), pid)
    return found


@understood
def _own_addresses(folder: str) -> list[bytes]:
    trie = read(f"{folder}/fib_trie", MANY_BYTES) or ""
    lines = (read(f"{folder}/if_inet6", MANY_BYTES) or "").splitlines()
    return [
        *(ip_address(text).packed for text in _OWN_ADDRESS.findall(trie)),
        *(bytes.fromhex(line.split()[0]) for line in lines),
    ]


def _hexadecimal(end: Endpoint) -> str:
    """As in net/tcp: words of four bytes in the byte order of the machine, and the port."""
    words = struct.unpack(f"={len(end.address) // 4}I", end.address)
    return f"{''.join(f'{word:08X}' for word in words)}:{end.port:04X}"


@understood
def _connected(folder: str) -> _Connected:
    ends: _Connected = {}
    for table in ("tcp", "tcp6"):
        for line in (read(f"{folder}/{table}", MANY_BYTES) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > _INODE and fields[_INODE] != "0":
                local, remote = (fields[at].removeprefix(_MAPPED) for at in (_LOCAL, _REMOTE))
                ends[local, remote] = int(fields[_INODE])
    return ends
