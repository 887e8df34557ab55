"""The TCP connections of a process, as the kernel sees them.

Each is borrowed and asked for its TCP_INFO: see `borrow`.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.descriptors import (
    MOST_LINKS,
    ask,
    is_file,
    is_socket,
    links_of,
)
from gpu_bottleneck_exporter.host.files import MOST_LISTED, MOST_REMEMBERED, MOST_SOCKETS, listed
from gpu_bottleneck_exporter.host.process import living_thread
from gpu_bottleneck_exporter.host.rings import EVENT, RING

_SO_PEERNAME, _SO_MEMINFO, _SO_COOKIE = 28, 55, 57
"""asm-generic/socket.h: Python has no names for them."""
_PEER_NAMES = {socket.AF_INET: (16, slice(4, 8)), socket.AF_INET6: (28, slice(8, 24))}
"""Sizes of struct sockaddr_in and struct sockaddr_in6, and where the address is."""
_COOKIE = struct.Struct("=Q")
_MEMORY = struct.Struct("=I12xI")
"""Of SO_MEMINFO (linux/sock_diag.h): rmem_alloc, queued; fwd_alloc, reserved since a datagram came
for the first time (Linux 4.10; tried)."""
_CREDENTIALS = struct.Struct("=iII")
"""struct ucred: pid, uid, gid."""
_INFO = struct.Struct("=B23xI16xI4xII60xQQ8xI4xII")
"""Fields of struct tcp_info (linux/tcp.h): state, unacked, last_data_sent, last_data_recv,
last_ack_recv, bytes_acked, bytes_received, notsent_bytes, data_segs_in, data_segs_out."""
_MAPPED = bytes(10) + b"\xff\xff"
"""How an IPv6 address begins that stands for an IPv4 one (RFC 4291, 2.5.5.2)."""
_MOST_UDP = 4
"""UDP sockets of a process that are queried per look, unless more are asked for."""
_LIVELY_MS = 10_000
"""Traffic within this time makes a socket one of those that are queried first."""


def is_here(address: IPv4Address | IPv6Address) -> bool:
    """Whether it is a loopback or unspecified address, which every machine has."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    found = mapped or address
    return found.is_loopback or found.is_unspecified


class Endpoint(NamedTuple):
    """Address (4 or 16 bytes, empty if unknown) and port of one end of a connection."""

    address: bytes
    port: int

    @property
    def is_here(self) -> bool:
        """Whether it means the network namespace itself: loopback, unspecified or unknown."""
        return not self.address or is_here(ip_address(self.address))

    def __str__(self) -> str:
        if not self.address:
            return "an unknown address"
        address = ip_address(self.address)
        text = f"[{address}]" if isinstance(address, IPv6Address) else f"{address}"
        return f"{text}:{self.port}"


_UNKNOWN = Endpoint(b"", 0)
Ends = tuple[Endpoint, Endpoint]
"""The local and the remote end of a connection."""


class TcpState:
    """Values of tcpi_state (net/tcp_states.h)."""

    DATAGRAMS = 0
    """Ours: a socket of UDP, which has no state, ages or counters."""
    ESTABLISHED = 1
    SYN_SENT = 2
    FIN_WAIT1 = 4
    FIN_WAIT2 = 5
    CLOSE = 7
    LISTEN = 10


class Connection(NamedTuple):
    """One socket at one moment, mostly of TCP; ages in ms, counters since it was opened."""

    fd: int
    cookie: int
    """Identifies the socket until the machine reboots (SO_COOKIE)."""
    local: Endpoint
    remote: Endpoint
    state: int
    sent_ms: int
    """Time since data was last sent."""
    received_ms: int
    """Time since data was last received."""
    acknowledged_ms: int
    """Time since the other side last sent an acknowledgement, with or without data."""
    received_bytes: int
    received_segments: int
    sent_segments: int
    unsent_bytes: int = 0
    """Written, but not sent: the other side, or the network, takes no more for now."""
    unacknowledged: int = 0
    """Segments sent that the other side has not acknowledged; of a socket that listens, clients
    that were not accepted yet."""
    acknowledged_bytes: int = 0
    """Bytes sent that the other side has acknowledged."""
    unread_bytes: int = 0
    """Memory of datagrams that were received and not read yet; of UDP only."""

    @property
    def connects(self) -> bool:
        """Whether it is one end of a TCP connection."""
        return self.state not in (TcpState.DATAGRAMS, TcpState.LISTEN)

    @property
    def listens(self) -> bool:
        """Whether it is a listening socket, which accepts clients."""
        return self.state == TcpState.LISTEN


