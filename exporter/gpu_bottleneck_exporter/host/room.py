"""How many files the exporter keeps open: a bounded part of what RLIMIT_NOFILE allows.

A job has as many processes and threads as it likes. The rest of the limit is reserved for HTTP
clients, logs, and files that are opened, read and closed.
"""

from __future__ import annotations

import contextlib
import resource
import threading
import time

_WANTED = 16_384
"""Soft limit that we set if the hard limit allows; more would cost kernel memory."""
_MOST_KEPT = 4_096
"""Files kept open at most: enough to watch 800 processes at a tenth of the cost."""
_RESERVE = 640
"""For 512 clients, the driver, and files that are opened, read and closed."""
_AGAIN_SECONDS = 30.0


class Room:
    """Counts the descriptors that are kept open."""

    def __init__(self) -> None:
        self.kept = 0
        """Descriptors kept open now."""
        self.most = 0
        """Descriptors that the process's limit allows to keep open."""
        self.crowded = False
        """Whether too many are kept open: then each file closes its own when it is read next."""
        self._allowed = 0
        self._again = 0.0
        self._lock = threading.Lock()
        self.measure()

    def measure(self) -> None:
        """Read the limit of the process (RLIMIT_NOFILE)."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = soft == resource.RLIM_INFINITY
        # A limit too small for the reserve still leaves a quarter.
        left = _MOST_KEPT if unlimited else max(soft - _RESERVE, soft // 4)
        self.most = self._allowed = min(left, _MOST_KEPT)
        self._judge()

    def take(self) -> bool:
        """Whether one more may be kept open; if so, it is counted."""
        with self._lock:
            # The pause after `shrink` is over.
            if self._allowed < self.most and time.monotonic() >= self._again:
                self._allowed = self.most
            free = self.kept < self._allowed
            self.kept += free
            self._judge()
            return free

    def give(self) -> None:
        """Count one less."""
        with self._lock:
            self.kept -= 1
            self._judge()

    def shrink(self) -> None:
        """Keep only half as many for 30 s: the process or the machine could open no more files."""
        with self._lock:
            self._allowed = self.kept // 2
            self._again = time.monotonic() + _AGAIN_SECONDS
            self._judge()

    def _judge(self) -> None:
        self.crowded = self.kept > self._allowed


room = Room()
"""The room of this process."""


def allow_many_files() -> None:
    """Raise the soft limit of open files to `_WANTED`, or to the hard limit if that is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    room.measure()
