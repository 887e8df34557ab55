"""Batches by io_uring, kernel AIO and datagrams: loops of `scenarios.loops`.

Python has none of the system calls: who stages the loops has built the library of
`support.asynchronous` in their folder before, as a loop that holds a GPU while it compiles is
another kind of wait.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from fake_nvml.build import SONAME
from stacks.loops.common import FOLDER, HOST, MEBIBYTE, Load, awaited, port
from stacks.loops.sockets import connected
from stacks.servers.sockets import REPLY, REQUEST
from support.asynchronous import Wait

_PAUSE_MS = 120
_ANSWERS = 6
"""They take as long."""


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(f"{FOLDER / SONAME}")


def _ring(wait: Wait, *, poller: bool = False) -> ctypes.CDLL:
    """The functions of a ring that was opened; `poller`: with a thread of the kernel (SQPOLL)."""
    calls = _library()
    if error := calls.ring_open(poller, wait):
        raise OSError(-error, "io_uring_setup")
    return calls


def _reads(data: Path, read: Callable[..., int], wait: Wait) -> Load:
    """Reads a mebibyte at a random place, bypassing the page cache."""
    file = os.open(data, os.O_RDONLY | os.O_DIRECT)
    room = (ctypes.c_char * MEBIBYTE).from_buffer(mmap.mmap(-1, MEBIBYTE))
    places, draw = os.fstat(file).st_size // MEBIBYTE, random.Random(0)  # noqa: S311 - no secret

    def load() -> None:
        offset = ctypes.c_uint64(draw.randrange(places) * MEBIBYTE)
        size = read(file, ctypes.byref(room), MEBIBYTE, offset, wait)
        assert size == MEBIBYTE, size

    return load


def ring_reads(data: Path, wait: Wait = Wait.IN_CALL, *, poller: bool = False) -> Load:
    """A batch is read from the disk through a ring; a connection is open, and idle."""
    load = _reads(data, _ring(wait, poller=poller).ring_read, wait)
    return partial(_with_idle_connection, connected("server"), load)


def _with_idle_connection(_connection: object, load: Load) -> None:
    load()


def ring_receives(data: Path, wait: Wait = Wait.IN_CALL, *, poller: bool = False) -> Load:
    """A batch is received through a ring; the data set is open, and not read."""
    ring, connection, file = _ring(wait, poller=poller), connected("server"), data.open("rb")
    room = ctypes.create_string_buffer(REPLY)

    def load() -> None:
        assert not file.closed
        for _ in range(_ANSWERS):
            connection.sendall(bytes(REQUEST))
            size = REPLY
            while size:
                received = ring.ring_receive(connection.fileno(), room, size, wait)
                assert received > 0
                size -= received

    return load


def ring_pauses(_data: Path, wait: Wait = Wait.IN_CALL) -> Load:
    """The ring has a timer in flight, and nothing else."""
    return partial(_ring(wait).ring_pause, _PAUSE_MS, wait)


def aio_reads(data: Path, wait: Wait = Wait.IN_CALL) -> Load:
    """A batch is read from the disk through kernel AIO."""
    calls = _library()
    assert calls.aio_open(wait) == 0
    return _reads(data, calls.aio_read, wait)


def aio_pauses(data: Path) -> Load:
    """Waits in io_getevents with nothing in flight, as a database's reader does between queries."""
    calls, file = _library(), data.open("rb")
    assert calls.aio_open(Wait.IN_CALL) == 0

    def load() -> None:
        assert not file.closed
        calls.aio_pause(_PAUSE_MS)

    return load


def datagrams(_data: Path, *, fed: bool) -> Load:
    """An event loop with one UDP socket: a batch is what it is sent, or the end of a timer."""
    batches: asyncio.Queue[bytes] = asyncio.Queue()

    class Protocol(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, _address: object) -> None:
            batches.put_nowait(data)

    async def start() -> Callable[[], Awaitable[object]]:
        loop = asyncio.get_running_loop()
        if fed:
            to = HOST, port("datagrams")
            end, _ = await loop.create_datagram_endpoint(Protocol, local_addr=("0.0.0.0", 0))  # noqa: S104
            end.sendto(bytes(REQUEST), to)
            return batches.get
        end, _ = await loop.create_datagram_endpoint(Protocol, local_addr=(HOST, 0))
        return partial(asyncio.sleep, _PAUSE_MS / 1000, end)

    return awaited(start)


_SUFFIXES = {Wait.IN_CALL: "", Wait.ON_EVENTFD: "_eventfd", Wait.IN_EPOLL: "_epoll"}
LOADS: dict[str, Callable[[Path], Load]] = {
    **{f"ring_reads{of}": partial(ring_reads, wait=wait) for wait, of in _SUFFIXES.items()},
    **{f"ring_receives{of}": partial(ring_receives, wait=wait) for wait, of in _SUFFIXES.items()},
    **{f"ring_pauses{of}": partial(ring_pauses, wait=wait) for wait, of in _SUFFIXES.items()},
    "ring_reads_polled": partial(ring_reads, poller=True),
    "ring_receives_polled": partial(ring_receives, poller=True),
    "aio_reads": aio_reads,
    "aio_reads_eventfd": partial(aio_reads, wait=Wait.ON_EVENTFD),
    "aio_pauses": aio_pauses,
    "datagrams_fed": partial(datagrams, fed=True),
    "datagrams_paused": partial(datagrams, fed=False),
}
