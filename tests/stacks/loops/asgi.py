"""uvicorn without a framework."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from collections.abc import Awaitable, Callable

from stacks.loops.common import HOST, PORT

Message = dict[str, object]
Send = Callable[[Message], Awaitable[None]]


def serve(work: Callable[[], Awaitable[object]], host: str = HOST) -> None:
    """Await `work` for each request, then answer."""
    import uvicorn  # noqa: PLC0415 - another library's loop imports this module

    async def application(scope: Message, _receive: object, send: Send) -> None:
        if scope["type"] != "http":
            return
        await work()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    uvicorn.run(application, host=host, port=PORT, lifespan="off", log_level="warning")
