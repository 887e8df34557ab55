"""Batches over QUIC: `python -m stacks.loops.quic pushed`."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from aioquic.asyncio import connect
from aioquic.quic.configuration import QuicConfiguration

from stacks.loops.common import HOST, Load, awaited, port
from stacks.servers.sockets import MESSAGE

_ends = AsyncExitStack()


def pushed() -> Load:
    """Receive what is sent."""

    async def start() -> Callable[[], Awaitable[bytes]]:
        configuration = QuicConfiguration(is_client=True, verify_mode=ssl.CERT_NONE)
        connecting = connect(HOST, port("quic"), configuration=configuration)
        client = await _ends.enter_async_context(connecting)
        reader: asyncio.StreamReader
        reader, writer = await client.create_stream()
        writer.write(b"?")
        return lambda: reader.readexactly(MESSAGE)

    return awaited(start)
