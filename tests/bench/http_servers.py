"""Compares HTTP servers for the exporter while 200 clients send half a request.

    python tests/bench/http_servers.py

Each server runs in a separate process and renders the same registry for every scrape. Prints a
Markdown table; a server whose package is missing is left out. Ratios and counts carry over to other
machines, milliseconds do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib.util
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLOW_CLIENTS = 200
REQUESTS = 200
GIVE_UP_AFTER = 2
REQUEST_TIMEOUT_S = 5.0
SLOW_WAIT_S = 12.0
HALF_REQUEST = b"GET /metrics HTT"
SOURCES = Path(__file__).parents[2] / "exporter"


class Families(Collector):
    """159 kB of text, as much as a machine with many GPUs and processes gives.

    Most of it is help text, which renders fast: the latency should be that of the server.
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for number in range(20):
            yield GaugeMetricFamily(f"bench_{number}_ratio", "h" * 7880, value=number)


def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(Families())
    return made


class BenchContent:
    """The registry as content for the exporter's own server."""

    def __init__(self) -> None:
        self._registry = registry()

    def metrics(self, accept: str) -> tuple[bytes, str]:
        del accept
        return generate_latest(self._registry), "text/plain; version=0.0.4; charset=utf-8"

    def status_page(self) -> bytes:
        return b""

    def node(self) -> bytes:
        return b""

    def healthy(self) -> tuple[bool, str]:
        return True, "Yes."

    def ready(self) -> tuple[bool, str]:
        return True, "Yes."


def serve_exporter(port: int) -> None:
    from gpu_bottleneck_exporter.web.listen import bind  # noqa: PLC0415 - only in its process
    from gpu_bottleneck_exporter.web.server import WebServer  # noqa: PLC0415 - only in its process

    asyncio.run(WebServer(BenchContent(), bind(f"127.0.0.1:{port}")).serve())


def serve_uvicorn(port: int) -> None:
    import uvicorn  # noqa: PLC0415 - only in its process

    from gpu_bottleneck_exporter.web.app import make_app  # noqa: PLC0415 - only in its process

    app = make_app(BenchContent())
    uvicorn.run(app, port=port, http="h11", ws="none", lifespan="off", log_config=None)


def serve_prometheus_client(port: int) -> None:
    _, thread = start_http_server(port, "127.0.0.1", registry())
    thread.join()


def serve_waitress(port: int) -> None:
    import waitress  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: PLC0415 - may be missing

    waitress.serve(make_wsgi_app(registry()), host="127.0.0.1", port=port)


def serve_waitress_512(port: int) -> None:
    import waitress  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: PLC0415 - may be missing

    app = make_wsgi_app(registry())
    waitress.serve(app, host="127.0.0.1", port=port, connection_limit=512)


SERVERS: dict[str, tuple[str, Callable[[int], None]]] = {
    "exporter (uvicorn + limits)": ("uvicorn", serve_exporter),
    "uvicorn as it comes": ("uvicorn", serve_uvicorn),
    "prometheus_client": ("prometheus_client", serve_prometheus_client),
    "waitress as it comes": ("waitress", serve_waitress),
    "waitress, 512 connections": ("waitress", serve_waitress_512),
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scrape(port: int) -> tuple[float, int]:
    """One scrape on a new connection: seconds and bytes; raises OSError if it fails."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        size = len(connection.getresponse().read())
    finally:
        connection.close()
    return time.perf_counter() - began, size


def median_of_scrapes(port: int) -> tuple[float, int]:
    """The median in seconds (infinite if none succeeded), and how many failed."""
    times: list[float] = []
    for number in range(REQUESTS):
        if number == GIVE_UP_AFTER and not times:  # each failure costs its whole timeout
            return float("inf"), REQUESTS
        with contextlib.suppress(OSError, http.client.HTTPException):
            times.append(scrape(port)[0])
    return statistics.median(times), REQUESTS - len(times)


def is_closed(client: socket.socket) -> bool:
    client.settimeout(0)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def wait_for_server(port: int) -> int:
    """Wait until the server answers; returns the body's size in bytes."""
    for _ in range(300):
        with contextlib.suppress(OSError):
            return scrape(port)[1]
        time.sleep(0.1)
    raise TimeoutError("the server does not answer")


def measure(name: str) -> str:
    """Run one server and return its row of the table."""
    port = free_port()
    environment = os.environ | {"PYTHONPATH": str(SOURCES)}
    command = [sys.executable, __file__, name, str(port)]
    with subprocess.Popen(command, env=environment) as process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        size = wait_for_server(port)
        before, _ = median_of_scrapes(port)
        opened = time.monotonic()
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), REQUEST_TIMEOUT_S))
            for _ in range(SLOW_CLIENTS)
        ]
        for client in slow:
            client.sendall(HALF_REQUEST)
        during, failed = median_of_scrapes(port)
        seen = psutil.Process(process.pid)
        threads, resident = seen.num_threads(), seen.memory_info().rss / 2**20
        time.sleep(max(0.0, opened + SLOW_WAIT_S - time.monotonic()))
        closed = sum(map(is_closed, slow))
    ratio = f"{during / before:.1f} ({before * 1e3:.1f} ms before)"
    return (
        f"| {name} | {size / 1e3:.0f} | {threads} | {resident:.0f} | {ratio} "
        f"| {failed} of {REQUESTS} | {closed} of {SLOW_CLIENTS} |"
    )


def main() -> None:
    """Print the table or, with a server's name and a port, be that server."""
    if len(sys.argv) > 1:
        SERVERS[sys.argv[1]][1](int(sys.argv[2]))
        return
    write = sys.stdout.write
    write(
        "| server | body kB | threads | RSS MiB | latency ratio, slow clients / none "
        "| scrapes failed | slow connections closed after 12 s |\n"
        "|---|---:|---:|---:|---:|---:|---:|\n"
    )
    for name, (package, _) in SERVERS.items():
        if importlib.util.find_spec(package) is not None:
            write(measure(name) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
