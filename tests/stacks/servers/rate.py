"""Clients that ask the loop at a fixed rate: `... NAME REQUESTS_PER_SECOND MOST [PATH BODY]`.

Requests are due at equal intervals, whether earlier ones were answered or not; while `MOST` are
pending, the next one is late.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from stacks.loops.common import HOST, PORT
from stacks.servers.listen import announce

_PAUSE_SECONDS = 0.1
"""Between two attempts to connect."""


class _Schedule:
    """The times at which requests are due."""

    def __init__(self, rate: float) -> None:
        self._interval_seconds = 1 / rate
        self._due = 0.0

    async def next(self) -> None:
        """Wait for the next one; without a client for it, it is due when there is one."""
        now = time.monotonic()
        self._due = max(self._due + self._interval_seconds, now)
        await asyncio.sleep(self._due - now)


async def _client(request: bytes, schedule: _Schedule) -> None:
    """Ask when a request is due, on one connection."""
    reader, writer = await asyncio.open_connection(HOST, PORT)
    while True:
        await schedule.next()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length:")[2].split()
        await reader.readexactly(int(length[0]))


async def _again(request: bytes, schedule: _Schedule) -> None:
    """The same once the server is up, and again if it hangs up."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await _client(request, schedule)
        await asyncio.sleep(_PAUSE_SECONDS)


async def _clients(rate: float, most: int, request: bytes) -> None:
    schedule = _Schedule(rate)
    await asyncio.gather(*(_again(request, schedule) for _ in range(most)))


def main(name: str, rate: str, most: str, path: str = "/work", body: str = "") -> None:
    """Ask until killed."""
    announce(name, PORT)
    head = f"POST {path}" if body else f"GET {path}"
    content = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    request = f"{head} HTTP/1.1\r\nHost: {HOST}\r\n{content}\r\n{body}"
    asyncio.run(_clients(float(rate), int(most), request.encode()))
