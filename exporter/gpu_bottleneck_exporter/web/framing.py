"""Requests whose end can be told in two ways."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gpu_bottleneck_exporter.web.answer import Receive, Scope, Send, plain, respond

_CLOSE = (b"connection", b"close")


class OneLength:
    """An ASGI application around another; refuses what has a length and an encoding.

    Two programs in a row that believe different ones see different requests in what
    follows, so nothing that follows is read (RFC 9112, 6.1).
    """

    def __init__(self, application: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or lets the application do it."""
        if {name for name, _ in scope["headers"]} >= {b"content-length", b"transfer-encoding"}:
            refusal = plain(400, "Content-Length and Transfer-Encoding do not go together.")
            await respond(scope, send, refusal._replace(headers=(_CLOSE,)))
        else:
            await self._application(scope, receive, send)
