"""A thread that does one thing again and again, until it is told to stop."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from gpu_bottleneck_exporter.logthrottle import LogThrottle

STOP_SECONDS = 2.0
"""For a step to end that is no longer wanted; one that hangs is left alone."""


class Loop:
    """Takes a step, rests, and so on; what a step raises is logged, and costs only that step."""

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        pause_seconds: float = 1.0,
        *,
        log: logging.Logger,
        last: Callable[[], None] | None = None,
    ) -> None:
        """Nothing runs before `start`.

        Args:
            name: Of the thread, and of what the log says to fail.
            step: Returns the seconds until the next one (`math.inf`: until `wake`), None: as many
                as usual. SystemExit ends it, for a thread that was replaced.
            pause_seconds: The usual pause, also after a step that fails.
            log: For what a step raises.
            last: Called at the end, in the thread.
        """
        self._name = name
        self._step = step
        self._pause_seconds = pause_seconds
        self._last = last
        self._faults = LogThrottle(log)
        self._stopping = threading.Event()
        self._wanted = threading.Event()
        self._ended_ns: int | None = None
        """When the last step ended, monotonic; None before `start`."""
        self.thread = self._new_thread()

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._ended_ns = time.monotonic_ns()
        self.thread.start()

    def wake(self) -> None:
        """End the pause, or leave out the next one. For any thread."""
        self._wanted.set()

    def stop(self, timeout_seconds: float = STOP_SECONDS) -> bool:
        """End the thread after its step; whether it has ended. A timeout of 0 does not wait."""
        self._stopping.set()
        self._wanted.set()
        if timeout_seconds and self.thread.is_alive():
            self.thread.join(timeout_seconds)
        return not self.thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self.thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called: a step that takes long must end."""
        return self._stopping.is_set()

    def rest(self, seconds: float) -> bool:
        """Rest within a step, whoever calls `wake`; whether to go on."""
        return not self._stopping.wait(max(seconds, 0.0))

    def silent_seconds(self, now_ns: int) -> float:
        """Seconds since the last step ended; 0 before `start`."""
        return (now_ns - (now_ns if self._ended_ns is None else self._ended_ns)) / 1e9

    def replace(self) -> None:
        """Go on in another thread, as this one hangs; it ends once its step does."""
        self.thread = self._new_thread()
        self.thread.start()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name=self._name, daemon=True)

    def _run(self) -> None:
        while not self._stopping.is_set() and self._goes_on():
            self._wanted.clear()
            pause = None
            with suppress(SystemExit), self._faults.guarded("step", thread=self._name):
                pause = self._step()
            self._ended_ns = time.monotonic_ns()
            pause = self._pause_seconds if pause is None else pause
            if pause > 0 and not self._stopping.is_set():
                self._wanted.wait(None if pause == math.inf else pause)
        if self._last and self._goes_on():
            with self._faults.guarded("step", thread=self._name):
                self._last()

    def _goes_on(self) -> bool:
        """Whether this thread has not been replaced."""
        return threading.current_thread() is self.thread
