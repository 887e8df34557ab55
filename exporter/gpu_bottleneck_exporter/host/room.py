"""How many files we may keep open: so many that enough is left of what the process may have.

A job has as many processes and threads as it likes. What is left over is for those who read our
metrics, for logs, and for files that are opened, read and closed.
"""

from __future__ import annotations

import contextlib
import resource
import threading
import time

_WANTED = 16_384
"""Open files that we ask for, where the hard limit allows: more would cost the kernel memory."""
_MOST_KEPT = 4_096
"""Of these kept open, at most: 800 processes are watched at a tenth of the cost."""
_RESERVE = 640
"""For 512 clients, the driver, and whatever is opened, read and closed."""
_AGAIN_SECONDS = 30.0


class Room:
    """Counts the descriptors that are kept open."""

    def __init__(self) -> None:
        self.kept = 0
        """Now."""
        self.most = 0
        """As the limit of the process allows."""
        self.crowded = False
        """Whether more are kept than may be: whoever is read next gives its own back."""
        self._allowed = 0
        self._again = 0.0
        self._lock = threading.Lock()
        self.measure()

    def measure(self) -> None:
        """Take over the limit of the process (RLIMIT_NOFILE)."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = soft == resource.RLIM_INFINITY
        left = _MOST_KEPT if unlimited else max(soft - _RESERVE, soft // 4)
        self.most = self._allowed = min(left, _MOST_KEPT)
        self._judge()

    def take(self) -> bool:
        """Whether one more may be kept; if so, it counts."""
        with self._lock:
            if self._allowed < self.most and time.monotonic() >= self._again:
                self._allowed = self.most
            free = self.kept < self._allowed
            self.kept += free
            self._judge()
            return free

    def give(self) -> None:
        """One is kept no more."""
        with self._lock:
            self.kept -= 1
            self._judge()

    def shrink(self) -> None:
        """The process, or the machine, could open no more: keep half of what is kept, for 30 s."""
        with self._lock:
            self._allowed = self.kept // 2
            self._again = time.monotonic() + _AGAIN_SECONDS
            self._judge()

    def _judge(self) -> None:
        self.crowded = self.kept > self._allowed


room = Room()
"""Of this process, as its limit is."""


def allow_many_files() -> None:
    """Raise the limit of open files as far as we may and want."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    room.measure()
