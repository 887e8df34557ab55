"""Calls that a process may block forever, as they need its memory or its descriptors.

Its command line, its environment and its poll arguments lie in pages that may belong to a FUSE
file system that never answers, or to a userfaultfd handler: a reader then hangs as the process
would. So a separate thread calls, and is abandoned if it takes too long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

PATIENCE_SECONDS = 0.25
MOST_LEFT_BEHIND = 64
"""Processes that may hang a thread each; once so many do, none is asked."""
T = TypeVar("T")


class _Call(Generic[T]):
    """One call for process `pid`; the lock `done` is released when it has ended."""

    def __init__(self, pid: int, what: Callable[[], T]) -> None:
        self.pid = pid
        self.done = threading.Lock()
        self.done.acquire()
        self._what = what
        self._answer: list[T] = []
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._answer.append(self._what())
        except Exception as error:  # noqa: BLE001 - raised again in the calling thread
            self._error = error
        self.done.release()

    def answer(self) -> T:
        """The result, once it is done; raises what the call raised."""
        if self._error is not None:
            raise self._error
        return self._answer[0]


class Aside:
    """Runs calls from any thread, one after the other."""

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.cpu_seconds = 0.0
        """CPU time of all calls so far."""
        self._patience = patience_seconds
        self._turn = threading.Lock()
        self._calls: SimpleQueue[_Call[Any] | None] | None = None
        self._held_up: set[int] = set()

    def call(self, pid: int, what: Callable[[], T]) -> T | None:
        """The result of `what`, which asks process `pid`; None if that hangs.

        Raises what `what` raises.
        """
        with self._turn:
            if pid in self._held_up or len(self._held_up) >= MOST_LEFT_BEHIND:
                return None
            call = _Call(pid, what)
            calls = self._thread()
            calls.put(call)
            if not call.done.acquire(timeout=self._patience):
                # The thread ends if the call ever returns; the next call starts a new one.
                self._held_up.add(pid)
                calls.put(None)
                self._calls = None
                return None
        return call.answer()

    def _thread(self) -> SimpleQueue[_Call[Any] | None]:
        if self._calls is None:
            self._calls = SimpleQueue()
            serve = partial(self._serve, self._calls)
            threading.Thread(target=serve, name="aside", daemon=True).start()
        return self._calls

    def _serve(self, calls: SimpleQueue[_Call[Any] | None]) -> None:
        pid, before = 0, 0.0
        while call := calls.get():
            pid = call.pid
            call.run()
            used = time.thread_time()
            self.cpu_seconds += used - before
            before = used
        # The end of the calls: the last one was given up, but has returned after all.
        self._held_up.discard(pid)


aside = Aside()
"""For all reads of processes' memory."""
lending = Aside()
"""For their sockets, which those that hold up reads of their memory must not hold up for others."""
