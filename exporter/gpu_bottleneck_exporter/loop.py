"""A thread that repeats a step until it is stopped."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from gpu_bottleneck_exporter.logthrottle import LogThrottle


class Loop:
    """Repeats a step with pauses in a thread; errors of a step are logged."""

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
            name: Name of the thread, also in the log.
            step: Returns the seconds until the next step: `math.inf` until `wake`, None for
                `pause_seconds`. SystemExit ends the step, for a replaced thread.
            pause_seconds: The default pause, also after a failed step.
            log: Logger for errors.
            last: Called at the end, in the thread.
        """
        self._name = name
        self._step = step
        self._pause_seconds = pause_seconds
        self._last = last
        self._faults = LogThrottle(log)
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._ended_ns: int | None = None
        """Monotonic end of the last step; None before `start`."""
        self.thread = self._new_thread()

    def start(self) -> None:
        """Start the thread."""
        self._ended_ns = time.monotonic_ns()
        self.thread.start()

    def wake(self) -> None:
        """End the pause, or skip the next one; from any thread."""
        self._wake.set()

    def stop(self, timeout_seconds: float = 2.0) -> bool:
        """End the thread after its step and return whether it has ended within the timeout."""
        self._stopping.set()
        self._wake.set()
        if timeout_seconds and self.thread.is_alive():
            self.thread.join(timeout_seconds)
        return not self.thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the thread is alive."""
        return self.thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called, which must end a long step."""
        return self._stopping.is_set()

    def rest(self, seconds: float) -> bool:
        """Pause within a step, regardless of `wake`; returns whether to continue."""
        return not self._stopping.wait(max(seconds, 0.0))

    def silent_seconds(self, now_ns: int) -> float:
        """Seconds since the last step ended; 0 before `start`."""
        return (now_ns - (now_ns if self._ended_ns is None else self._ended_ns)) / 1e9

    def replace(self) -> None:
        """Continue in a new thread, as this one hangs."""
        self.thread = self._new_thread()
        self.thread.start()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name=self._name, daemon=True)

    def _run(self) -> None:
        while not self._stopping.is_set() and self._goes_on():
            self._wake.clear()
            pause = None
            with suppress(SystemExit), self._faults.guarded("step", thread=self._name):
                pause = self._step()
            self._ended_ns = time.monotonic_ns()
            pause = self._pause_seconds if pause is None else pause
            if pause > 0 and not self._stopping.is_set():
                self._wake.wait(None if pause == math.inf else pause)
        if self._last and self._goes_on():
            with self._faults.guarded("step", thread=self._name):
                self._last()

    def _goes_on(self) -> bool:
        return threading.current_thread() is self.thread
