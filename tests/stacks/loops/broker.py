"""Clients of a broker without messages: `python -m stacks.loops.broker HOW`."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import sys
from collections.abc import Callable

import redis

from stacks.loops.common import HOST, hold, port, warm


def subscribed(broker: redis.Redis) -> None:
    """A subscriber that gets no message."""
    channel = broker.pubsub()
    channel.subscribe("news")
    for _ in channel.listen():
        pass


def waiting_for_job(broker: redis.Redis) -> None:
    """A worker that waits for its first job without a timeout."""
    while True:
        broker.blpop(["jobs"], timeout=0)


def asking_for_job(broker: redis.Redis) -> None:
    """The same, but asking again each second, as task queues do."""
    while True:
        broker.brpop(["jobs"], timeout=1)


HOW: dict[str, Callable[[redis.Redis], None]] = {
    "subscribed": subscribed,
    "waiting": waiting_for_job,
    "asking": asking_for_job,
}

if __name__ == "__main__":
    warm(hold())
    HOW[sys.argv[1]](redis.Redis(HOST, port("redis")))
