"""Batches that a broker delivers: `python -m stacks.loops.messages HOW`."""

# ruff: noqa: PLC0415 - each case imports its own library and no other
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from stacks.loops.common import FOLDER, HOST, WAIT, Load, burn, port
from stacks.loops.gpu import hold, ready, run, warm
from stacks.servers.publish import TOPIC

_AHEAD = 4


def mqtt(take: Callable[[bytes], object], qos: int = 0) -> Any:  # noqa: ANN401 - its own
    """A subscriber, whose messages `take` is given."""
    from paho.mqtt import client as paho

    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.on_connect = lambda *_: client.subscribe(TOPIC, qos)
    client.on_message = lambda _client, _data, message: take(message.payload)
    client.connect(HOST, port("mosquitto"))
    return client


def mqtt_thread(seconds: float = 0.0, qos: int = 0) -> Load:
    """The library's thread receives, and decodes for so long."""
    batches: queue.Queue[bytes] = queue.Queue(_AHEAD)

    def take(sample: bytes) -> None:
        burn(seconds)
        batches.put(sample)

    mqtt(take, qos).loop_start()
    return batches.get


def mqtt_main() -> Load:
    """The main thread receives."""
    batches: deque[bytes] = deque()
    client = mqtt(batches.append)

    def load() -> bytes:
        while not batches:
            client.loop()
        return batches.popleft()

    return load


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


mqtt_acknowledged = partial(mqtt_thread, qos=1)
mqtt_decoded = partial(mqtt_thread, WAIT)


def main(name: str, idle: str = "") -> None:
    """Train forever, or wait for the first message, which never comes."""
    if idle:
        load = globals()[name]()
        warm(hold())
        ready()
        load()
    run(globals(), name)
