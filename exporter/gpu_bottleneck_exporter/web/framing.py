"""Requests whose end can be determined in two ways."""

from __future__ import annotations

from gpu_bottleneck_exporter.web.answer import Application, Receive, Scope, Send, plain, respond

_CLOSE = (b"connection", b"close")


def one_length(application: Application) -> Application:
    """An ASGI application around another; refuses what has a length and an encoding.

    A proxy that believes one and a server that believes the other see different requests in
    what follows, so the connection is closed unread (RFC 9112, 6.1).
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if {name for name, _ in scope["headers"]} >= {b"content-length", b"transfer-encoding"}:
            sentence = "Content-Length and Transfer-Encoding exclude each other."
            await respond(scope, send, plain(400, sentence, _CLOSE))
        else:
            await application(scope, receive, send)

    return answer
