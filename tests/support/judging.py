"""Judgement of results that chance and other programs affect: once an interval decides, or none.

One look gives margins: by how much each condition holds, negative where it does not. All is right
once all means are above zero by `_ERRORS` standard errors. It is wrong once one is below by as much
in looks that no other program disturbed: a busy machine is no reason to fail.

A single hiccup widens the interval for minutes. From `_MANY_LOOKS` on, it is therefore enough that
no mean is below zero and that all looks meet every condition but one, or two in a row.

Each judgement adds a line to the file that JUDGED names, if set: `.ci/run` counts them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import NoReturn, TypeVar

import psutil
import pytest

CROWDED_CORES = 0.15
"""Used by strangers, they disturb."""
LONGEST_SECONDS = 60.0
"""Looked on for, before it is given up."""
_LOOKS = 5
_ERRORS = 4.0
"""Standard errors that a mean of five samples exceeds in three of a thousand cases on one side."""
_MANY_LOOKS = 12
"""About what a minute has; each lasts 1.5 to 5 s."""
_HICCUP_LOOKS = 2
_KERNEL_THREADS = 2
"""Their parent."""
Result = TypeVar("Result")


class Strangers:
    """CPU time of the machine that neither we, nor what we started, nor the kernel took."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = _of_others()

    @property
    def cores(self) -> float:
        """Cores in use on average since this was made; processes that ended meanwhile count."""
        spent = _of_others() - self._before
        return max(spent / max(time.monotonic() - self._began, 1e-9), 0.0)

    @property
    def crowd(self) -> bool:
        """Whether they may have disturbed what we did."""
        return self.cores > CROWDED_CORES


@dataclass(frozen=True, slots=True)
class Look:
    """One look: its margins, and whether strangers disturbed it."""

    margins: tuple[float, ...]
    crowded: bool = False


def verdict(looks: Sequence[Look]) -> bool | None:
    """Whether it is right; None: that is not known yet."""
    if all(low >= 0 for low, _ in _intervals(looks)) and len(looks) >= _LOOKS:
        return True
    alone = [look for look in looks if not look.crowded]
    if any(high < 0 for _, high in _intervals(alone)):
        return False
    return True if len(looks) >= _MANY_LOOKS and _hold_but_once(looks) else None


def conclude(told: object, *, right: bool | None) -> None:
    """End a judgement: fail if it is wrong, skip if it is not known (None)."""
    if right is None:
        not_judged(told)
    _note("judged")
    assert right, f"{told}"


def not_judged(why: object) -> NoReturn:
    """Skip the test, and have it counted."""
    _note(f"not judged: {why}")
    pytest.skip(f"not judged: {why}")


def settled(measure: Callable[[], Result], wrong: Callable[[Result], object]) -> Result:
    """The result of `measure`, which took too long to repeat; not judged if wrong in a crowd."""
    others = Strangers()
    result = measure()
    outcome = wrong(result)
    conclude(outcome, right=(None if others.crowd else False) if outcome else True)
    return result


def _intervals(looks: Sequence[Look]) -> Iterator[tuple[float, float]]:
    """The interval of each mean margin; none of fewer samples than it takes."""
    if len(looks) >= _LOOKS:
        for margins in zip(*(look.margins for look in looks), strict=True):
            mean, error = fmean(margins), stdev(margins) / sqrt(len(margins))
            yield mean - _ERRORS * error, mean + _ERRORS * error


def _hold_but_once(looks: Sequence[Look]) -> bool:
    means = (fmean(margins) for margins in zip(*(look.margins for look in looks), strict=True))
    wrong = [at for at, look in enumerate(looks) if min(look.margins) < 0]
    one_hiccup = not wrong or wrong[-1] - wrong[0] < _HICCUP_LOOKS
    return one_hiccup and all(mean >= 0 for mean in means)


def _note(line: str) -> None:
    if path := os.environ.get("JUDGED"):
        assert "PYTEST_XDIST_WORKER" not in os.environ, "beside other tests: mark it `alone`"
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        with open(path, "a", encoding="utf-8") as file:
            file.write(" ".join(f"{line} {test}".split()) + "\n")


def _of_others() -> float:
    machine, we = psutil.cpu_times(), psutil.Process()
    ours = {we.pid, *(child.pid for child in we.children(recursive=True))}
    seconds = machine.user + machine.nice + machine.system + machine.steal
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.pid in ours or process.ppid() == _KERNEL_THREADS:
                seconds -= sum(process.cpu_times()[:4])
    return float(seconds)
