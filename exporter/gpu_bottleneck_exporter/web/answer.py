"""Responses of the ASGI applications, and work that they run in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]
T = TypeVar("T")

PLAIN = "text/plain; charset=utf-8"
ARRIVAL = "arrival"
"""The key in a scope's "state" of the connection (`arrival.Arrival`)."""
_PIECE_BYTES = 64 * 1024
"""A body is written in pieces of this size, each after the client has taken the one before.

That bounds the copy that waits for a slow client.
"""
_ERRORS = 400


class Answer(NamedTuple):
    """One response before it is sent."""

    status: int
    content_type: str
    body: bytes
    headers: Headers = ()


async def respond(scope: Scope, send: Send, answer: Answer) -> None:
    """Send an answer, to HEAD without its body.

    Marks a connection that gets what it asked for as welcome: it may rest for longer.
    """
    arrival = scope.get("state", {}).get(ARRIVAL)
    if arrival is not None:
        arrival.welcome = answer.status < _ERRORS
    headers = [
        (b"content-type", answer.content_type.encode("latin-1")),
        (b"content-length", str(len(answer.body)).encode("ascii")),
        (b"x-content-type-options", b"nosniff"),
        *answer.headers,
    ]
    body = b"" if scope["method"] == "HEAD" else answer.body
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    for begin in range(0, len(body) or 1, _PIECE_BYTES):
        piece, more = body[begin : begin + _PIECE_BYTES], begin + _PIECE_BYTES < len(body)
        await send({"type": "http.response.body", "body": piece, "more_body": more})


def plain(status: int, sentence: str, *headers: tuple[bytes, bytes]) -> Answer:
    """A plain-text answer of one sentence."""
    return Answer(status, PLAIN, f"{sentence}\n".encode(), headers)


def header(scope: Scope, name: bytes) -> str:
    """A header's value, repeated ones joined with commas; "" if it is missing."""
    values = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
    return ", ".join(values)


async def in_thread(executor: ThreadPoolExecutor, receive: Receive, work: Callable[[], T]) -> T:
    """Run `work` in the executor; it leaves the queue if the client disconnects.

    Raises:
        asyncio.CancelledError: If the client disconnected or the server is stopping.
    """
    return await unless_gone(receive, asyncio.get_running_loop().run_in_executor(executor, work))


async def unless_gone(receive: Receive, job: asyncio.Future[T]) -> T:
    """The result of `job`, which is cancelled if the client disconnects.

    Raises:
        asyncio.CancelledError: If the client disconnected or the server is stopping.
    """
    watch = asyncio.create_task(_gone(receive))
    watch.add_done_callback(lambda _: job.cancel())
    try:
        return await job
    finally:
        watch.cancel()


async def _gone(receive: Receive) -> None:
    """Return when the client disconnects; discards the request body."""
    while (await receive())["type"] != "http.disconnect":
        pass
