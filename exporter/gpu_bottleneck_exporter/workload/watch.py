"""A thread that looks again and again at what may hang: a folder, a socket."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

from gpu_bottleneck_exporter.logthrottle import LogThrottle

log = logging.getLogger(__name__)


class Watch(ABC):
    """Looks in the background between `start` and `stop`, whatever a look raises."""

    def __init__(self, name: str, doing: str, pause_seconds: float) -> None:
        """`name`: the thread's; `doing`: what the log says of it if it fails."""
        self._doing = doing
        self._pause_seconds = pause_seconds
        """Between two looks; a look may change it."""
        self._throttle = LogThrottle(log)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Stop the thread; a pending look may outlast `timeout_seconds`."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    @abstractmethod
    def _look(self) -> None:
        """Look once."""

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._throttle.guarded(self._doing):
                self._look()
            self._stop.wait(self._pause_seconds)
