"""Publishes small samples: `... NAME SECONDS`, with so many between two; 0: it publishes none.

To mosquitto; to Kafka if NAME begins so: librdkafka's broker for tests, which is run here.
"""

# ruff: noqa: PLC0415 - each broker has its own library
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import time
from collections.abc import Callable

from stacks.loops.common import FOLDER
from stacks.servers.listen import announce

TOPIC = "samples"
SAMPLE = bytes(2000)


def mosquitto() -> tuple[int, Callable[[], object]]:
    """The broker's port, and what publishes a sample."""
    from paho.mqtt import client as mqtt

    port = int((FOLDER / "mosquitto.port").read_text())
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", port)
    client.loop_start()
    return port, lambda: client.publish(TOPIC, SAMPLE, qos=1)


def kafka() -> tuple[int, Callable[[], object]]:
    """The same."""
    from confluent_kafka import Producer

    producer = Producer({"test.mock.num.brokers": 1, "linger.ms": 0})
    (broker,) = producer.list_topics(TOPIC).brokers.values()

    def publish() -> None:
        producer.produce(TOPIC, SAMPLE)
        producer.poll(0)

    return broker.port, publish


def main(name: str, seconds: str) -> None:
    """Publish until killed."""
    port, publish = kafka() if name.startswith("kafka") else mosquitto()
    announce(name, port)
    while True:
        time.sleep(float(seconds) or 3600)
        publish()
