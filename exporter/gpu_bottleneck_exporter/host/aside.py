"""Reading what lies in a process's own memory, which the process may hold up for ever.

Its command line, its environment and what it polls are in pages that may belong to a FUSE file
system that never answers, or to a handler of page faults: then whoever reads them waits as the
process would. So a thread beside reads them, and is left behind if it takes too long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

PATIENCE_SECONDS = 0.25
MOST_LEFT_BEHIND = 64
"""So many processes may hold a thread; of more, and of others meanwhile, nothing is read."""
T = TypeVar("T")


class _Call(Generic[T]):
    """Something to be read of process `pid`."""

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
        except Exception as error:  # noqa: BLE001 - raised where it was asked for
            self._error = error
        self.done.release()

    def answer(self) -> T:
        """Once it is done; raises what was raised."""
        if self._error is not None:
            raise self._error
        return self._answer[0]


class Aside:
    """Calls from any thread, one after the other."""

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience = patience_seconds
        self._turn = threading.Lock()
        self._calls: SimpleQueue[_Call[Any] | None] | None = None
        self._held_up: set[int] = set()

    def call(self, pid: int, what: Callable[[], T]) -> T | None:
        """What `what` returns, which reads memory of process `pid`; None where that holds it up.

        Raises what it raises.
        """
        with self._turn:
            if pid in self._held_up or len(self._held_up) >= MOST_LEFT_BEHIND:
                return None
            call = _Call(pid, what)
            calls = self._thread()
            calls.put(call)
            if not call.done.acquire(timeout=self._patience):
                # The thread ends when it gets on; the next call gets another one.
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
        pid = 0
        while call := calls.get():
            pid = call.pid
            call.run()
        self._held_up.discard(pid)


aside = Aside()
"""For all that the exporter reads of processes' memory."""
