"""Reports to systemd by the protocol of sd_notify(3): one datagram per message.

Liveness is our own threads: those that `/-/healthy` tells of, and the one that accepts
connections, without which nobody could ask. A GPU that hangs in the driver is
no reason for a restart, which would cost the counters of all the others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpu_bottleneck_exporter.news import News
from gpu_bottleneck_exporter.sampling.sampler import PATIENCE_SECONDS, Sampler
from gpu_bottleneck_exporter.web.server import WebServer

log = logging.getLogger(__name__)
_news = News()

_STARTING_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 10.0
_SEND_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The service manager that started us."""

    address: str
    watchdog_seconds: float | None = None
    """It kills us after so long without a message; None: never."""

    def tell(self, *assignments: str) -> bool:
        """Send `assignments`, such as READY=1; False, and a log line, on failure."""
        subject = f"{self.address} {assignments[0].partition('=')[0]}"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.settimeout(_SEND_SECONDS)
                connection.sendto("\n".join(assignments).encode(), self.address)
        except OSError as error:
            if _news.is_new(subject, str(error)):
                log.warning("cannot notify the supervisor of %s: %s", assignments[0], error)
            return False
        _news.is_new(subject, None)
        return True


def supervisor(environment: Mapping[str, str]) -> Supervisor | None:
    """The one that `environment` names; None if there is none, or it is out of reach."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return None
    if address[0] not in "/@":
        log.warning("NOTIFY_SOCKET=%s is neither a path nor an abstract socket", address)
        return None
    if address[0] == "@":
        address = "\0" + address[1:]
    return Supervisor(address, _watchdog_seconds(environment))


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    microseconds = environment.get("WATCHDOG_USEC", "")
    if not microseconds or environment.get("WATCHDOG_PID", f"{os.getpid()}") != f"{os.getpid()}":
        return None
    if not microseconds.isdecimal() or int(microseconds) == 0:
        log.warning("WATCHDOG_USEC=%s is not a number of microseconds", microseconds)
        return None
    return int(microseconds) / 1e6


@contextlib.contextmanager
def reporting(
    sampler: Sampler,
    server: WebServer,
    supervisor: Supervisor | None,
    ready_within_seconds: float,
) -> Iterator[None]:
    """Report the state of `sampler` and `server` to `supervisor`, if any, within the block.

    We are ready when the sampler is, but no later than `ready_within_seconds`: if the driver
    hangs from the start, the host's metrics still count, and a restart would not help.
    """
    if supervisor is None:
        yield
        return
    over = threading.Event()
    arguments = (sampler, server, supervisor, ready_within_seconds, over)
    thread = threading.Thread(target=_report, name="notify", args=arguments, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_SEND_SECONDS)


def _report(
    sampler: Sampler,
    server: WebServer,
    supervisor: Supervisor,
    ready_within_seconds: float,
    over: threading.Event,
) -> None:
    give_up = time.monotonic() + ready_within_seconds
    while not sampler.ready and time.monotonic() < give_up and not over.wait(_STARTING_SECONDS):
        pass
    told = ""
    pause = 0.0
    while not over.wait(pause):
        patience = _patience_seconds(supervisor)
        standstill = sampler.standstill(patience) or server.standstill(patience)
        status = standstill or _sentence(sampler)
        news = ["READY=1", f"STATUS={status}"] if status != told else []
        if supervisor.watchdog_seconds and not standstill:
            news.append("WATCHDOG=1")
        if news and supervisor.tell(*news):
            told = status
        pause = min(patience, _LONGEST_PAUSE_SECONDS)


def _patience_seconds(supervisor: Supervisor) -> float:
    """How long a thread may stand still: half of the watchdog's limit, if there is one."""
    return (supervisor.watchdog_seconds or 2 * PATIENCE_SECONDS) / 2


def _sentence(sampler: Sampler) -> str:
    """The status line: what we do, and which GPUs do not answer."""
    down = ", ".join(f"{index}" for index in sorted(sampler.down_reasons()))
    return " ".join(sampler.status.split()) + (f"; down: GPU {down}" if down else "")
