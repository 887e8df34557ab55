"""Servers without a framework: `python -m stacks.loops.served HOW [WORD ...]`."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

from stacks.loops.common import HOST, PORT, burn
from stacks.loops.gpu import STEP, started
from stacks.loops.sockets import connected
from stacks.servers.tasks import TASK

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone"
_REPORT_SECONDS = 0.4


async def _served(handle: Callable[[], None], *, pool: bool) -> None:
    """An HTTP server on the event loop."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = head.lower().partition(b"content-length:")[2].split()
            await reader.readexactly(int(length[0]) if length else 0)
            if pool:
                await asyncio.get_running_loop().run_in_executor(None, handle)
            else:
                handle()
            writer.write(_ANSWER)

    await (await asyncio.start_server(serve, HOST, PORT)).serve_forever()


def server(seconds: str = "0", where: str = "loop") -> None:
    """Tokenises for so long on its event loop or in a pool's thread, then runs the model."""
    run = started()

    def handle() -> None:
        burn(float(seconds))
        run(STEP)

    asyncio.run(_served(handle, pool=where == "pool"))


def preforked(seconds: str = "0") -> None:
    """Two children that accept from one socket; each holds the GPU."""
    listening = socket.create_server((HOST, PORT))
    for _ in range(2):
        if os.fork() == 0:
            run = started()
            while True:
                client, _ = listening.accept()
                while client.recv(65536):
                    burn(float(seconds))
                    run(STEP)
                    client.sendall(_ANSWER)
                client.close()
    os.wait()


def replica() -> None:
    """A replica of Ray Serve: it also asks its cluster's services now and then."""
    run = started()

    def report(name: str) -> None:
        service = connected(name)
        while True:
            service.sendall(bytes(200))
            service.recv(65536)
            time.sleep(_REPORT_SECONDS)

    for name in ("cluster-a", "cluster-b"):
        threading.Thread(target=report, args=(name,), daemon=True).start()
    calls = _served(partial(run, STEP), pool=False)
    threading.Thread(target=lambda: asyncio.run(calls), daemon=True).start()
    threading.Event().wait()


def engine(how: str = "polls", seconds: str = "0") -> None:
    """A child that holds the GPU and spins until its parent, a server, has a request for it."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        _spin(theirs, how, float(seconds))

    def ask() -> None:
        ours.sendall(TASK)
        ours.recv(65536)

    asyncio.run(_served(ask, pool=True))


def _progress() -> None:
    """Spin as communication libraries do."""
    while True:
        os.sched_yield()


def _spin(parent: socket.socket, how: str, seconds: float) -> None:
    run = started()
    parent.setblocking(how == "progress")
    if how == "progress":
        threading.Thread(target=_progress, daemon=True).start()
    while True:
        try:
            parent.recv(65536)
        except BlockingIOError:
            if how == "yields":
                os.sched_yield()
            continue
        burn(seconds)
        run(STEP)
        parent.sendall(b"ok")


def main(name: str, *words: str) -> None:
    """Run one."""
    globals()[name](*words)
