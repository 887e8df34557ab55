"""Limiting log lines: changes are logged, but not each time if they keep coming back."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MOST_LINES = 5
QUIET_SECONDS = 60.0


class LogThrottle:
    """Remembers what was logged: for one subject, at most `MOST_LINES` in `QUIET_SECONDS`.

    A job may make a fault come and go as often as it likes. A change beyond the limit is logged
    later, if it has lasted until then.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._log = log
        self._clock = clock
        self._known: dict[str, tuple[object, deque[float]]] = {}
        """By subject: the state that was logged last, and when the last ones were."""

    def is_new(self, subject: str, state: object, usual: object = None) -> bool:
        """Whether to log that `subject` is in `state`; it starts in state `usual`."""
        told, when = self._known.get(subject) or (usual, deque(maxlen=MOST_LINES))
        if told == state:
            return False
        now = self._clock()
        if len(when) == MOST_LINES and now - when[0] < QUIET_SECONDS:
            return False
        when.append(now)
        self._known[subject] = state, when
        return True

    def forget(self, name: str) -> None:
        """Drop all subjects that contain `name`: what it names is gone."""
        self._known = {about: told for about, told in self._known.items() if name not in about}

    def log_change(self, level: int, subject: str, trouble: object, said: str, over: str) -> None:
        """Log `said` at `level` while there is `trouble`, and `over` once there is none."""
        if self.is_new(subject, trouble):
            self._log.log(level if trouble else logging.INFO, "%s", said if trouble else over)

    def log_fault(self, subject: str, error: Exception | None) -> None:
        """Log that `subject` fails, with the traceback; without `error`, that it works again."""
        if not self.is_new(subject, _place(error)):
            return
        if error is None:
            self._log.info("%s works again", subject)
        else:
            self._log.error("%s: %s", subject, error, exc_info=error)

    @contextmanager
    def guarded(self, subject: str) -> Iterator[None]:
        """Swallow whatever fails inside and log it as a fault of `subject`."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - that is its purpose
            self.log_fault(subject, error)
        else:
            self.log_fault(subject, None)


def _place(error: Exception | None) -> object:
    """Type and place of the error: its text may differ each time."""
    if error is None:
        return None
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return type(error), trace and (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
