"""What a process has open, and its sockets, borrowed to be asked. Takes the permission to ptrace.

/proc/PID/fd and /proc/PID/fdinfo name what is open without asking any file.

A socket is duplicated, asked and given back at once: pidfd_getfd (Linux 5.6) works across network
namespaces. The duplicate shares the process's open socket; only its own number is closed. Closing
may take for ever: a file of a network file system or FUSE is flushed, and the last close of a
socket lingers if its owner wants it to (SO_LINGER). So only what /proc shows as a socket is
borrowed, and as a number may change hands after that, all is done by a separate thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpu_bottleneck_exporter.host.aside import lending, proc_reads
from gpu_bottleneck_exporter.host.files import check_room, numbered

MOST_LINKS = 1024
"""Descriptors of a process whose links are read at a look: 4 µs each."""
_PIDFD_OPEN, _PIDFD_GETFD = 434, 438
"""The same numbers on every architecture."""
_PIDFD_THREAD = os.O_EXCL
_NO_DESCRIPTOR = 2**31 - 1
"""No process can have a descriptor of this number (fs.nr_open)."""
_NOT_THERE = frozenset({errno.EBADF, errno.ESRCH})
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
T = TypeVar("T")
Question = Callable[[int, socket.socket], T | None]
"""To a duplicate of the descriptor of this number."""


def link_of(folder: str, number: int | str) -> str | None:
    """What descriptor `number` is, as /proc/PID/fd names it; None if it is not open.

    The kernel writes this text without asking any file system. Raises PermissionError.
    """
    try:
        return os.readlink(f"{folder}/{number}")  # noqa: PTH115 - half the time
    except PermissionError:  # with CAP_DAC_READ_SEARCH alone they can only be listed
        raise
    except OSError:
        return None


def is_socket(link: str) -> bool:
    """Whether a link in /proc/PID/fd names a socket."""
    return link.startswith("socket:[")


def is_file(link: str) -> bool:
    """Whether it names a file of a file system, or a FIFO; devices are none."""
    return link.startswith("/") and not link.startswith("/dev/")


def descriptors(proc: Path, pid: int) -> Iterable[tuple[int, str]]:
    """Numbers and links of what is open; none without the permission. Raises NoRoomError."""
    folder = f"{proc}/{pid}/fd"
    with contextlib.suppress(PermissionError):
        found = proc_reads.call(pid, lambda: links_of(folder, numbered(folder, MOST_LINKS)))
        return [(number, link) for number, link in (found or {}).items() if link is not None]
    return ()


def links_of(folder: str, numbers: Iterable[int]) -> dict[int, str | None]:
    """What each descriptor is, as `link_of`."""
    return {number: link_of(folder, number) for number in numbers}


def fields(fdinfo: str) -> dict[str, str]:
    """The fields of a /proc/PID/fdinfo file, such as `mnt_id`."""
    pairs = (line.partition(":") for line in fdinfo.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def ask(folder: str, pid: int, numbers: Iterable[int], what: Question[T]) -> dict[int, T | None]:
    """Answers of `what` by number, given the number of each socket and our duplicate of it.

    `folder` is /proc/PID/fd, of our own PID namespace. What is open but no socket is None; what
    is not open is left out. Raises OSError if we may not ask, NoRoomError.
    """
    # All at once, as each call costs 0.1 ms; `numbers` may be read from /proc on the way.
    found = lending.call(pid, partial(_ask, folder, pid, numbers, what)) if numbers else {}
    if found is None:
        raise TimeoutError("it does not take back what was borrowed")
    return found


def _ask(folder: str, pid: int, numbers: Iterable[int], what: Question[T]) -> dict[int, T | None]:
    found: dict[int, T | None] = {}
    with _pidfd(pid) as pidfd:
        if pidfd is None:
            return found
        for number in numbers:
            link = link_of(folder, number)
            if link is not None:
                found[number] = _ask_one(pidfd, number, what) if is_socket(link) else None
    return found


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int | None]:
    """A descriptor of the process itself; None if it has ended. Raises as `ask`."""
    try:
        pidfd = open_pidfd(pid)
    except OSError:  # a thread that is not the first: since Linux 6.9
        pidfd = _call(_PIDFD_OPEN, pid, _PIDFD_THREAD)
    try:
        yield pidfd
    finally:
        if pidfd is not None:
            os.close(pidfd)


def open_pidfd(pid: int) -> int | None:
    """A descriptor of a process, readable once it has ended; None if it has. Close it.

    Raises OSError or NoRoomError.
    """
    return _call(_PIDFD_OPEN, pid, 0)


def _ask_one(pidfd: int, number: int, what: Question[T]) -> T | None:
    borrowed = _call(_PIDFD_GETFD, pidfd, number, 0)
    if borrowed is None:
        return None
    try:
        # It stays as blocking as it is: we set no default timeout.
        one = socket.socket(fileno=borrowed)
    except OSError:  # of a family without names, or no socket any more
        os.close(borrowed)
        return None
    with one:
        return what(number, one)


def may_borrow(pid: int) -> bool | None:
    """Whether we may duplicate descriptors of a process; None if it has ended.

    Tried with a number that is not open: the kernel checks permissions first. Raises NoRoomError.
    """
    try:
        with _pidfd(pid) as pidfd:
            return None if pidfd is None else _call(_PIDFD_GETFD, pidfd, _NO_DESCRIPTOR, 0) is None
    except OSError:
        return False


def _call(*arguments: int) -> int | None:
    """The descriptor that a system call returns; None if the process or its descriptor is gone.

    Not os.pidfd_open, which some Pythons lack. Raises as `ask`.
    """
    result: int = _libc.syscall(*arguments)
    if result >= 0:
        return result
    code = ctypes.get_errno()
    if code in _NOT_THERE:
        return None
    error = OSError(code, os.strerror(code))
    check_room(error)
    raise error
