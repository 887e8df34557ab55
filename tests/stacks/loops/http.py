"""Batches over HTTP: `python -m stacks.loops.http CLIENT [WHERE]`.

Each client, a function here, fetches from a server that answers late; WHERE: see common.placed.
"""

# ruff: noqa: PLC0415 - each case imports its own library and no other
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from stacks.loops.common import FOLDER, Load, awaited, fetch, slow, url

TIMEOUT = 30
_SAMPLES = 4
_BYTES = 65536
_TRICKLE_MS, _TRICKLE_CHUNKS, _CHUNKS_A_BATCH = 40, 100_000, 3

Sample = Callable[[], Awaitable[object]]


def requests_session() -> Load:
    """One connection that stays open."""
    import requests

    session = requests.Session()
    return lambda: session.get(url(slow())).content


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


def requests_stream() -> Load:
    """A body that trickles in; a batch is some chunks of it."""
    import requests

    path = f"trickle/{_TRICKLE_MS}/{_TRICKLE_CHUNKS}"
    chunks = requests.get(url(path), stream=True, timeout=TIMEOUT).iter_content(None)
    return lambda: [next(chunks) for _ in range(_CHUNKS_A_BATCH)]


def urllib3_pool() -> Load:
    """What requests builds on."""
    import urllib3

    pool = urllib3.PoolManager()
    return lambda: pool.request("GET", url(slow())).data


def standard() -> Load:
    """The standard library's."""
    return fetch


def standard_tls() -> Load:
    """The standard library's, with TLS."""
    context = ssl.create_default_context(cafile=f"{FOLDER / 'ca.pem'}")

    def load() -> object:
        with urllib.request.urlopen(url(slow(), "tls", scheme="https"), context=context) as answer:
            return answer.read()

    return load


def httpx_client() -> Load:
    """It sets a timeout unless told otherwise."""
    import httpx

    client = httpx.Client()
    return lambda: client.get(url(slow())).content


def httpx_async() -> Load:
    """Some samples at a time, on an event loop."""
    import httpx

    async def start() -> Sample:
        client = httpx.AsyncClient()
        return lambda: client.get(url(slow()))

    return _gathered(start)


def aiohttp_client() -> Load:
    """Some samples at a time, on an event loop."""
    import aiohttp

    async def start() -> Sample:
        session = aiohttp.ClientSession()

        async def sample() -> object:
            async with session.get(url(slow())) as answer:
                return await answer.read()

        return sample

    return _gathered(start)


def _gathered(start: Callable[[], Coroutine[Any, Any, Sample]]) -> Load:
    async def begin() -> Sample:
        sample = await start()

        async def batch() -> object:
            return await asyncio.gather(*(sample() for _ in range(_SAMPLES)))

        return batch

    return awaited(begin)


def fsspec_http() -> Load:
    """A file system over HTTP: an event loop in a separate thread does the work."""
    import fsspec

    files = fsspec.filesystem("http")
    return lambda: files.cat_file(url(slow()))


def fsspec_file() -> Load:
    """A file on it, read in ranges."""
    import fsspec

    (FOLDER / "shard").write_bytes(bytes(100 * _BYTES))
    file = fsspec.open(url("file/120/shard"), block_size=_BYTES, cache_type="none").open()

    def load() -> object:
        if file.tell() >= file.size:
            file.seek(0)
        return file.read(_BYTES)

    return load
