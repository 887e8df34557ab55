"""Calls that a process may block forever, as they need its memory or its descriptors.

Its command line, its environment and its poll arguments lie in pages that may belong to a FUSE
file system that never answers, or to a userfaultfd handler: a reader then hangs as the process
would. So a separate thread calls, and is abandoned if it takes too long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

PATIENCE_SECONDS = 0.25
"""A read takes microseconds unless it hangs; meanwhile two passes over the feeders are missed."""
MOST_LEFT_BEHIND = 64
"""Processes that may hang a thread each; once so many do, none is asked."""
T = TypeVar("T")
_Answers = SimpleQueue[tuple[T | None, Exception | None]]
_Calls = SimpleQueue[tuple[int, Callable[[], Any], _Answers[Any]] | None]
"""By pid; None at the end."""


class Aside:
    """Runs calls from any thread, one after the other."""

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.cpu_seconds = 0.0
        """CPU time of all calls so far."""
        self._patience = patience_seconds
        self._turn = threading.Lock()
        self._calls: _Calls | None = None
        self._held_up: set[int] = set()

    def call(self, pid: int, what: Callable[[], T]) -> T | None:
        """The result of `what`, which asks process `pid`; None if that hangs.

        Raises what `what` raises.
        """
        answers: _Answers[T] = SimpleQueue()
        with self._turn:
            if pid in self._held_up or len(self._held_up) >= MOST_LEFT_BEHIND:
                return None
            if self._calls is None:
                self._calls = SimpleQueue()
                begun = (self._calls,)
                threading.Thread(target=self._serve, args=begun, name="aside", daemon=True).start()
            calls = self._calls
            calls.put((pid, what, answers))
            try:
                answer, error = answers.get(timeout=self._patience)
            except Empty:
                # The thread ends if the call ever returns; the next call starts a new one.
                self._held_up.add(pid)
                calls.put(None)
                self._calls = None
                return None
        if error is not None:
            raise error
        return answer

    def _serve(self, calls: _Calls) -> None:
        pid, before = 0, 0.0
        while call := calls.get():
            pid, what, answers = call
            try:
                answers.put((what(), None))
            except Exception as error:  # noqa: BLE001 - raised again in the calling thread
                answers.put((None, error))
            used = time.thread_time()
            self.cpu_seconds += used - before
            before = used
        # The end of the calls: the last one was given up, but has returned after all.
        self._held_up.discard(pid)


aside = Aside()
"""For all reads of processes' memory."""
lending = Aside()
"""For their sockets, which those that hold up reads of their memory must not hold up for others."""
