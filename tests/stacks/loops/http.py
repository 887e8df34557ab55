"""Batches over HTTP: `python -m stacks.loops.http CLIENT [WHERE]`.

Each client, a function here, fetches from a server that answers late; WHERE: see common.placed.
"""

# ruff: noqa: PLC0415 - each case imports its own library and no other
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stacks.loops.common import FOLDER, HOST, Load, awaited, fetch, port, slow, url

TIMEOUT = 30
_SAMPLES = 4


def requests_timeout() -> Load:
    """A socket with a timeout is non-blocking: its client waits in poll."""
    import requests

    session = requests.Session()
    return lambda: session.get(url(slow()), timeout=TIMEOUT).content


def requests_bare() -> Load:
    """A connection for each request."""
    import requests

    return lambda: requests.get(url(slow())).content  # noqa: S113 - that is the case


def requests_tls() -> Load:
    """TLS on a connection that stays open."""
    import requests

    session = requests.Session()
    session.verify = f"{FOLDER / 'ca.pem'}"
    return lambda: session.get(url(slow(), "tls", scheme="https")).content


def standard() -> Load:
    """The standard library's."""
    return fetch


def aiohttp_client() -> Load:
    """Some samples at a time, on an event loop."""
    import aiohttp

    async def start() -> Callable[[], Awaitable[object]]:
        session = aiohttp.ClientSession()

        async def sample() -> object:
            async with session.get(url(slow())) as answer:
                return await answer.read()

        async def batch() -> object:
            return await asyncio.gather(*(sample() for _ in range(_SAMPLES)))

        return batch

    return awaited(start)


def fsspec_http() -> Load:
    """A file system over HTTP: an event loop in a separate thread does the work."""
    import fsspec

    files = fsspec.filesystem("http")
    return lambda: files.cat_file(url(slow()))


def grpc_unary() -> Load:
    """gRPC, one call per batch."""
    import grpc

    channel = grpc.insecure_channel(f"{HOST}:{port('rpc')}")
    # What grpc's stubs cannot infer without a message type.
    get: Any = channel.unary_unary("/stacks/Get")
    return lambda: get(b"")
