"""The TCP connections of a process, as the kernel sees them.

Each is borrowed and asked for its TCP_INFO: see `borrow`.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.borrow import RefusedError, ask, is_socket, link_of
from gpu_bottleneck_exporter.host.files import listed
from gpu_bottleneck_exporter.host.loopback import is_here

_SO_PEERNAME, _SO_COOKIE = 28, 57
_NAME_SIZES = (28, 16)
"""Sizes of struct sockaddr_in6 and struct sockaddr_in."""
_CREDENTIALS = struct.Struct("=iII")
_ENOUGH_OF_INFO = 160
_INFO = struct.Struct("=B43xI4xII68xQ8xI4xII")
"""Fields of struct tcp_info (linux/tcp.h): state, last_data_sent, last_data_recv, last_ack_recv,
bytes_received, notsent_bytes, data_segs_in, data_segs_out."""
_FAMILIES = frozenset({socket.AF_INET, socket.AF_INET6})
_MAPPED = bytes(10) + b"\xff\xff"
MOST_SOCKETS = 64
"""Sockets of a process that are queried per look."""
_KEPT_NAMES = 4 * MOST_SOCKETS
_MOST_LISTED = 4_096
"""Open files of a process that are listed: those with the lowest numbers."""
_LIVELY_MS = 10_000
"""Traffic within this time makes a socket one of those that are queried first."""


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
        family = socket.AF_INET if len(self.address) == 4 else socket.AF_INET6  # noqa: PLR2004
        text = socket.inet_ntop(family, self.address)
        return f"{text}:{self.port}" if family is socket.AF_INET else f"[{text}]:{self.port}"


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


@dataclass(frozen=True, slots=True)
class Connection:
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

    @property
    def is_tcp(self) -> bool:
        """Whether it is a socket of TCP."""
        return self.state != TcpState.DATAGRAMS

    @property
    def connects(self) -> bool:
        """Whether it is one end of a TCP connection."""
        return self.is_tcp and not self.listens

    @property
    def listens(self) -> bool:
        """Whether it is a listening socket, which accepts clients."""
        return self.state == TcpState.LISTEN


class Sockets:
    """The TCP sockets of process `pid`."""

    def __init__(self, proc: Path, pid: int) -> None:
        """`proc`: the procfs of our own PID namespace, as system calls take the same `pid`."""
        self.pid = pid
        self.complete = True
        """Whether the last call of `all` covered all sockets."""
        self._folder = f"{proc}/{pid}/fd"
        self._names: dict[int, tuple[Endpoint, Endpoint]] = {}
        self._numbers: set[int] = set()
        self._others: set[int] = set()
        self._lively: set[int] = set()
        """Descriptors with traffic in the last `_LIVELY_MS`, as of when each was last queried."""
        self._turn = 0
        self._new_turn = 0

    def forget(self) -> None:
        """Check all descriptors again next time: a number may have become a socket's."""
        self._others.clear()

    def all(self, surely: Collection[int] = ()) -> list[Connection]:
        """All TCP sockets, `MOST_SOCKETS` at most, those of descriptors `surely` first.

        Of more, up to half are those with recent traffic; the others take turns. A number that was
        not a socket's is not checked again until `forget`, unless it is in `surely`.
        Raises RefusedError, NoRoomError.
        """
        try:
            names, listed_all = listed(self._folder, _MOST_LISTED)
        except PermissionError as error:
            raise RefusedError(str(error)) from error
        except OSError:
            return []
        numbers = {int(name) for name in names}
        # Closed numbers are forgotten, as the next file with that number may be a socket.
        self._others &= numbers
        numbers -= self._others
        numbers.difference_update(surely)
        # A number that was a socket's is likely to be reused for another socket.
        new = sorted(numbers - self._numbers, reverse=True)
        known = sorted(numbers & self._numbers)
        self._numbers &= numbers
        self._lively &= numbers
        for number in self._next(new):
            if is_socket(link_of(self._folder, number) or ""):
                self._numbers.add(number)
                known.append(number)
            else:
                self._others.add(number)
        most = max(MOST_SOCKETS - len(surely), 0)
        self.complete = listed_all and len(known) <= most and len(new) <= _KEPT_NAMES
        if len(known) > most:
            known = self._in_turn(known, most)
        return self.of([*surely, *known])

    def _next(self, new: list[int]) -> list[int]:
        """Of too many, the highest numbers first, then the others in turn, even after `forget`."""
        if len(new) <= _KEPT_NAMES:
            return new
        start = self._new_turn % len(new)
        self._new_turn = start + _KEPT_NAMES
        return (new + new)[start : start + _KEPT_NAMES]

    def _in_turn(self, known: list[int], most: int) -> list[int]:
        lively = [number for number in known if number in self._lively][: most // 2]
        others = [number for number in known if number not in lively]
        most -= len(lively)
        self._turn = (self._turn + most) % len(others)
        return [*lively, *(others + others)[self._turn : self._turn + most]]

    def of(self, numbers: Sequence[int]) -> list[Connection]:
        """The TCP sockets among descriptors `numbers`. Raises RefusedError, NoRoomError."""
        answers = ask(self._folder, self.pid, numbers[:MOST_SOCKETS], self._describe)
        # No sockets, or not of TCP.
        others = {number for number, one in answers.items() if not (one and one.is_tcp)}
        others &= self._numbers
        self._numbers -= others
        self._others |= others
        found = [one for one in answers.values() if one is not None]
        for one in found:
            if min(one.sent_ms, one.received_ms) < _LIVELY_MS and not one.listens:
                self._lively.add(one.fd)
            else:
                self._lively.discard(one.fd)
        return found

    def _describe(self, number: int, descriptor: int) -> Connection | None:
        size = _option(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO)
        if size < _ENOUGH_OF_INFO:
            return _datagrams(number, descriptor)
        state, sent, received, acked, data, unsent, came, went = _INFO.unpack_from(_room.buffer)
        cookie = _whole_number(descriptor, _SO_COOKIE)
        names = self._names.get(cookie)
        if names is None:
            names = _name(descriptor, _libc.getsockname), _peer_name(descriptor)
            if len(self._names) >= _KEPT_NAMES:
                self._names.clear()
            if state != TcpState.CLOSE:  # a closed one may still be bound or connected
                self._names[cookie] = names
        ages = sent, received, acked
        return Connection(number, cookie, *names, state, *ages, data, came, went, unsent)


def _datagrams(number: int, descriptor: int) -> Connection | None:
    """A socket of UDP; None if it is another one."""
    if _whole_number(descriptor, socket.SO_TYPE) != socket.SOCK_DGRAM:
        return None
    if _whole_number(descriptor, socket.SO_DOMAIN) not in _FAMILIES:
        return None
    names = _name(descriptor, _libc.getsockname), _peer_name(descriptor)
    return Connection(number, 0, *names, TcpState.DATAGRAMS, 0, 0, 0, 0, 0, 0)


_libc = ctypes.CDLL(None)


class _Room(threading.local):
    """Buffers for the kernel's answers: allocated once per thread, as calls run by the thousand."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(256)
        self.size = ctypes.c_uint32()
        self.pointer = ctypes.byref(self.size)


_room = _Room()


def _option(descriptor: int, level: int, name: int) -> int:
    """Read a socket option into the buffer; returns its size in bytes, 0 if there is none."""
    _room.size.value = len(_room.buffer)
    failed = _libc.getsockopt(descriptor, level, name, _room.buffer, _room.pointer)
    return 0 if failed else _room.size.value


def _whole_number(descriptor: int, name: int) -> int:
    """A socket option that is a whole number of 4 or 8 bytes; 0 if there is none."""
    size = _option(descriptor, socket.SOL_SOCKET, name)
    return int.from_bytes(_room.buffer.raw[:size], sys.byteorder)


def unix_peer(_number: int, descriptor: int) -> int:
    """The pid that created the other end of a UNIX socket (SO_PEERCRED); 0 if there is none."""
    if _option(descriptor, socket.SOL_SOCKET, socket.SO_PEERCRED) != _CREDENTIALS.size:
        return 0
    peer: int = _CREDENTIALS.unpack_from(_room.buffer)[0]
    return peer


def ends_of(_number: int, descriptor: int) -> Ends:
    """The local and the remote end of a TCP socket."""
    return _name(descriptor, _libc.getsockname), _peer_name(descriptor)


def _peer_name(descriptor: int) -> Endpoint:
    """Like getpeername, but also works while the connection is being established."""
    for size in _NAME_SIZES:
        _room.size.value = size
        if not _libc.getsockopt(
            descriptor, socket.SOL_SOCKET, _SO_PEERNAME, _room.buffer, _room.pointer
        ):
            return _endpoint(_room.buffer.raw[:size])
    return Endpoint(b"", 0)


def _name(descriptor: int, call: ctypes._NamedFuncPointer) -> Endpoint:
    _room.size.value = len(_room.buffer)
    if call(descriptor, _room.buffer, _room.pointer):
        return Endpoint(b"", 0)
    return _endpoint(_room.buffer.raw[: _room.size.value])


def _endpoint(raw: bytes) -> Endpoint:
    """The endpoint in a struct sockaddr; IPv4-mapped addresses become IPv4 ones."""
    (family,) = struct.unpack_from("=H", raw)
    if family not in _FAMILIES:
        return Endpoint(b"", 0)
    port = int.from_bytes(raw[2:4], "big")
    if family == socket.AF_INET:
        return Endpoint(raw[4:8], port)
    address = raw[8:24]
    return Endpoint(address[12:] if address.startswith(_MAPPED) else address, port)


def same_pids(proc: Path) -> bool:
    """Whether the pids in `proc` are those of our own PID namespace, as system calls take them."""
    try:
        return (proc / "self").readlink() == Path(str(os.getpid()))
    except OSError:
        return False
