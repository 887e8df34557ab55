"""Clients of a broker without messages: `python -m stacks.loops.broker HOW`."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import threading

import redis

from stacks.loops.common import HOST, port
from stacks.loops.gpu import hold, warm


def subscribed(broker: redis.Redis, to: str = "news") -> None:
    """A subscriber that gets no message."""
    channel = broker.pubsub()
    channel.subscribe(to)
    for _ in channel.listen():
        pass


def waiting(broker: redis.Redis) -> None:
    """A worker that waits for its first job without a timeout."""
    while True:
        broker.blpop(["jobs"], timeout=0)


def asking(broker: redis.Redis) -> None:
    """The same, but asking again each second, as task queues do."""
    while True:
        broker.brpop(["jobs"], timeout=1)


def gossiping(broker: redis.Redis) -> None:
    """The same, and it hears and tells who is there."""
    threading.Thread(target=subscribed, args=(broker, "workers"), daemon=True).start()
    while True:
        broker.publish("workers", "heartbeat " * 20)
        broker.brpop(["jobs"], timeout=1)


def main(name: str) -> None:
    """Wait forever."""
    warm(hold())
    globals()[name](redis.Redis(HOST, port("redis")))
