"""What came of each change, and of each advice that must not be given: a line of a table each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpu_bottleneck_exporter.prescription import model
from gpu_bottleneck_exporter.prescription.model import Prescription, Refusal, Score
from prescriptions.cases import FITTED
from prescriptions.measure import Glance, Pair

WRONG, DISTURBED, FITTED_ON = " ✗", " †", " °"
MUCH = 0.2
"""Cores in use by other programs from which a pair counts as disturbed."""
NOTHING = "nothing prescribed"
_DONE = {
    model.NUM_WORKERS: "{now:g} → {value:g} workers",
    model.CPU_LIMIT: "{now:g} → {value:g} cores",
    model.CPU_CORES: "{neighbours} → 0 neighbours",
    model.HOST_CODE: "host code removed",
    model.CHECKPOINTS: "checkpoints removed",
}
_CORES_ERROR = 0.05
"""Nobody sees smaller shares of a core."""


class Told(NamedTuple):
    """What was predicted: the busy share, and its interval."""

    busy: float
    low: float
    high: float


def _told(said: Prescription | Score | Refusal | None) -> Told | None:
    if isinstance(said, Score):
        return Told(said.predicted_busy_ratio, said.predicted_low_ratio, said.predicted_high_ratio)
    if isinstance(said, Prescription):
        return Told(said.busy_ratio, said.busy_low_ratio, said.busy_high_ratio)
    return None


class Row:
    """A change of a knob and what came of it, as it is shown. Shares of the time, 0-1."""

    def __init__(self, pair: Pair) -> None:
        said, advice = pair.said, pair.before.outlook.advice
        self.family, self.name, self.change = pair.chain.family, pair.chain.name, _change(pair)
        self.before = pair.before.busy
        self.after = pair.after.busy if pair.after else None
        """None: nothing was changed."""
        self.fitted = pair.chain.title in FITTED
        """Whether the interval was fitted on it."""
        self.said = _told(said)
        self.refused = said.reason if isinstance(said, Refusal) else None
        self.at_most = (
            isinstance(advice, Prescription) and advice.knob == pair.chain.knob and advice.at_most
        )
        self.strangers = max(one.strangers for one in (pair.before, pair.after) if one)
        """Cores that other programs used meanwhile: before or after, whichever is more."""
        self.own_score = pair.score.error_ratio if pair.score else None
        """The error that the exporter itself found afterwards."""
        self.error: float | None = None
        self.width: float | None = None
        """Outcome less prediction, and the width of the interval."""
        self.kept = self.inside = self.useful = False
        """Whether the outcome is no higher than the interval, and whether it lies in it; whether an
        upper bound was less than half of the hoped-for gain too high."""
        if self.said and self.after is not None:
            self._judge(self.said, self.after)

    def _judge(self, said: Told, after: float) -> None:
        self.error, self.width = after - said.busy, said.high - said.low
        self.kept, self.inside = after <= said.high, said.low <= after <= said.high
        self.useful = said.busy - after < (said.busy - self.before) / 2

    def __str__(self) -> str:
        marks = {
            WRONG: self.error is not None and not self.inside,
            DISTURBED: self.strangers > MUCH,
            FITTED_ON: self.fitted,
        }
        name = self.name + "".join(mark for mark, holds in marks.items() if holds)
        after = "" if self.after is None else f"{self.after:.0%}"
        errors = ("" if it is None else f"{100 * it:+.1f}" for it in (self.error, self.own_score))
        said = f"refused: {self.refused}" if self.refused else NOTHING
        if self.said:
            up_to = "up to " if self.at_most else ""
            said = f"{up_to}{self.said.busy:.0%} ({self.said.low:.0%} to {self.said.high:.0%})"
        cells = (self.family, name, self.change, f"{self.before:.0%}", said, after, *errors)
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must not be prescribed, and what was."""

    title: str
    busy: float
    said: str
    wrong: bool

    def __str__(self) -> str:
        family, _, name = self.title.partition(": ")
        return f"| {family} | {name}{WRONG if self.wrong else ''} | {self.busy:.0%} | {self.said} |"


def checks(found: Pair | Glance) -> list[Check]:
    """What must hold of the advice that was given before the change, whatever its number."""
    chain = found.chain
    if isinstance(found, Glance):
        advice = found.seen.outlook.advice
        wrong = isinstance(advice, Prescription) and advice.knob in chain.never
        return [Check(chain.title, found.seen.busy, _words(advice), wrong)]
    return [Check(chain.title, found.before.busy, fault, wrong=True) for fault in _faults(found)]


def _faults(pair: Pair) -> Iterator[str]:
    advice = pair.before.outlook.advice
    if isinstance(advice, Prescription) and _too_much(advice):
        yield _words(advice)
    if pair.after and (stray := pair.stray_score):
        yield f"{_change(pair)} was scored as {stray.value_before:g} → {stray.value_after:g}"


def _words(advice: Prescription | Refusal | None) -> str:
    """The advice in a few words."""
    if not isinstance(advice, Prescription):
        return f"refused: {advice.reason}" if advice else NOTHING
    up_to = "up to " if advice.at_most else ""
    uses = f", uses {advice.needs_cores:.1f} cores" if advice.needs_cores else ""
    change = f"{advice.knob} {advice.current_value:g} → {advice.value:g}"
    return f"{change}: {up_to}{advice.busy_ratio:.0%}{uses}"


def _change(pair: Pair) -> str:
    """What was done, in a few words."""
    chain, setting = pair.chain, pair.before.setting
    if pair.value is None:
        return "as prescribed"
    now, neighbours = setting.value(chain.knob), setting.neighbours
    done = _DONE[chain.knob].format(now=now, value=pair.value, neighbours=neighbours)
    return f"{done} (as prescribed)" if pair.followed else done


def _too_much(advice: Prescription) -> bool:
    """Whether it takes more than it says is there."""
    cores, memory = advice.free_cores, advice.free_memory_bytes
    return (cores is not None and advice.needs_cores > cores + _CORES_ERROR) or (
        memory is not None and (advice.needs_memory_bytes or 0) > memory
    )
