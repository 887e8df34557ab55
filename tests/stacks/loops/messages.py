"""Batches that a broker delivers: `python -m stacks.loops.messages HOW`."""

# ruff: noqa: PLC0415 - each case imports its own library and no other
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import Any

from stacks.loops.common import FOLDER, HOST, WAIT, Load, burn, port
from stacks.loops.gpu import hold, ready, run, warm
from stacks.servers.publish import TOPIC

_AHEAD = 4


def mqtt(seconds: float = 0.0, qos: int = 0) -> Load:
    """The library's thread receives, and decodes for so long."""
    from paho.mqtt import client as paho

    batches: queue.Queue[bytes] = queue.Queue(_AHEAD)

    def take(_client: object, _data: object, message: Any) -> None:  # noqa: ANN401 - its own
        burn(seconds)
        batches.put(message.payload)

    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.on_connect = lambda *_: client.subscribe(TOPIC, qos)
    client.on_message = take
    client.connect(HOST, port("mosquitto"))
    client.loop_start()
    return batches.get


def confluent() -> Load:
    """librdkafka: threads of its own receive."""
    from confluent_kafka import Consumer

    (found,) = FOLDER.glob("kafka*.port")
    broker = f"{HOST}:{found.read_text()}"
    consumer = Consumer(
        {"bootstrap.servers": broker, "group.id": "loop", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])

    def load() -> object:
        while (message := consumer.poll(1.0)) is None:
            pass
        assert not message.error(), message.error()
        return message

    return load


def waiting() -> Load:
    """A worker of Redis that waits for a job without a timeout."""
    import redis

    broker = redis.Redis(HOST, port("redis"))
    return lambda: broker.blpop(["jobs"], timeout=0)


def gossiping() -> Load:
    """The same, asking each second; it also hears and tells who is there."""
    import redis

    broker = redis.Redis(HOST, port("redis"))
    channel = broker.pubsub()
    channel.subscribe("workers")
    threading.Thread(target=lambda: [*channel.listen()], daemon=True).start()

    def load() -> None:
        while broker.brpop(["jobs"], timeout=1) is None:
            broker.publish("workers", "heartbeat " * 20)

    return load


mqtt_acknowledged = partial(mqtt, qos=1)
mqtt_decoded = partial(mqtt, WAIT)


def main(name: str, idle: str = "") -> None:
    """Train forever, or wait for the first message, which never comes."""
    if idle:
        load = globals()[name]()
        warm(hold())
        ready()
        load()
    run(globals(), name)
