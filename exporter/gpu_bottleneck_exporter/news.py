"""What is worth a line in the log: a change, and not each time it comes back."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

MOST_LINES = 5
QUIET_SECONDS = 60.0


class News:
    """Remembers what was told: of one subject no more than `MOST_LINES` in `QUIET_SECONDS`.

    What changes again is told later, if it has stayed so by then: a job may make a fault come and
    go as often as it likes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds."""
        self._clock = clock
        self._told: dict[str, object] = {}
        self._when: dict[str, deque[float]] = {}

    def is_new(self, subject: str, state: object, usual: object = None) -> bool:
        """Whether to tell `state` of `subject` now; what was never told of is `usual`."""
        if self._told.get(subject, usual) == state:
            return False
        when = self._when.setdefault(subject, deque(maxlen=MOST_LINES))
        now = self._clock()
        if len(when) == MOST_LINES and now - when[0] < QUIET_SECONDS:
            return False
        when.append(now)
        self._told[subject] = state
        return True

    def fault(self, log: logging.Logger, subject: str, error: Exception | None) -> None:
        """Log that `subject` fails, with the traceback, or, without `error`, works again."""
        if not self.is_new(subject, _place(error)):
            return
        if error is None:
            log.info("%s works again", subject)
        else:
            log.error("%s: %s", subject, error, exc_info=error)


def _place(error: Exception | None) -> object:
    """Where it was raised: what it says may differ each time."""
    if error is None:
        return None
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return type(error), trace and (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
