"""Pushes samples over QUIC to whoever has asked once: `... NAME`."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import socket

import trustme
from aioquic.asyncio import serve
from aioquic.quic.configuration import QuicConfiguration

from stacks.servers.listen import FOLDER, announce
from stacks.servers.sockets import MESSAGE, PAUSE


async def _serve(name: str) -> None:
    certificate = trustme.CA().issue_cert("127.0.0.1")
    configuration = QuicConfiguration(is_client=False)
    certificate.cert_chain_pems[0].write_to_path(f"{FOLDER / 'quic.pem'}")
    certificate.private_key_pem.write_to_path(f"{FOLDER / 'quic.key'}")
    configuration.load_cert_chain(FOLDER / "quic.pem", FOLDER / "quic.key")
    tasks = set()

    async def push(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        while True:
            await asyncio.sleep(PAUSE)
            writer.write(bytes(MESSAGE))

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.get_running_loop().create_task(push(reader, writer)))

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    await serve("127.0.0.1", port, configuration=configuration, stream_handler=begin)
    announce(name, port)
    await asyncio.Event().wait()


def main(name: str) -> None:
    """Serve until killed."""
    asyncio.run(_serve(name))
