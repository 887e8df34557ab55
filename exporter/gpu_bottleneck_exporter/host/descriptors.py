"""Open descriptors of a process, and queries of its sockets. Takes the permission to ptrace.

/proc names open files without access to them. Sockets are duplicated with pidfd_getfd (Linux 5.6),
on a helper thread, as to close a duplicate may block forever: sockets linger (SO_LINGER), and a
reused descriptor may be a file of a network file system.
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

from gpu_bottleneck_exporter.host.aside import proc_reads, socket_queries
from gpu_bottleneck_exporter.host.files import T, list_numbers, raise_if_file_limit

MAX_DESCRIPTOR_LINKS = 1024
"""Descriptors whose links are read per sample of a process: 4 µs each."""
_PIDFD_OPEN, _PIDFD_GETFD = 434, 438
"""Numbers of the system calls on every architecture."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
SocketQuery = Callable[[int, socket.socket], T | None]
"""Query of a descriptor's number and our duplicate."""


def link_of(folder: str, number: int | str) -> str | None:
    """The link in /proc/PID/fd; None if closed. Raises PermissionError."""
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
    """Whether it names a file of a file system, or a FIFO, not a device."""
    return link.startswith("/") and not link.startswith("/dev/")


def descriptors(proc: Path, pid: int) -> Iterable[tuple[int, str]]:
    """Open descriptors and links; none without the permission. Raises FileLimitError."""
    folder = f"{proc}/{pid}/fd"
    with contextlib.suppress(PermissionError):
        links = proc_reads.call(
            pid, lambda: links_of(folder, list_numbers(folder, MAX_DESCRIPTOR_LINKS))
        )
        return [(number, link) for number, link in (links or {}).items() if link is not None]
    return ()


def links_of(folder: str, numbers: Iterable[int]) -> dict[int, str | None]:
    """Links by descriptor."""
    return {number: link_of(folder, number) for number in numbers}


def fields(fdinfo: str) -> dict[str, str]:
    """The fields of a /proc/PID/fdinfo file."""
    pairs = (line.partition(":") for line in fdinfo.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def query_sockets(
    folder: str, pid: int, numbers: Iterable[int], query: SocketQuery[T]
) -> dict[int, T | None]:
    """Results of `query` by descriptor; None for other files, closed descriptors left out.

    `folder` is /proc/PID/fd, of our own PID namespace. Raises OSError, FileLimitError.
    """
    # All in one call, as each costs 0.1 ms; `numbers` may read /proc.
    answers = (
        socket_queries.call(pid, partial(_query_all, folder, pid, numbers, query))
        if numbers
        else {}
    )
    if answers is None:
        raise TimeoutError("closing a borrowed socket does not return")
    return answers


def _query_all(
    folder: str, pid: int, numbers: Iterable[int], query: SocketQuery[T]
) -> dict[int, T | None]:
    answers: dict[int, T | None] = {}
    with _pidfd(pid) as pidfd:
        if pidfd is None:
            return answers
        for number in numbers:
            link = link_of(folder, number)
            if link is not None:
                answers[number] = _query_one(pidfd, number, query) if is_socket(link) else None
    return answers


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int | None]:
    """A pidfd; None if the process has ended."""
    try:
        pidfd = open_pidfd(pid)
    except OSError:  # not a first thread: since Linux 6.9 (PIDFD_THREAD)
        pidfd = _call(_PIDFD_OPEN, pid, os.O_EXCL)
    try:
        yield pidfd
    finally:
        if pidfd is not None:
            os.close(pidfd)


def open_pidfd(pid: int) -> int | None:
    """A pidfd, readable after the end of the process; None if it has ended.

    Raises OSError, FileLimitError.
    """
    return _call(_PIDFD_OPEN, pid, 0)


def _query_one(pidfd: int, number: int, query: SocketQuery[T]) -> T | None:
    borrowed = _call(_PIDFD_GETFD, pidfd, number, 0)
    if borrowed is None:
        return None
    try:
        # Its blocking mode remains, as we set no default timeout.
        duplicate = socket.socket(fileno=borrowed)
    except OSError:  # of a family without names, or closed meanwhile
        os.close(borrowed)
        return None
    with duplicate:
        return query(number, duplicate)


def may_borrow(pid: int) -> bool | None:
    """Whether we may duplicate descriptors of a process; None if it has ended.

    Tried beyond fs.nr_open: permissions are checked first. Raises FileLimitError.
    """
    try:
        with _pidfd(pid) as pidfd:
            return None if pidfd is None else _call(_PIDFD_GETFD, pidfd, 2**31 - 1, 0) is None
    except OSError:
        return False


def _call(*arguments: int) -> int | None:
    """The descriptor from a system call, for Pythons without os.pidfd_open."""
    result: int = _libc.syscall(*arguments)
    if result >= 0:
        return result
    code = ctypes.get_errno()
    if code in {errno.EBADF, errno.ESRCH}:
        return None
    error = OSError(code, os.strerror(code))
    raise_if_file_limit(error)
    raise error