class Sockets:
    """The TCP sockets of process `pid`."""

    def __init__(self, proc: Path, pid: int) -> None:
        """`proc`: the procfs of our own PID namespace, as system calls take the same `pid`."""
        self._proc = proc
        self._pid = self._thread = pid
        """The process, and the thread whose descriptors are listed."""
        self._folder = f"{proc}/{pid}/fd"
        self.complete = True
        """Whether the last call of `all` covered all sockets."""
        self.datagrams: set[int] = set()
        """Descriptors of UDP sockets."""
        self.rings: set[int] = set()
        """Descriptors of io_uring rings, as of when each was last checked."""
        self.events: set[int] = set()
        """The same of eventfds."""
        self.files: set[int] = set()
        """The same of files."""
        self._names: dict[int, tuple[Endpoint, Endpoint]] = {}
        self._is_tcp: dict[int, bool] = {}
        """By descriptor, whether it is a TCP socket; one that was not checked may be."""
        self._lively: set[int] = set()
        """Descriptors with traffic in the last `_LIVELY_MS`, as of when each was last queried."""
        self._turn = 0

    def forget(self) -> None:
        """Check all descriptors again next time: a number may have become a socket's."""
        self._is_tcp = {number: True for number, is_tcp in self._is_tcp.items() if is_tcp}

    def all(self, surely: Collection[int] = ()) -> list[Connection]:
        """All TCP sockets and a few of UDP, `MOST_SOCKETS` at most, those of `surely` first.

        Of more, up to half are those with recent traffic; the others take turns. A number that was
        not a socket's is not checked again until `forget`, unless it is in `surely`.
        Raises OSError if we may not ask, NoRoomError.
        """
        try:
            names, listed_all = listed(self._folder, MOST_LISTED)
        except PermissionError:
            raise
        except OSError:
            names, listed_all = [], True
        if not names:  # the thread has ended; those of another one are listed next time
            self._thread = living_thread(self._proc, self._pid)
            self._folder = f"{self._proc}/{self._thread}/fd"
        numbers = {int(name) for name in names}
        # Closed numbers are forgotten, as the next file with that number may be a socket.
        for number in self._is_tcp.keys() - numbers:
            del self._is_tcp[number]
        for some in (self._lively, self.datagrams, self.rings, self.events, self.files):
            some.intersection_update(numbers)
        new = [*numbers.difference(self._is_tcp, surely)]
        chosen = random.sample(new, MOST_LINKS) if len(new) > MOST_LINKS else new
        checked: dict[int, bool] = {}

        def queried() -> Iterator[int]:  # runs where they are queried: one call for both
            for number, link in links_of(self._folder, chosen).items():
                checked[number] = is_socket(link or "")
                self._sort(number, link or "")
            yield from self._in_turn(surely, self._is_tcp | checked)

        answers: dict[int, Connection | None] = {}
        if chosen or surely or self.datagrams or any(self._is_tcp.values()):
            answers = ask(self._folder, self._thread, queried(), self._describe)
        self._is_tcp |= checked
        self.datagrams -= checked.keys()
        sockets = {number for number, is_tcp in self._is_tcp.items() if is_tcp}
        few = len(sockets.union(surely)) <= MOST_SOCKETS
        self.complete = listed_all and few and len(new) <= MOST_LINKS
        return self._tcp_among(answers)

    @property
    def has_tcp(self) -> bool:
        """Whether it has TCP sockets, as of when each was last checked."""
        return any(self._is_tcp.values())

    def _sort(self, number: int, link: str) -> None:
        for some, fits in (
            (self.rings, link == RING),
            (self.events, link == EVENT),
            (self.files, is_file(link)),
        ):
            (some.add if fits else some.discard)(number)

    def _in_turn(self, surely: Collection[int], is_tcp: Mapping[int, bool]) -> list[int]:
        surely = [*surely, *sorted(self.datagrams.difference(surely))[:_MOST_UDP]]
        known = sorted({number for number, may_be in is_tcp.items() if may_be} - {*surely})
        most = max(MOST_SOCKETS - len(surely), 0)
        if len(known) > most:
            lively = [number for number in known if number in self._lively][: most // 2]
            others = [number for number in known if number not in lively]
            most -= len(lively)
            self._turn = (self._turn + most) % len(others)
            known = [*lively, *(others + others)[self._turn : self._turn + most]]
        return [*surely, *known][:MOST_SOCKETS]

    def of(self, numbers: Sequence[int]) -> list[Connection]:
        """The TCP sockets among descriptors `numbers`. Raises as `all`."""
        few = numbers[:MOST_SOCKETS]
        return self._tcp_among(ask(self._folder, self._thread, few, self._describe))

    def _tcp_among(self, answers: Mapping[int, Connection | None]) -> list[Connection]:
        found = [one for one in answers.values() if one is not None]
        tcp = {one.fd for one in found if one.state != TcpState.DATAGRAMS}
        self.datagrams -= answers.keys()
        self.datagrams |= {one.fd for one in found} - tcp
        others = [number for number in answers.keys() - tcp if self._is_tcp.get(number)]
        self._is_tcp.update(dict.fromkeys(others, False))
        self._lively -= answers.keys()
        latest = {one.fd: min(one.sent_ms, one.received_ms) for one in found if one.connects}
        self._lively |= {number for number, ms in latest.items() if ms < _LIVELY_MS}
        return found

    def _describe(self, number: int, one: socket.socket) -> Connection | None:
        try:
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        except OSError:
            return _datagrams(number, one)
        if len(info) < _INFO.size:
            return None
        state, flying, sent, received, heard, acked, data, unsent, came, went = _INFO.unpack(info)
        (cookie,) = _COOKIE.unpack(one.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, _COOKIE.size))
        names = self._names.get(cookie)
        if names is None:
            names = ends_of(number, one)
            if len(self._names) >= MOST_REMEMBERED:
                self._names.clear()
            if state != TcpState.CLOSE:  # a closed one may still be bound or connected
                self._names[cookie] = names
        counts = data, came, went, unsent, flying, acked
        return Connection(number, cookie, *names, state, sent, received, heard, *counts)


