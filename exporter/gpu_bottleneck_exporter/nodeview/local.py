"""This process as a node: its sampler, and the last minutes of its counters."""

from __future__ import annotations

import threading
import time

from gpu_bottleneck_exporter.nodeview.build import moment_of, node_of
from gpu_bottleneck_exporter.nodeview.history import History, Trends
from gpu_bottleneck_exporter.nodeview.model import Node
from gpu_bottleneck_exporter.sampling.sampler import Sampler

WINDOW_SECONDS = 60.0
"""The span of the shares."""
KEPT_SECONDS = 300.0
"""The span of the trends."""
STEP_SECONDS = 5.0


class LocalNode:
    """The node document of a sampler. Thread-safe."""

    def __init__(self, sampler: Sampler, span_seconds: float | None = None) -> None:
        """Shares and trends cover `span_seconds` of what was recorded; None: 60 s and 5 min."""
        self._sampler = sampler
        self._history = History(span_seconds or WINDOW_SECONDS, span_seconds or KEPT_SECONDS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self) -> None:
        """Record every 5 s, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def record(self) -> None:
        """Keep the counters as they are now."""
        self._history.add(time.monotonic(), moment_of(self._sampler.state()))

    def read(self) -> Node:
        """The node now."""
        state = self._sampler.state()
        lately = self._history.lately(time.monotonic(), moment_of(state))
        return node_of(self._sampler, state, lately)

    def trends(self) -> Trends:
        """The course of the shares, by GPU."""
        return self._history.trends()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.record()
            self._stop.wait(STEP_SECONDS)
