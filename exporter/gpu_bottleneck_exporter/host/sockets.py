"""TCP connections of a process, by TCP_INFO of duplicated sockets."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.descriptors import (
    MAX_DESCRIPTOR_LINKS,
    is_file,
    is_socket,
    links_of,
    query_sockets,
)
from gpu_bottleneck_exporter.host.files import (
    MAX_CACHE_ENTRIES,
    MAX_LISTED,
    MAX_QUERIED_SOCKETS,
    list_names,
)
from gpu_bottleneck_exporter.host.process import living_thread
from gpu_bottleneck_exporter.host.rings import EVENTFD, RING

_ADDRESS_LAYOUTS = {socket.AF_INET: (16, slice(4, 8)), socket.AF_INET6: (28, slice(8, 24))}
"""Sizes of struct sockaddr_in and sockaddr_in6, and the address in them."""
_TCP_INFO = struct.Struct("=B3xB19xI16xI4xII60xQQI4xI4xII")
"""struct tcp_info (linux/tcp.h): state, backoff, unacked, last_data_sent, last_data_recv,
last_ack_recv, bytes_acked, bytes_received, segs_out, notsent_bytes, data_segs_in, data_segs_out."""
_MAX_LISTENERS = 8
"""Listening sockets queried per sample."""
_MAX_UDP_SOCKETS = 4
"""UDP sockets queried per sample, unless more are required."""
_ACTIVE_MS = 10_000
"""Maximum age of an active socket's last traffic: active ones are queried first."""