def _datagrams(number: int, one: socket.socket) -> Connection | None:
    """A socket of UDP; None if it is another one."""
    if one.type != socket.SOCK_DGRAM or one.family not in _PEER_NAMES:
        return None
    unread, reserved = 0, 1  # where the kernel does not show it, it may have received some
    with contextlib.suppress(OSError, struct.error):
        raw = one.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMORY.size)
        unread, reserved = _MEMORY.unpack(raw)
    ends, received = ends_of(number, one), unread + reserved
    return Connection(
        number, 0, *ends, TcpState.DATAGRAMS, 0, 0, 0, received, 0, 0, unread_bytes=unread
    )


def unix_peers(proc: Path, pid: int, numbers: Sequence[int]) -> dict[int, int]:
    """Pids that created the other end of those `numbers` that are connected UNIX sockets.

    None without the permission. Raises NoRoomError.
    """
    with contextlib.suppress(OSError):
        peers = ask(f"{proc}/{pid}/fd", pid, numbers, _unix_peer)
        return {number: peer for number, peer in peers.items() if peer}
    return {}


def _unix_peer(_number: int, one: socket.socket) -> int:
    """The pid that created the other end of a UNIX socket (SO_PEERCRED); 0 if there is none."""
    raw = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[0])


def ends_of(_number: int, one: socket.socket) -> Ends:
    """The local and the remote end of a socket of TCP or UDP."""
    if one.family not in _PEER_NAMES:
        return _UNKNOWN, _UNKNOWN
    address, port, *_ = one.getsockname()
    local = _endpoint(socket.inet_pton(one.family, address.partition("%")[0]), port)
    size, where = _PEER_NAMES[one.family]
    try:  # not getpeername, which fails while the connection is being established
        raw = one.getsockopt(socket.SOL_SOCKET, _SO_PEERNAME, size)
    except OSError:
        return local, _UNKNOWN
    return local, _endpoint(raw[where], int.from_bytes(raw[2:4], "big"))


def _endpoint(address: bytes, port: int) -> Endpoint:
    """IPv4-mapped addresses become IPv4 ones."""
    return Endpoint(address[12:] if address.startswith(_MAPPED) else address, port)


def same_pids(proc: Path) -> bool:
    """Whether the pids in `proc` are those of our own PID namespace, as system calls take them."""
    try:
        return (proc / "self").readlink() == Path(str(os.getpid()))
    except OSError:
        return False
