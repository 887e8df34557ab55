"""The TCP connections of a process, as the kernel sees them.

A descriptor is duplicated (pidfd_getfd, Linux 5.6), queried (TCP_INFO) and closed at once. That
changes nothing for the process and works across network namespaces. It takes the permission to
ptrace the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.files import check_room, listed
from gpu_bottleneck_exporter.host.loopback import is_here
from gpu_bottleneck_exporter.host.room import room

_PIDFD_OPEN, _PIDFD_GETFD = 434, 438
"""The same numbers on every architecture."""
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
    def connects(self) -> bool:
        """Whether it is one end of a TCP connection."""
        return self.state not in (TcpState.LISTEN, TcpState.DATAGRAMS)

    @property
    def listens(self) -> bool:
        """Whether it is a listening socket, which accepts clients."""
        return self.state == TcpState.LISTEN


class RefusedError(OSError):
    """We may not duplicate descriptors of this process, or the kernel cannot do it."""


class Sockets:
    """The TCP sockets of process `pid`."""

    def __init__(self, proc: Path, pid: int) -> None:
        """`proc`: the procfs of our own PID namespace, as system calls take the same `pid`."""
        self.pid = pid
        self.complete = True
        """Whether the last call of `all` covered all sockets."""
        self._folder = proc / str(pid) / "fd"
        self._pidfd: int | None = None
        self._keeps_pidfd = False
        self._names: dict[int, tuple[Endpoint, Endpoint]] = {}
        self._numbers: set[int] = set()
        self._others: set[int] = set()
        self._lively: set[int] = set()
        """Descriptors with traffic in the last `_LIVELY_MS`, as of when each was last queried."""
        self._turn = 0
        self._new_turn = 0

    def close(self) -> None:
        """Close the descriptor and forget what was found."""
        self._let_go()
        self._names.clear()
        self.forget()

    def _let_go(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if self._keeps_pidfd:
            self._keeps_pidfd = False
            room.give()

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
        # A number that was a socket's is likely to be reused for another socket: query it
        # without reading its link first.
        new = sorted(numbers - self._numbers, reverse=True)
        known = sorted(numbers & self._numbers)
        self._numbers &= numbers
        self._lively &= numbers
        for number in self._next(new):
            if self._is_socket(number):
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

    def of(self, numbers: tuple[int, ...] | list[int]) -> list[Connection]:
        """The TCP sockets among descriptors `numbers`. Raises RefusedError, NoRoomError."""
        found = []
        try:
            for number in numbers[:MOST_SOCKETS]:
                connection = self._ask(number)
                if connection is not None:
                    found.append(connection)
        finally:
            if not self._keeps_pidfd:
                self._let_go()
        for one in found:
            if min(one.sent_ms, one.received_ms) < _LIVELY_MS and not one.listens:
                self._lively.add(one.fd)
            else:
                self._lively.discard(one.fd)
        return found

    def _is_socket(self, number: int) -> bool:
        try:
            target = os.readlink(f"{self._folder}/{number}")  # noqa: PTH115 - see tree.py
            return target.startswith("socket:")
        except PermissionError as error:  # with CAP_DAC_READ_SEARCH alone they can only be listed
            raise RefusedError(str(error)) from error
        except OSError:
            return False

    def _ask(self, number: int) -> Connection | None:
        try:
            if self._pidfd is None:
                self._pidfd = pidfd_open(self.pid)
                self._keeps_pidfd = room.take()
        except ProcessLookupError:
            return None
        except OSError as error:
            raise RefusedError(str(error)) from error
        with borrowed(self._pidfd, number) as descriptor:
            return None if descriptor is None else self._describe(number, descriptor)

    def _describe(self, number: int, descriptor: int) -> Connection | None:
        size = _option(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO)
        if size < _ENOUGH_OF_INFO:
            if number in self._numbers:  # a socket, but not of TCP
                self._numbers.discard(number)
                self._others.add(number)
            return _datagrams(number, descriptor)
        state, sent, received, acked, data, unsent, came, went = _INFO.unpack_from(_room.buffer)
        cookie = _number(descriptor, _SO_COOKIE)
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
    if _number(descriptor, socket.SO_TYPE) != socket.SOCK_DGRAM:
        return None
    if _number(descriptor, socket.SO_DOMAIN) not in _FAMILIES:
        return None
    names = _name(descriptor, _libc.getsockname), _peer_name(descriptor)
    return Connection(number, 0, *names, TcpState.DATAGRAMS, 0, 0, 0, 0, 0, 0)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Room(threading.local):
    """Buffers for the kernel's answers: allocated once per thread, as calls run by the thousand."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(256)
        self.size = ctypes.c_uint32()
        self.pointer = ctypes.byref(self.size)


_room = _Room()


def pidfd_open(pid: int) -> int:
    """os.pidfd_open, missing in a Python built with old headers. Raises OSError, NoRoomError."""
    descriptor: int = _libc.syscall(_PIDFD_OPEN, pid, 0)
    if descriptor < 0:
        raise _last_error()
    return descriptor


@contextmanager
def borrowed(pidfd: int, number: int) -> Iterator[int | None]:
    """A duplicate of descriptor `number` of a process; None if that is not open.

    Raises RefusedError, NoRoomError.
    """
    descriptor: int = _libc.syscall(_PIDFD_GETFD, pidfd, number, 0)
    if descriptor < 0:
        error = _last_error()
        if error.errno not in (errno.EBADF, errno.ESRCH):
            raise RefusedError(error.strerror)
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _last_error() -> OSError:
    code = ctypes.get_errno()
    error = OSError(code, os.strerror(code))
    check_room(error)
    return error


def _option(descriptor: int, level: int, name: int) -> int:
    """Read a socket option into the buffer; returns its size in bytes, 0 if there is none."""
    _room.size.value = len(_room.buffer)
    failed = _libc.getsockopt(descriptor, level, name, _room.buffer, _room.pointer)
    return 0 if failed else _room.size.value


def _number(descriptor: int, name: int) -> int:
    """A socket option that is a whole number of 4 or 8 bytes; 0 if there is none."""
    size = _option(descriptor, socket.SOL_SOCKET, name)
    return int.from_bytes(_room.buffer.raw[:size], sys.byteorder)


def unix_peer(descriptor: int) -> int:
    """The pid that created the other end of a UNIX socket (SO_PEERCRED); 0 if there is none."""
    if _option(descriptor, socket.SOL_SOCKET, socket.SO_PEERCRED) != _CREDENTIALS.size:
        return 0
    peer: int = _CREDENTIALS.unpack_from(_room.buffer)[0]
    return peer


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
