"""Answers of the ASGI applications, and work for them in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
T = TypeVar("T")

PLAIN = "text/plain; charset=utf-8"
ARRIVAL = "arrival"
"""Of a scope's "state": the connection, `arrival.Arrival`."""
_PIECE_BYTES = 64 * 1024
"""Of a body, written once the client has taken the one before: a copy waits for each client."""
_ERRORS = 400


class Answer(NamedTuple):
    """One response before it is sent."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


async def respond(scope: Scope, send: Send, answer: Answer) -> None:
    """Sends an answer; to HEAD without its body.

    A connection that gets what it asked for is told so: it may rest for longer.
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


def plain(status: int, sentence: str) -> Answer:
    """A sentence as plain text."""
    return Answer(status, PLAIN, f"{sentence}\n".encode())


def header(scope: Scope, name: bytes) -> str:
    """A header's value, repeated ones joined as HTTP has it; "" when it is missing."""
    values = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
    return ", ".join(values)


async def in_thread(executor: ThreadPoolExecutor, receive: Receive, work: Callable[[], T]) -> T:
    """Runs `work` in the executor; a client that goes away takes its work off the queue.

    Raises:
        asyncio.CancelledError: If the client went away or the server is stopping.
    """
    return await unless_gone(receive, asyncio.get_running_loop().run_in_executor(executor, work))


async def unless_gone(receive: Receive, job: asyncio.Future[T]) -> T:
    """The result of `job`, which a client that goes away cancels.

    Raises:
        asyncio.CancelledError: If the client went away or the server is stopping.
    """
    watch = asyncio.create_task(_gone(receive))
    watch.add_done_callback(lambda _: job.cancel())
    try:
        return await job
    finally:
        watch.cancel()


async def _gone(receive: Receive) -> None:
    """Returns when the client has gone; reads and drops a request body on the way."""
    while (await receive())["type"] != "http.disconnect":
        pass
