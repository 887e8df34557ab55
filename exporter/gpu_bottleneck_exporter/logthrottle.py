"""A rate limit for log lines about recurring changes."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

MAX_LINES = 5
THROTTLE_SECONDS = 60.0


class LogThrottle:
    """Limits log lines to `MAX_LINES` per subject in `THROTTLE_SECONDS`, as jobs can cause faults.

    A change beyond the limit is logged later if it lasts.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._log = log
        self._clock = clock
        self._logged: dict[str, tuple[object, deque[float]]] = {}
        """Last logged state and times of the last lines, by subject."""

    def is_new(self, subject: str, state: object, usual: object = None) -> bool:
        """Whether to log `state` of `subject`, which is `usual` at first."""
        logged = self._logged.get(subject)
        if (logged[0] if logged else usual) == state:
            return False
        times = logged[1] if logged else deque[float](maxlen=MAX_LINES)
        now = self._clock()
        if len(times) == MAX_LINES and now - times[0] < THROTTLE_SECONDS:
            return False
        times.append(now)
        self._logged[subject] = state, times
        return True

    def evict(self, name: str) -> None:
        """Drop all subjects that contain `name`."""
        self._logged = {k: entry for k, entry in self._logged.items() if name not in k}

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
            level: Level while there is `trouble`; INFO once there is none.
            subject: Subject of the limit.
            trouble: The state; None without trouble.
            texts: Message with trouble, and without.
            err: The error.
            values: Other pairs of the line.
        """
        if self.is_new(subject, trouble):
            self._log.log(
                level if trouble else logging.INFO, texts[not trouble], {**values, "err": err}
            )

    def log_fault(self, step: str, error: Exception | None, **values: object) -> None:
        """Log a failure of `step` with the traceback, or its recovery without `error`."""
        if error is None and not self._logged:
            return  # nothing has ever failed
        if not self.is_new(" ".join((step, *map(str, values.values()))), _place(error)):
            return
        text = f"{step} failed" if error else f"{step} works again"
        level = logging.ERROR if error else logging.INFO
        self._log.log(level, text, {**values, "err": error}, exc_info=error)

    def guarded(self, step: str, **values: object) -> Guard:
        """Suppress errors and log them as faults of `step`, a constant text."""
        return Guard(lambda error: self.log_fault(step, error, **values))


class Guard:
    """A context that suppresses errors; a generator takes four times as long."""

    __slots__ = ("_report",)

    def __init__(self, report: Callable[[Exception | None], None]) -> None:
        """`report` is called with the exception, or with None at an end without one."""
        self._report = report

    def __enter__(self) -> None:
        """Begin the guarded block."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool | None:
        """Report the end of the block; whether to suppress its error."""
        if error is not None and not isinstance(error, Exception):
            return False
        self._report(error)
        return error is not None


def _place(error: Exception | None) -> object:
    """Type and place of an error, as its text may vary."""
    if error is None:
        return None
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return type(error), trace and (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
