"""Notifies systemd by sd_notify(3).

Liveness covers the threads of `/-/healthy` and the accept loop, not a hung GPU: a restart would
lose the counters of all others.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.loop import Loop
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.schedule import CADENCE
from gpu_bottleneck_exporter.web.server import WebServer

log = logging.getLogger(__name__)

_SEND_TIMEOUT_SECONDS = 1.0
"""Timeout of a datagram, lest systemd delay the shutdown."""


class Supervisor:
    """The service manager that started the exporter, if any."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """See sd_notify(3), sd_watchdog_enabled(3)."""
        address = environment.get("NOTIFY_SOCKET", "")
        self.address = f"\0{address[1:]}" if address.startswith("@") else address
        pid = f"{os.getpid()}"
        limit = environment.get("WATCHDOG_USEC", "")
        watched = limit.isdecimal() and environment.get("WATCHDOG_PID", pid) == pid
        self.watchdog_seconds = int(limit) / 1e6 if watched else 0.0
        """Timeout of the watchdog; 0: none."""
        self._throttle = LogThrottle(log)

    def send(self, *assignments: str) -> None:
        """Send `assignments`, such as READY=1; log failures."""
        trouble = None
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.settimeout(_SEND_TIMEOUT_SECONDS)
                connection.sendto("\n".join(assignments).encode(), self.address)
        except OSError as error:
            trouble = f"{error}"
        if self._throttle.is_new("supervisor", trouble) and trouble:
            log.warning("cannot notify the supervisor", {"address": self.address, "err": trouble})


@contextmanager
def reporting(
    sampler: Sampler, server: WebServer, supervisor: Supervisor, ready_within_seconds: float
) -> Iterator[None]:
    """Report the state of `sampler` and `server` to `supervisor`, if any.

    The exporter is ready when the sampler is, or after `ready_within_seconds`: if the driver hangs,
    host metrics still count.
    """
    if not supervisor.address:
        yield
        return
    # A thread may stall for half of the watchdog's timeout.
    patience = supervisor.watchdog_seconds / 2 or CADENCE.stall_timeout_seconds
    deadline = time.monotonic() + ready_within_seconds
    ready = False

    def report() -> float:
        nonlocal ready
        ready = ready or sampler.ready or time.monotonic() >= deadline
        if not ready:
            return 0.1
        standstill = sampler.standstill(patience) or server.standstill(patience)
        alive = ["WATCHDOG=1"] if supervisor.watchdog_seconds and not standstill else []
        supervisor.send("READY=1", f"STATUS={standstill or _status(sampler)}", *alive)
        return min(patience, 10.0)

    loop = Loop("notify", report, log=log)
    loop.start()
    try:
        yield
    finally:
        supervisor.send("STOPPING=1")
        loop.stop(_SEND_TIMEOUT_SECONDS)


def _status(sampler: Sampler) -> str:
    down = ", ".join(f"{index}" for index in sorted(sampler.down()))
    return " ".join(sampler.status.split()) + (f"; down: GPU {down}" if down else "")
