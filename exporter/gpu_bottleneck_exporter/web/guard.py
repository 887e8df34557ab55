"""The web configuration around the pages: users, and headers for every response."""

from __future__ import annotations

import asyncio

from gpu_bottleneck_exporter.web.answer import (
    ARRIVAL,
    Answer,
    Application,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    header,
    plain,
    respond,
)
from gpu_bottleneck_exporter.web.users import Logins, Users, credentials
from gpu_bottleneck_exporter.web.watch import WebConfigWatch

_CHALLENGE = (b"www-authenticate", b'Basic realm="gpu-bottleneck-exporter", charset="UTF-8"')


class Guard:
    """ASGI middleware; `close` ends its thread.

    Every path requires a password, the health pages too, as with exporter-toolkit.
    """

    def __init__(self, application: Application, watch: WebConfigWatch) -> None:
        self._application = application
        self._watch = watch
        self._logins = Logins()

    def close(self) -> None:
        """End the thread."""
        self._logins.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it to the application."""
        config = (await self._watch.fresh()).config
        if config.headers:
            send = _adding(config.headers, send)
        refusal = await self._refusal(config.users, scope, receive) if config.users else None
        if refusal is not None:
            await respond(scope, send, refusal)
        else:
            await self._application(scope, receive, send)

    async def _refusal(self, users: Users, scope: Scope, receive: Receive) -> Answer | None:
        said = credentials(header(scope, b"authorization"))
        try:
            if said is not None and await self._logins.right(
                users, said, scope["state"][ARRIVAL].address, receive
            ):
                return None
        except asyncio.CancelledError:
            return plain(503, "The exporter is stopping.")
        return plain(401, "This page requires a user and a password.", _CHALLENGE)


def _adding(headers: Headers, send: Send) -> Send:
    """A `send` that adds `headers`, which replace the application's own of the same names."""
    names = {name for name, _ in headers}

    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [entry for entry in message["headers"] if entry[0] not in names]
            message = {**message, "headers": [*kept, *headers]}
        await send(message)

    return adding
