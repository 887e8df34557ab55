"""Batches over QUIC: `python -m stacks.loops.quic`."""

# mypy: disable-error-code="import-not-found,no-any-return"

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack

from aioquic.asyncio import connect
from aioquic.quic.configuration import QuicConfiguration

from stacks.loops.common import HOST, Load, port
from stacks.loops.gpu import train
from stacks.servers.sockets import MESSAGE

_ends = AsyncExitStack()


def pushed() -> Load:
    """Receive what is sent."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    configuration = QuicConfiguration(is_client=True, verify_mode=ssl.CERT_NONE)

    async def ask() -> asyncio.StreamReader:
        connecting = connect(HOST, port("quic"), configuration=configuration)
        client = await _ends.enter_async_context(connecting)
        reader, writer = await client.create_stream()
        writer.write(b"?")
        return reader

    reader = loop.run_until_complete(ask())
    return lambda: loop.run_until_complete(reader.readexactly(MESSAGE))


if __name__ == "__main__":
    train(pushed())