def is_here(address: IPv4Address | IPv6Address) -> bool:
    """Whether it is a loopback or unspecified address."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    plain = mapped or address
    return plain.is_loopback or plain.is_unspecified


class Endpoint(NamedTuple):
    """The address (4 or 16 bytes, empty if unknown) and port of one end."""

    address: bytes
    port: int

    @property
    def is_here(self) -> bool:
        """Whether it is loopback, unspecified or unknown."""
        return not self.address or is_here(ip_address(self.address))

    def __str__(self) -> str:
        if not self.address:
            return "an unknown address"
        address = ip_address(self.address)
        text = f"[{address}]" if isinstance(address, IPv6Address) else f"{address}"
        return f"{text}:{self.port}"


NO_ENDPOINT = Endpoint(b"", 0)
Ends = tuple[Endpoint, Endpoint]
"""Local and remote end."""


class TcpState:
    """The values of tcpi_state (net/tcp_states.h)."""

    DATAGRAMS = 0
    """UDP, a value of ours."""
    ESTABLISHED = 1
    SYN_SENT = 2
    FIN_WAIT1 = 4
    FIN_WAIT2 = 5
    CLOSE = 7
    CLOSE_WAIT = 8
    LISTEN = 10


class Connection(NamedTuple):
    """One socket of TCP or UDP; ages in ms, counters since it was opened."""

    fd: int
    cookie: int
    """Unique until reboot (SO_COOKIE)."""
    local: Endpoint
    remote: Endpoint
    state: int
    sent_ms: int
    """Time since data was sent."""
    received_ms: int
    """Time since data was received."""
    acknowledged_ms: int
    """Time since the last acknowledgement, with or without data."""
    received_bytes: int
    received_segments: int
    sent_segments: int
    unsent_bytes: int = 0
    """Bytes written and not sent, as the peer accepts none."""
    unacknowledged: int = 0
    """Segments sent and not acknowledged; if listening, clients not accepted yet."""
    acknowledged_bytes: int = 0
    """Bytes sent and acknowledged."""
    unread_bytes: int = 0
    """Memory of unread datagrams."""
    backoff: int = 0
    """Successive timeouts, each twice as long."""
    sent_acks: int = 0
    """Segments sent without data."""

    @property
    def connects(self) -> bool:
        """Whether it is one end of a TCP connection."""
        return self.state not in (TcpState.DATAGRAMS, TcpState.LISTEN)

    @property
    def listens(self) -> bool:
        """Whether it accepts clients."""
        return self.state == TcpState.LISTEN


class Sockets:
    """The TCP sockets of process `pid`."""

    def __init__(self, proc: Path, pid: int) -> None:
        """`proc`: of our own PID namespace, as for system calls."""
        self._proc = proc
        self._pid = self._thread = pid
        """Process, and thread to list."""
        self._folder = f"{proc}/{pid}/fd"
        self.complete = True
        """Whether the last `query` covered all sockets."""
        self.datagrams: set[int] = set()
        """Descriptors of UDP sockets."""
        self.rings: set[int] = set()
        """Descriptors of io_uring rings, as last checked; likewise `events`, `files`."""
        self.events: set[int] = set()
        self.files: set[int] = set()
        self._listening: set[int] = set()
        self._names: dict[int, tuple[Endpoint, Endpoint]] = {}
        self._is_tcp: dict[int, bool] = {}
        """Whether each descriptor is, or may be, a TCP socket."""
        self._active: set[int] = set()
        """Descriptors active when last queried."""
        self._turn = 0

    def recheck(self) -> None:
        """Check all descriptors at the next `query`, as numbers are reused."""
        self._is_tcp = {number: True for number, is_tcp in self._is_tcp.items() if is_tcp}

    def query(self, required: Collection[int] = ()) -> list[Connection]:
        """All TCP sockets and a few of UDP, at most `MAX_QUERIED_SOCKETS`.

        Of more: listening ones, `required` up to a quarter, then active ones and others, in turn,
        by halves. Raises OSError, FileLimitError.
        """
        try:
            names, listed_all = list_names(self._folder, MAX_LISTED)
        except PermissionError:
            raise
        except OSError:
            names, listed_all = [], True
        if not names:  # the thread has ended; another one is listed next time
            self._thread = living_thread(self._proc, self._pid)
            self._folder = f"{self._proc}/{self._thread}/fd"
        numbers = {int(name) for name in names}
        # Closed numbers may be reused.
        for number in self._is_tcp.keys() - numbers:
            del self._is_tcp[number]
        for kind in (
            self._active,
            self._listening,
            self.datagrams,
            self.rings,
            self.events,
            self.files,
        ):
            kind.intersection_update(numbers)
        new = [*numbers.difference(self._is_tcp, required)]
        chosen = (
            random.sample(new, MAX_DESCRIPTOR_LINKS) if len(new) > MAX_DESCRIPTOR_LINKS else new
        )
        checked: dict[int, bool] = {}

        def queried() -> Iterator[int]:  # one call reads links and queries sockets
            for number, link in links_of(self._folder, chosen).items():
                checked[number] = is_socket(link or "")
                self._classify(number, link or "")
            yield from self._choose(required, self._is_tcp | checked)

        answers: dict[int, Connection | None] = {}
        if chosen or required or self.datagrams or any(self._is_tcp.values()):
            answers = query_sockets(self._folder, self._thread, queried(), self._describe)
        self._is_tcp |= checked
        self.datagrams -= checked.keys()
        sockets = {number for number, is_tcp in self._is_tcp.items() if is_tcp}
        few = len(sockets.union(required)) <= MAX_QUERIED_SOCKETS
        self.complete = listed_all and few and len(new) <= MAX_DESCRIPTOR_LINKS
        return self._record(answers)

    @property
    def has_tcp(self) -> bool:
        """Whether it has TCP sockets, as last checked."""
        return any(self._is_tcp.values())

    def _classify(self, number: int, link: str) -> None:
        for kind, fits in (
            (self.rings, link == RING),
            (self.events, link == EVENTFD),
            (self.files, is_file(link)),
        ):
            (kind.add if fits else kind.discard)(number)

    def _choose(self, required: Collection[int], is_tcp: Mapping[int, bool]) -> list[int]:
        first = [
            *sorted(self._listening)[:_MAX_LISTENERS],
            *[*required][: MAX_QUERIED_SOCKETS // 4],
            *sorted(self.datagrams.difference(required))[:_MAX_UDP_SOCKETS],
        ]
        may_be_tcp = {number for number, may_be in is_tcp.items() if may_be}
        rest = sorted(may_be_tcp.union(required).difference(first))
        most = MAX_QUERIED_SOCKETS - len({*first})
        if len(rest) > most:
            active = [number for number in rest if number in self._active][: most // 2]
            others = [number for number in rest if number not in active]
            most -= len(active)
            start = self._turn % len(others)  # servers listen on low numbers
            self._turn = start + most
            rest = [*active, *(others + others)[start : start + most]]
        return [*dict.fromkeys((*first, *rest))]

    def query_descriptors(self, numbers: Sequence[int]) -> list[Connection]:
        """The sockets among descriptors `numbers`. Raises as `query`."""
        few = numbers[:MAX_QUERIED_SOCKETS]
        return self._record(query_sockets(self._folder, self._thread, few, self._describe))

    def _record(self, answers: Mapping[int, Connection | None]) -> list[Connection]:
        connections = [connection for connection in answers.values() if connection is not None]
        tcp = {each.fd for each in connections if each.state != TcpState.DATAGRAMS}
        self.datagrams -= answers.keys()
        self.datagrams |= {each.fd for each in connections} - tcp
        others = [number for number in answers.keys() - tcp if self._is_tcp.get(number)]
        self._is_tcp.update(dict.fromkeys(others, False))
        self._listening -= answers.keys()
        self._listening |= {each.fd for each in connections if each.listens}
        self._active -= answers.keys()
        ends = [each for each in connections if each.connects]
        self._active |= {
            each.fd for each in ends if min(each.sent_ms, each.received_ms) < _ACTIVE_MS
        }
        return connections

    def _describe(self, number: int, duplicate: socket.socket) -> Connection | None:
        try:
            info = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except OSError:
            return _datagrams(number, duplicate)
        if len(info) < _TCP_INFO.size:
            return None
        state, backoff, unacked, sent, received, heard, acked, *counters = _TCP_INFO.unpack(info)
        data, out_all, unsent, in_segments, out_segments = counters
        # SO_COOKIE (asm-generic/socket.h).
        cookie = int.from_bytes(duplicate.getsockopt(socket.SOL_SOCKET, 57, 8), sys.byteorder)
        names = self._names.get(cookie)
        if names is None:
            names = ends_of(number, duplicate)
            if len(self._names) >= MAX_CACHE_ENTRIES:
                self._names.clear()
            if state != TcpState.CLOSE:  # a closed one may still be bound or connected
                self._names[cookie] = names
        counts = data, in_segments, out_segments, unsent, unacked, acked
        others = 0, backoff, out_all - out_segments
        return Connection(number, cookie, *names, state, sent, received, heard, *counts, *others)


def _datagrams(number: int, duplicate: socket.socket) -> Connection | None:
    if duplicate.type != socket.SOCK_DGRAM or duplicate.family not in _ADDRESS_LAYOUTS:
        return None
    unread, reserved = 0, 1  # it may have received unseen ones
    with contextlib.suppress(OSError, struct.error):
        # SO_MEMINFO (linux/sock_diag.h): rmem_alloc, queued; fwd_alloc, reserved since the first
        # datagram.
        raw = duplicate.getsockopt(socket.SOL_SOCKET, 55, 20)
        unread, reserved = struct.unpack("=I12xI", raw)
    ends, received = ends_of(number, duplicate), unread + reserved
    return Connection(
        number, 0, *ends, TcpState.DATAGRAMS, 0, 0, 0, received, 0, 0, unread_bytes=unread
    )


def unix_peers(proc: Path, pid: int, numbers: Sequence[int]) -> dict[int, int]:
    """Pids at the other ends of UNIX sockets; none without permission. Raises FileLimitError."""
    with contextlib.suppress(OSError):
        peers = query_sockets(f"{proc}/{pid}/fd", pid, numbers, _unix_peer)
        return {number: peer for number, peer in peers.items() if peer}
    return {}


def _unix_peer(_number: int, duplicate: socket.socket) -> int:
    """Pid at the other end (SO_PEERCRED); else 0."""
    raw = duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # struct ucred
    return int.from_bytes(raw[:4], sys.byteorder, signed=True)


def ends_of(_number: int, duplicate: socket.socket) -> Ends:
    """Both ends of a TCP or UDP socket."""
    if duplicate.family not in _ADDRESS_LAYOUTS:
        return NO_ENDPOINT, NO_ENDPOINT
    address, port, *_ = duplicate.getsockname()
    local = _endpoint(socket.inet_pton(duplicate.family, address.partition("%")[0]), port)
    size, position = _ADDRESS_LAYOUTS[duplicate.family]
    try:  # SO_PEERNAME, as getpeername fails while the connection is being established
        raw = duplicate.getsockopt(socket.SOL_SOCKET, 28, size)
    except OSError:
        return local, NO_ENDPOINT
    return local, _endpoint(raw[position], int.from_bytes(raw[2:4], "big"))


def _endpoint(address: bytes, port: int) -> Endpoint:
    """The end, with an IPv4-mapped address as IPv4."""
    mapped = bytes(10) + b"\xff\xff"  # RFC 4291, 2.5.5.2
    return Endpoint(address[12:] if address.startswith(mapped) else address, port)


def same_pids(proc: Path) -> bool:
    """Whether `proc` has the pids of our own PID namespace."""
    try:
        return (proc / "self").readlink() == Path(str(os.getpid()))
    except OSError:
        return False
