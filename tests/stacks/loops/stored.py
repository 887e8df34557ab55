"""Data that is fetched or pushed, and mere calls: `python -m stacks.loops.stored HOW`."""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import select
import threading
from http.client import HTTPConnection
from itertools import cycle

from stacks.loops.common import HOST, port, slow
from stacks.loops.gpu import STEP, hold, started, train
from stacks.loops.sockets import connected, received
from stacks.servers.resp import Redis
from stacks.servers.sockets import MESSAGE, REPLY, REQUEST

_BATCH = 8
_SAMPLE_BYTES = 3000
_PING = bytes(6)


def objects(connections: str = "keep") -> None:
    """Objects of a store: over one connection, or one for each."""
    kept = HTTPConnection(HOST, port("http"))

    def load() -> object:
        link = kept if connections == "keep" else HTTPConnection(HOST, port("http"))
        link.request("GET", f"/{slow()}")
        return link.getresponse().read()

    train(load)


def parallel() -> None:
    """Objects that four threads fetch for each step."""
    ahead: queue.Queue[object] = queue.Queue(4)

    def fetch() -> None:
        link = HTTPConnection(HOST, port("http"))
        while True:
            link.request("GET", f"/{slow(0.5)}")
            ahead.put(link.getresponse().read())

    for _ in range(4):
        threading.Thread(target=fetch, daemon=True).start()
    train(ahead.get)


def store(batch: str = "get", server: str = "far-redis") -> None:
    """Samples of Redis, for each step a few."""
    samples = Redis(connected(server))
    keys = [f"sample-{number}" for number in range(_BATCH)]
    for key in keys:
        samples.ask("SET", key, os.urandom(_SAMPLE_BYTES))

    def load() -> object:
        if batch == "mget":
            return samples.ask("MGET", *keys)
        return [samples.ask("GET", key) for key in keys]

    train(load)


def pushed(messages: str = "8", server: str = "samples") -> None:
    """Samples that a server pushes, `messages` for a step."""
    link = connected(server)
    train(lambda: received(link, int(messages) * MESSAGE))


def websocket(seconds: str = "2") -> None:
    """Samples that a server pushes to an event loop, eight for a step, beside its pings."""

    async def loop() -> None:
        gpu = hold()
        reader, writer = await asyncio.open_connection(HOST, port("samples"))

        async def ping() -> None:
            while True:
                await asyncio.sleep(float(seconds))
                writer.write(_PING)

        pings = asyncio.create_task(ping())
        while not pings.done():
            await reader.readexactly(_BATCH * MESSAGE)
            gpu.run(STEP)

    asyncio.run(loop())


def socket_thread() -> None:
    """A thread of the client's that receives samples and answers pings."""
    samples: queue.Queue[object] = queue.Queue(_BATCH)
    link = connected("samples")

    def receive() -> None:
        for number in itertools.count():
            received(link, MESSAGE)
            samples.put(None)
            if number % 50 == 0:
                link.sendall(_PING)

    threading.Thread(target=receive, daemon=True).start()
    train(lambda: [samples.get() for _ in range(_BATCH)])


def handed_over(ahead_of: str = "2", server: str = "lines") -> None:
    """One thread asks for some samples at once, another receives them."""
    link, room = connected(server), threading.Semaphore(0)
    ahead: queue.Queue[object] = queue.Queue()

    def ask() -> None:
        while True:
            link.sendall(bytes(REQUEST * int(ahead_of)))
            for _ in range(int(ahead_of)):
                room.acquire()

    def receive() -> None:
        while True:
            received(link, REPLY)
            ahead.put(None)

    for target in (ask, receive):
        threading.Thread(target=target, daemon=True).start()

    def load() -> None:
        ahead.get()
        room.release()

    train(load)


def elsewhere() -> None:
    """Each sample is requested over one connection, and comes over another."""
    requests, samples = connected("desk"), connected("desk")

    def load() -> None:
        requests.sendall(bytes(REQUEST))
        received(samples, REPLY)

    train(load)


def limited(calls: str = "2") -> None:
    """An event loop that makes so many calls a second, and keeps its connections open."""
    run = started()

    async def loop() -> None:
        links = cycle([await asyncio.open_connection(HOST, port("near")) for _ in range(2)])
        while True:
            reader, writer = next(links)
            writer.write(bytes(REQUEST))
            await reader.readexactly(REPLY)
            run(STEP)
            await asyncio.sleep(1 / float(calls))

    asyncio.run(loop())


def polled(calls: str = "2") -> None:
    """The same as `limited` in a loop that polls its connections until the next call is due."""
    run, links = started(), cycle([connected("near") for _ in range(2)])
    poll = select.poll()
    for _ in range(2):
        poll.register(next(links), select.POLLIN)
    while True:
        link = next(links)
        link.sendall(bytes(REQUEST))
        received(link, REPLY)
        run(STEP)
        poll.poll(1000 / float(calls))


def main(name: str, *words: str) -> None:
    """Run one."""
    globals()[name](*words)
