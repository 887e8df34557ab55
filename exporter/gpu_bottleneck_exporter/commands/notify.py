"""Reports to systemd by the protocol of sd_notify(3): one datagram per message.

Liveness is our own threads: those that `/-/healthy` tells of, and the one that accepts
connections, without which nobody could ask. A GPU that hangs in the driver is
no reason for a restart, which would cost the counters of all the others.
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
from gpu_bottleneck_exporter.sampling.sampler import PATIENCE_SECONDS, Sampler
from gpu_bottleneck_exporter.web.server import WebServer

log = logging.getLogger(__name__)

_STARTING_SECONDS = 0.1
"""Between two looks whether we are ready: what waits for us waits no longer than that."""
_LONGEST_PAUSE_SECONDS = 10.0
"""So old may the status be that `systemctl status` shows."""
_SEND_SECONDS = 1.0
"""For a datagram that systemd does not take: it must not delay the end."""


class Supervisor:
    """The service manager that started us, if there is one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment` has the variables of sd_notify(3) and sd_watchdog_enabled(3)."""
        address = environment.get("NOTIFY_SOCKET", "")
        self.address = f"\0{address[1:]}" if address.startswith("@") else address
        us = f"{os.getpid()}"
        limit = environment.get("WATCHDOG_USEC", "")
        watched = limit.isdecimal() and environment.get("WATCHDOG_PID", us) == us
        self.watchdog_seconds = int(limit) / 1e6 if watched else 0.0
        """It kills us after so long without a message; 0: never."""
        self._throttle = LogThrottle(log)

    def tell(self, *assignments: str) -> None:
        """Send `assignments`, such as READY=1; a failure is a line in the log."""
        trouble = None
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.settimeout(_SEND_SECONDS)
                connection.sendto("\n".join(assignments).encode(), self.address)
        except OSError as error:
            trouble = f"{error}"
        if self._throttle.is_new("supervisor", trouble) and trouble:
            log.warning("cannot notify the supervisor", {"address": self.address, "err": trouble})


@contextmanager
def reporting(
    sampler: Sampler, server: WebServer, supervisor: Supervisor, ready_within_seconds: float
) -> Iterator[None]:
    """Report the state of `sampler` and `server` to `supervisor`, if any, within the block.

    We are ready when the sampler is, but no later than `ready_within_seconds`: if the driver
    hangs from the start, the host's metrics still count, and a restart would not help.
    """
    if not supervisor.address:
        yield
        return
    # A thread may stand still for half of the watchdog's limit, if there is one.
    patience = supervisor.watchdog_seconds / 2 or PATIENCE_SECONDS

    give_up = time.monotonic() + ready_within_seconds
    began = False

    def report() -> float:
        nonlocal began
        began = began or sampler.ready or time.monotonic() >= give_up
        if not began:
            return _STARTING_SECONDS
        standstill = sampler.standstill(patience) or server.standstill(patience)
        fed = ["WATCHDOG=1"] if supervisor.watchdog_seconds and not standstill else []
        supervisor.tell("READY=1", f"STATUS={standstill or _sentence(sampler)}", *fed)
        return min(patience, _LONGEST_PAUSE_SECONDS)

    loop = Loop("notify", report, log=log)
    loop.start()
    try:
        yield
    finally:
        supervisor.tell("STOPPING=1")
        loop.stop(_SEND_SECONDS)


def _sentence(sampler: Sampler) -> str:
    """The status line: what we do, and which GPUs do not answer."""
    down = ", ".join(f"{index}" for index in sorted(sampler.down()))
    return " ".join(sampler.status.split()) + (f"; down: GPU {down}" if down else "")
