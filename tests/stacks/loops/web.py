"""Model servers: `python -m stacks.loops.web SERVER WORK`, and for gunicorn its options.

SERVER: see SERVERS. WORK is what a request makes it do: see HANDLERS.
"""

# ruff: noqa: PLC0415 - each case imports its own library and no other
# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from stacks.loops import engine
from stacks.loops.common import HOST, PORT, WORKS, Load, slow, url
from stacks.loops.gpu import loaded
from stacks.loops.threads import decoding

Message = dict[str, Any]
HANDLERS = {**WORKS, "unpack": decoding()}  # without the interpreter lock
_kept: dict[str, Any] = {}


def handle(work: str) -> None:
    """Do the work, then run the model."""
    HANDLERS[work]()
    _kept["infer"]()


async def upstream_async() -> None:
    """Ask another service on an event loop."""
    import httpx

    if "client" not in _kept:
        _kept["client"] = httpx.AsyncClient()  # making one takes longer than the answer
    await _kept["client"].get(url(slow()))
    await asyncio.get_running_loop().run_in_executor(None, handle, "infer")


def asgi(work: str, *, threads: bool) -> None:
    """uvicorn without a framework; requests on the event loop, or in threads."""
    import uvicorn

    pool = ThreadPoolExecutor(8)

    async def application(scope: Message, _receive: object, send: Callable[..., Any]) -> None:
        if scope["type"] != "http":
            return
        if work == "upstream-async":
            await upstream_async()
        elif threads:
            await asyncio.get_running_loop().run_in_executor(pool, handle, work)
        else:
            handle(work)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    uvicorn.run(application, host=HOST, port=PORT, lifespan="off", log_level="warning")


def fastapi(work: str) -> None:
    """A plain function as handler, which the framework runs in a thread."""
    import uvicorn
    from fastapi import FastAPI

    application = FastAPI()

    @application.get("/work")
    def answer() -> str:
        handle(work)
        return "done"

    uvicorn.run(application, host=HOST, port=PORT, log_level="warning")


def grpc(work: str) -> None:
    """gRPC, whose threads are not Python's."""
    from stacks.servers import rpc

    def answer() -> bytes:
        handle(work)
        return b"done"

    server, _ = rpc.started(answer, PORT)
    server.wait_for_termination()


def gunicorn(work: str, *options: str) -> None:
    """gunicorn, each of whose workers holds the GPU itself."""
    application = f"stacks.loops.web:wsgi('{work}')"
    command = [sys.executable, "-m", "gunicorn", "-b", f"{HOST}:{PORT}", *options, application]
    os.execv(sys.executable, command)  # noqa: S606 - the point of it


def wsgi(work: str) -> Callable[..., Iterable[bytes]]:
    """The application, in a worker of gunicorn."""
    _kept["infer"] = loaded()

    def application(_environ: object, start: Callable[..., object]) -> Iterable[bytes]:
        handle(work)
        start("200 OK", [("Content-Length", "4")])
        return [b"done"]

    return application


SERVERS: dict[str, Callable[[str], None]] = {
    "asgi": partial(asgi, threads=False),
    "asgi-threads": partial(asgi, threads=True),
    "engine": partial(asgi, threads=True),
    "fastapi": fastapi,
    "grpc": grpc,
}


def main(server: str, work: str, *options: str) -> None:
    """Serve until killed."""
    if server == "gunicorn":
        gunicorn(work, *options)
    start: Callable[[], Load] = engine.started if server == "engine" else loaded
    _kept["infer"] = start()
    SERVERS[server](work)
