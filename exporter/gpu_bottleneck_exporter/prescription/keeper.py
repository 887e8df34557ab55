"""The last minute of a GPU, its prescription, and the score of the last prediction."""

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
from gpu_bottleneck_exporter.prescription.thresholds import ADVICE
from gpu_bottleneck_exporter.schedule import CADENCE


class Setting(NamedTuple):
    """The current knobs of a job."""

    job: str
    """Key that survives a restart; empty: no process holds the GPU."""
    mains: frozenset[Started]
    workers: int
    """Children of the mains."""
    limit_cores: float | None


class _Baseline(NamedTuple):
    at: float
    setting: Setting
    observed: Observed


class _Trial(NamedTuple):
    """The predictions for a change."""

    alone: Score | None
    """Prediction if no other rank of the job changed; None if unknown."""
    together: Score


class Keeper:
    """The last minute of a GPU and its last change; monotonic seconds. Not thread-safe."""

    def __init__(self) -> None:
        self.outlook = model.NOTHING_KNOWN
        self._parts: deque[Observed] = deque()
        self._setting: Setting | None = None
        self._pending: Setting | None = None
        self._baseline: _Baseline | None = None
        self._trial: _Trial | None = None
        """The last change until its score is final."""
        self._score: Score | None = None
        """Score of the last change by the job of `_baseline`."""
        self.last_change_at = -math.inf
        self._due = 0.0
        self._starts_for = 0.0

    def add(
        self,
        at: float,
        part: Observed,
        setting: Setting,
        idle_gpus: int = 1,
        others_changed_at: float = -math.inf,
    ) -> None:
        """Add the observations up to `at`, made at `setting`.

        `others_changed_at`: time of another rank's last change.
        """
        if setting != self._setting:
            before, pending = self._setting, self._pending
            self._pending = setting
            # Not before the second part: workers start one by one.
            if before and before.mains == setting.mains and pending != setting:
                return
            self._adopt(at, setting)
            part = replace(part, worker_starts=0.0)  # the first start is no churn
        self._pending = None
        if not self._parts and part.busy < ADVICE.min_busy:
            self._starts_for += part.seconds
            if setting.job and self._starts_for >= ADVICE.min_window_seconds:
                self.outlook = self.outlook._replace(advice=Refusal("starting"))
            return
        self._parts.append(part)
        while sum(p.seconds for p in self._parts) - self._parts[0].seconds >= ADVICE.window_seconds:
            self._parts.popleft()
        self._conclude(
            at, idle_gpus, together=others_changed_at > self.last_change_at - ADVICE.window_seconds
        )

    def skip(self) -> None:
        """Skip an interval without observations."""
        self._pending = None

    def _adopt(self, at: float, setting: Setting) -> None:
        self._setting = setting
        self._parts.clear()
        self._starts_for = 0.0
        if self.outlook.mains != setting.mains:
            self.outlook = Outlook(mains=setting.mains)
        self.outlook = self.outlook._replace(advice=None)
        self._due = 0.0
        last = self._baseline
        if last is None or not setting.job:
            self._trial = None
            return
        is_pause = last.setting.workers and not setting.workers  # between two epochs
        if at - last.at > 3600 or last.setting.job != setting.job:  # noqa: PLR2004 another job
            self._baseline = self._trial = self._score = None
            self.last_change_at = at
        elif setting[2:] != last.setting[2:] and not is_pause:
            # Only the last change has a score, if predictable.
            self._trial, self._score, self.last_change_at = _trial(last, setting), None, at
        self.outlook = self.outlook._replace(score=self._score)

    def _conclude(self, at: float, idle_gpus: int, *, together: bool) -> None:
        parts = self._visible_parts()
        if at < self._due or not _enough(parts) or self._setting is None:
            return
        self._due = at + CADENCE.advice_seconds * idle_gpus
        observed = merged(parts)
        if self._trial is not None:
            score = self._trial.together if together else self._trial.alone
            self._score = replace(score, busy_ratio=observed.busy) if score else None
        if observed.seconds >= ADVICE.window_seconds:
            self._trial = None  # later effects are not of that change
        if self._setting.job:
            self._baseline = _Baseline(at, self._setting, observed)
        score = self._score if self._setting.job else None
        self.outlook = Outlook(self._advised(observed), score, observed, self._setting.mains)

    def _visible_parts(self) -> list[Observed]:
        """Observations with a visible cause; all if most have none."""
        visible = [part for part in self._parts if not part.is_unseen]
        unseen = [part for part in self._parts if part.is_unseen]
        return [*visible, *unseen] if _enough(unseen) and not _enough(visible) else visible

    def _advised(self, observed: Observed) -> Advice | None:
        new, old = advise(observed), self.outlook.advice
        if not isinstance(new, Prescription) or not isinstance(old, Prescription):
            return new
        if (new.knob, new.current_value) != (old.knob, old.current_value) or new.value <= old.value:
            return new
        # A higher value must gain 2 % over the last advice.
        same = predict(observed, old.knob, old.value)
        stays = isinstance(same, Prescription) and same.busy_ratio >= new.busy_ratio - 0.02
        return same if stays else new


def _enough(parts: list[Observed]) -> bool:
    return sum(part.seconds for part in parts) >= ADVICE.min_window_seconds


def _trial(last: _Baseline, now: Setting) -> _Trial | None:
    """The change from `last` to `now`, if of one knob and predictable."""
    before, observed = last.setting, last.observed
    if (before.workers != now.workers) == (before.limit_cores != now.limit_cores):
        return None
    if before.workers != now.workers:
        others = round(observed.idlers)
        knob, old = model.NUM_WORKERS, float(before.workers - others)
        new = float(max(now.workers - others, 0))
    elif before.limit_cores is None:
        return None
    else:
        # Without a limit, the job may use the whole machine.
        knob, old = model.CPU_LIMIT, before.limit_cores
        new = now.limit_cores or observed.cores + (observed.free_cores or 0.0)
    prediction = predict(observed, knob, new)
    if isinstance(prediction, Refusal):
        return None
    only, together = (
        Score(knob, old, new, p.busy_ratio, p.busy_low_ratio, p.busy_high_ratio, observed.busy)
        for p in (alone(prediction, observed), prediction)
    )
    return _Trial(None if observed.job_gpus > 1 and observed.slack is None else only, together)
