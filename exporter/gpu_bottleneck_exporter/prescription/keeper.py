"""The minute behind one GPU, what is prescribed from it, and how the last prediction did."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import NamedTuple

from gpu_bottleneck_exporter.host.process import Started
from gpu_bottleneck_exporter.prescription import model
from gpu_bottleneck_exporter.prescription.advise import Advice, advise, alone, predict
from gpu_bottleneck_exporter.prescription.model import Outlook, Prescription, Refusal, Score
from gpu_bottleneck_exporter.prescription.observed import Observed, merged

WINDOW_SECONDS = 60.0
"""Judged: long enough for slow batches, short enough to follow a job's phases."""
LEAST_SECONDS = 15.0
"""From less than this nothing is concluded."""
ADVISED_EVERY_SECONDS = 20.0
"""Times the number of idle GPUs: advice takes milliseconds, and must not grow with them."""
_STAYS = 0.02
"""A new value that brings less than this beyond the old one replaces it for nothing."""
_WORKS = 0.01


class Setting(NamedTuple):
    """The knobs of a job as they stand."""

    job: str
    """What a job has in common with itself after a restart; empty: nobody has the GPU."""
    mains: frozenset[Started]
    workers: int
    """And whatever else the mains have started."""
    limit_cores: float | None


class _Known(NamedTuple):
    """What was known of a setting when it ended."""

    at: float
    setting: Setting
    seen: Observed


class _Trial(NamedTuple):
    """A change that was noticed, and what was predicted for it."""

    alone: Score | None
    """If no other rank of the job has changed; None if it is unknown what these can take."""
    together: Score


class Keeper:
    """The last minute of one GPU, and the last change. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.outlook = model.NOTHING_KNOWN
        self._parts: deque[Observed] = deque()
        self._setting: Setting | None = None
        self._pending: Setting | None = None
        self._known: _Known | None = None
        self._trial: _Trial | None = None
        """The last change, until it has been judged."""
        self._score: Score | None = None
        """The outcome of the last change, for the job in `_known`."""
        self.turned = -math.inf
        """When a knob was last seen to be turned."""
        self._due = 0.0
        self._starts_for = 0.0

    def add(
        self,
        at: float,
        part: Observed,
        setting: Setting,
        idle_gpus: int = 1,
        others_turned: float = -math.inf,
    ) -> None:
        """Take in what was seen until `at`, while the knobs were at `setting`.

        `others_turned`: when a knob of another rank of the job was last turned.
        """
        if setting != self._setting:
            before, waited = self._setting, self._pending
            self._pending = setting
            # For two parts in a row: workers come one by one, and go between two epochs.
            if before and before.mains == setting.mains and waited != setting:
                return
            self._adopt(at, setting)
            part = replace(part, worker_starts=0.0)  # who has just come is no churn
        self._pending = None
        if not self._parts and part.busy < _WORKS:
            self._starts_for += part.seconds
            if setting.job and self._starts_for >= LEAST_SECONDS:
                self.outlook = self.outlook._replace(advice=Refusal("starting"))
            return
        self._parts.append(part)
        while sum(one.seconds for one in self._parts) - self._parts[0].seconds >= WINDOW_SECONDS:
            self._parts.popleft()
        self._conclude(at, idle_gpus, together=others_turned > self.turned - WINDOW_SECONDS)

    def skip(self) -> None:
        """Note that nothing was seen for a while."""
        self._pending = None

    def _adopt(self, at: float, setting: Setting) -> None:
        self._setting = setting
        self._parts.clear()
        self._starts_for = 0.0
        if self.outlook.mains != setting.mains:
            self.outlook = Outlook(mains=setting.mains)
        self.outlook = self.outlook._replace(advice=None)
        self._due = 0.0
        known = self._known
        if known is None or not setting.job:
            self._trial = None
            return
        again = known.setting.workers and not setting.workers  # between two epochs
        if at - known.at > model.REMEMBERED_SECONDS or known.setting.job != setting.job:
            self._known = self._trial = self._score = None
            self.turned = at
        elif setting[2:] != known.setting[2:] and not again:
            # A score is of the last change: without a prediction for it there is none.
            self._trial, self._score, self.turned = _tried(known, setting), None, at
        self.outlook = self.outlook._replace(score=self._score)

    def _conclude(self, at: float, idle_gpus: int, *, together: bool) -> None:
        parts = self._known_parts()
        if at < self._due or not _enough(parts) or self._setting is None:
            return
        self._due = at + ADVISED_EVERY_SECONDS * idle_gpus
        seen = merged(parts)
        if self._trial is not None:
            tried = self._trial.together if together else self._trial.alone
            self._score = replace(tried, busy_ratio=seen.busy) if tried else None
        if seen.seconds >= WINDOW_SECONDS:
            self._trial = None  # what comes later is no answer to that change
        if self._setting.job:
            self._known = _Known(at, self._setting, seen)
        score = self._score if self._setting.job else None
        self.outlook = Outlook(self._advised(seen), score, seen, self._setting.mains)

    def _known_parts(self) -> list[Observed]:
        """Without those that nobody saw, unless it is mostly so."""
        seen = [part for part in self._parts if not part.is_unseen]
        unseen = [part for part in self._parts if part.is_unseen]
        return [*seen, *unseen] if _enough(unseen) and not _enough(seen) else seen

    def _advised(self, seen: Observed) -> Advice | None:
        new, old = advise(seen), self.outlook.advice
        if not isinstance(new, Prescription) or not isinstance(old, Prescription):
            return new
        if (new.knob, new.current_value) != (old.knob, old.current_value) or new.value <= old.value:
            return new
        same = predict(seen, old.knob, old.value)
        stays = isinstance(same, Prescription) and same.busy_ratio >= new.busy_ratio - _STAYS
        return same if stays else new


def _enough(parts: list[Observed]) -> bool:
    return sum(part.seconds for part in parts) >= LEAST_SECONDS


def _tried(known: _Known, now: Setting) -> _Trial | None:
    """The change from `known` to `now`, if one knob was turned and its effect was predictable."""
    before, seen = known.setting, known.seen
    if (before.workers != now.workers) == (before.limit_cores != now.limit_cores):
        return None
    if before.workers != now.workers:
        others = round(seen.idlers)
        knob, old = model.NUM_WORKERS, float(before.workers - others)
        new = float(max(now.workers - others, 0))
    elif before.limit_cores is None:
        return None
    else:
        # Without a limit the job may use whatever the machine has.
        knob, old = model.CPU_LIMIT, before.limit_cores
        new = now.limit_cores or seen.cores + (seen.free_cores or 0.0)
    told = predict(seen, knob, new)
    if isinstance(told, Refusal):
        return None
    only, together = (
        Score(knob, old, new, it.busy_ratio, it.busy_low_ratio, it.busy_high_ratio, seen.busy)
        for it in (alone(told, seen), told)
    )
    return _Trial(None if seen.job_gpus > 1 and seen.slack is None else only, together)
