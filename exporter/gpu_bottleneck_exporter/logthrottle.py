"""Limiting log lines: changes are logged, but not each time if they keep coming back."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

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
        known = self._known.get(subject)
        if (known[0] if known else usual) == state:
            return False
        when = known[1] if known else deque[float](maxlen=MOST_LINES)
        now = self._clock()
        if len(when) == MOST_LINES and now - when[0] < QUIET_SECONDS:
            return False
        when.append(now)
        self._known[subject] = state, when
        return True

    def forget(self, name: str) -> None:
        """Drop all subjects that contain `name`: what it names is gone."""
        self._known = {about: told for about, told in self._known.items() if name not in about}

    def log_change(
        self,
        level: int,
        subject: str,
        trouble: object,
        texts: tuple[str, str],
        *,
        err: object = None,
        **values: object,
    ) -> None:
        """Log a change of `trouble`.

        Args:
            level: The level while there is `trouble`; INFO once there is none.
            subject: What the limit of lines is for.
            trouble: The state; None: all is well.
            texts: The message while there is trouble, and the one once there is none.
            err: What went wrong.
            values: More pairs of the line.
        """
        if self.is_new(subject, trouble):
            self._log.log(
                level if trouble else logging.INFO, texts[not trouble], {**values, "err": err}
            )

    def log_fault(self, step: str, error: Exception | None, **values: object) -> None:
        """Log that `step` fails, with the traceback; without `error`, that it works again."""
        if error is None and not self._known:
            return  # nothing has ever failed
        if not self.is_new(" ".join((step, *map(str, values.values()))), _place(error)):
            return
        text = f"{step} failed" if error else f"{step} works again"
        level = logging.ERROR if error else logging.INFO
        self._log.log(level, text, {**values, "err": error}, exc_info=error)

    def guarded(self, step: str, **values: object) -> Guard:
        """Swallow whatever fails inside and log it as a fault of `step`, a constant text."""
        return Guard(lambda error: self.log_fault(step, error, **values))


class Guard:
    """A context that swallows exceptions: a class, as a generator takes four times as long."""

    __slots__ = ("_report",)

    def __init__(self, report: Callable[[Exception | None], None]) -> None:
        """`report` is called with the exception, or with None at an end without one."""
        self._report = report

    def __enter__(self) -> None:
        """Begin the guarded block."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool | None:
        """Report how the block ended; whether to swallow what it raised."""
        if error is not None and not isinstance(error, Exception):
            return False
        self._report(error)
        return error is not None


def _place(error: Exception | None) -> object:
    """Type and place of the error: its text may differ each time."""
    if error is None:
        return None
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return type(error), trace and (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
