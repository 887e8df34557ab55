"""Front ends with a pool of threads, brokers, services that always answer late, and gateways."""

from __future__ import annotations

from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.stall import (
    ASLEEP,
    HOST_CODE,
    NETWORK,
    REQUESTS,
    WORKER_CPU,
)


class Row(NamedTuple):
    """What differs between these cases (`cases.Case`)."""

    family: str
    name: str
    loop: str
    expected: str
    servers: str = ""
    venv: str = "light"
    single: bool = True
    warm_seconds: float = 3.0


def _fastapi(name: str, work: str, expected: str, servers: str = "") -> Row:
    return Row("serving", f"{name}", f"web fastapi {work}", expected, servers, "services")


def _broker(name: str, how: str, expected: str, servers: str) -> Row:
    brokers = f"mosquitto {servers}" if how.startswith("mqtt") else servers
    return Row("brokers", name, f"messages {how}", expected, brokers, "services")


def _gateway(name: str, expected: str, servers: str, loop: str = "asgi-threads") -> Row:
    return Row("strangers", name, f"web {loop} infer", expected, servers, single=False)


_NO_JOB = f"{ASLEEP}|{REQUESTS}"
SERVICES = (
    _fastapi("FastAPI, idle", "infer", REQUESTS),
    _fastapi("FastAPI, plain handlers that tokenise", "burn", HOST_CODE, "ask"),
    _fastapi("FastAPI, plain handlers that tokenise, crowded", "burn", HOST_CODE, "ask-much"),
    _fastapi("FastAPI, plain handlers that ask a service", "upstream", NETWORK, "http ask"),
    _fastapi("healthy: FastAPI, asked much", "infer", "busy", "ask-much"),
    _broker("MQTT, a subscriber thread", "mqtt-thread", NETWORK, "publish"),
    _broker("MQTT, with acknowledgements", "mqtt-acknowledged", NETWORK, "publish"),
    _broker("MQTT, in the main thread", "mqtt-main", NETWORK, "publish"),
    _broker("MQTT, a subscriber thread that decodes", "mqtt-decoded", WORKER_CPU, "publish-much"),
    _broker("MQTT, without messages", "mqtt-thread idle", _NO_JOB, ""),
    _broker("healthy: MQTT", "mqtt-thread", "busy", "publish-much"),
    _broker("Kafka", "confluent", NETWORK, "kafka"),
    _broker("Kafka, without messages", "confluent idle", _NO_JOB, "kafka-idle"),
    _broker("healthy: Kafka", "confluent", "busy", "kafka-much"),
    # Two answers that fed the GPU teach how long they take.
    Row(
        "http",
        "socket, a server that always takes 8 s",
        "waits late-8",
        NETWORK,
        "late-8",
        warm_seconds=29.0,
    ),
    Row(
        "http",
        "socket, a server that always takes 25 s",
        "waits late-25",
        NETWORK,
        "late-25",
        warm_seconds=90.0,
    ),
    # What Ray has just started asks its own servers for a while.
    Row(
        "Ray",
        "an actor that has been idle for a while",
        "raying idle",
        _NO_JOB,
        venv="ray",
        single=False,
        warm_seconds=15.0,
    ),
    Row("http", "datagrams, in an event loop", "waits datagrams-async", NETWORK, "datagrams"),
    Row("http", "QUIC", "quic", NETWORK, "quic", "services"),
    Row("asleep", "an event loop that sends datagrams", "waits metrics-async", ASLEEP),
    _gateway("a gateway with clients", WORKER_CPU, "gateway-keep-burn ask-gateway-keep-burn"),
    _gateway("a gateway that connects anew", WORKER_CPU, "gateway-anew-burn ask-gateway-anew-burn"),
    _gateway(
        "a gateway that asks a service",
        NETWORK,
        "http gateway-keep-fetch ask-gateway-keep-fetch",
    ),
    _gateway(
        "a gateway that connects anew and asks a service",
        NETWORK,
        "http gateway-anew-fetch ask-gateway-anew-fetch",
    ),
    _gateway("a gateway without clients", REQUESTS, "gateway-keep-burn"),
    _gateway(
        "a gateway that is asked seldom",
        REQUESTS,
        "gateway-keep-hardly ask-gateway-keep-hardly-seldom",
    ),
    _gateway(
        "a gateway that connects anew and is asked seldom",
        REQUESTS,
        "gateway-anew-hardly ask-gateway-anew-hardly-seldom",
    ),
    _gateway(
        "a gateway in another network namespace",
        WORKER_CPU,
        "sidecar-pod-gateway-burn",
        "asgi-anywhere",
    ),
    Row(
        "strangers",
        "ZeroMQ's PUSH from another network namespace",
        "fed pod",
        WORKER_CPU,
        "sidecar-pod-burn",
        single=False,
    ),
)
