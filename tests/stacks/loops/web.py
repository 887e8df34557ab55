"""Model servers over HTTP, each in one process: `python -m stacks.loops.web SERVER WORK`.

SERVER: see SERVERS. WORK is what a request makes it do: see HANDLERS.
"""

# ruff: noqa: PLC0415 - each case imports its own library and no other
# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from stacks.loops.asgi import serve
from stacks.loops.common import HOST, PORT, WORKS, slow, url
from stacks.loops.gpu import Model
from stacks.loops.threads import decoding
from stacks.servers.listen import http_server

_model = Model()
_kept: dict[str, Any] = {}
HANDLERS = {**WORKS, "unpack": decoding()}  # without the interpreter lock


def handle(work: str) -> None:
    """Do the work, then run the model, which takes one request at a time."""
    HANDLERS[work]()
    _model.infer()


async def upstream_async() -> None:
    """Ask another service on an event loop."""
    import httpx

    if "client" not in _kept:
        _kept["client"] = httpx.AsyncClient()  # making one takes longer than the answer
    await _kept["client"].get(url(slow()))
    await asyncio.get_running_loop().run_in_executor(None, handle, "infer")


def asgi(work: str, *, threads: bool, host: str = HOST) -> None:
    """uvicorn without a framework; requests on the event loop, or in threads."""
    pool = ThreadPoolExecutor(8)

    async def answer() -> None:
        if work == "upstream-async":
            await upstream_async()
        elif threads:
            await asyncio.get_running_loop().run_in_executor(pool, handle, work)
        else:
            handle(work)

    serve(answer, host)


def starlette(work: str) -> None:
    """A plain function as handler, which the framework runs in a thread."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    def answer(_request: Request) -> PlainTextResponse:
        handle(work)
        return PlainTextResponse("done")

    application = Starlette(routes=[Route("/work", answer)])
    uvicorn.run(application, host=HOST, port=PORT, log_level="warning")


def fastapi(work: str) -> None:
    """The same, with the framework that checks types."""
    import uvicorn
    from fastapi import FastAPI

    application = FastAPI()

    @application.get("/work")
    def answer() -> str:
        handle(work)
        return "done"

    uvicorn.run(application, host=HOST, port=PORT, log_level="warning")


def standard(work: str) -> None:
    """The standard library's server, one thread per connection."""
    http_server(partial(handle, work), PORT).serve_forever()


SERVERS: dict[str, Callable[[str], None]] = {
    "asgi": partial(asgi, threads=False),
    "asgi-threads": partial(asgi, threads=True),
    "asgi-anywhere": partial(asgi, threads=True, host="0.0.0.0"),  # noqa: S104
    "starlette": starlette,
    "fastapi": fastapi,
    "standard": standard,
}


def main(server: str, work: str) -> None:
    """Serve until killed."""
    _model.load()
    SERVERS[server](work)
