"""What came of each change, and of each advice that must not be given: a line of a table each."""

from __future__ import annotations

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
_REMOVED = {
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
        said, score, advice = pair.said, pair.score, pair.before.outlook.advice
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
        self.own_score = score.error_ratio if score else None
        """The error that the exporter itself found afterwards."""

    @property
    def error(self) -> float | None:
        """Outcome less prediction, of an upper bound as well: each change that is staged is one
        that can bring all that is hoped for."""
        return self.after - self.said.busy if self.said and self.after is not None else None

    @property
    def width(self) -> float | None:
        """Of the interval."""
        return self.said.high - self.said.low if self.said else None

    @property
    def kept(self) -> bool:
        """Whether the outcome is no higher than the interval."""
        return self.said is not None and self.after is not None and self.after <= self.said.high

    @property
    def inside(self) -> bool:
        """Whether the outcome lies in the interval."""
        return self.kept and (self.after or 0.0) >= (self.said.low if self.said else 0.0)

    @property
    def useful(self) -> bool:
        """Whether an upper bound was less than half of the hoped-for gain too high."""
        if self.after is None or self.said is None:
            return False
        return self.said.busy - self.after < (self.said.busy - self.before) / 2

    def __str__(self) -> str:
        mark = WRONG if self.error is not None and not self.inside else ""
        mark += DISTURBED if self.strangers > MUCH else ""
        mark += FITTED_ON if self.fitted else ""
        after = "" if self.after is None else _percent(self.after)
        error = "" if self.error is None else f"{100 * self.error:+.1f}"
        own = "" if self.own_score is None else f"{100 * self.own_score:+.1f}"
        cells = (self.family, f"{self.name}{mark}", self.change, _percent(self.before))
        return f"| {' | '.join((*cells, self._foretold(), after, error, own))} |"

    def _foretold(self) -> str:
        if self.said is None:
            return f"refused: {self.refused}" if self.refused else NOTHING
        up_to = "up to " if self.at_most else ""
        ends = f"{_percent(self.said.low)} to {_percent(self.said.high)}"
        return f"{up_to}{_percent(self.said.busy)} ({ends})"


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must not be prescribed, and what was."""

    family: str
    name: str
    busy: float
    said: str
    wrong: bool

    @property
    def title(self) -> str:
        """By which it is chosen."""
        return f"{self.family}: {self.name}"

    def __str__(self) -> str:
        mark = WRONG if self.wrong else ""
        return f"| {self.family} | {self.name}{mark} | {_percent(self.busy)} | {self.said} |"


def checks(found: Pair | Glance) -> list[Check]:
    """What must hold of the advice that was given before the change, whatever its number."""
    chain = found.chain
    if isinstance(found, Glance):
        advice = found.seen.outlook.advice
        wrong = isinstance(advice, Prescription) and advice.knob in chain.never
        return [Check(chain.family, chain.name, found.seen.busy, told(advice), wrong)]
    advice, faults = found.before.outlook.advice, []
    if isinstance(advice, Prescription) and _too_much(advice):
        faults.append(told(advice))
    if found.after and (stray := found.stray_score):
        faults.append(
            f"{_change(found)} was scored as {stray.value_before:g} → {stray.value_after:g}"
        )
    busy = found.before.busy
    return [Check(chain.family, chain.name, busy, fault, wrong=True) for fault in faults]


def told(advice: Prescription | Refusal | None) -> str:
    """The advice in a few words."""
    if isinstance(advice, Refusal):
        return f"refused: {advice.reason}"
    if advice is None:
        return NOTHING
    up_to = "up to " if advice.at_most else ""
    uses = f"uses {advice.needs_cores:.1f} cores" if advice.needs_cores else ""
    change = f"{advice.knob} {advice.current_value:g} → {advice.value:g}"
    return ", ".join(filter(None, (f"{change}: {up_to}{_percent(advice.busy_ratio)}", uses)))


def _change(pair: Pair) -> str:
    """What was done, in a few words."""
    chain, setting, value = pair.chain, pair.before.setting, pair.value
    if value is None:
        return "as prescribed"
    by_itself = " (as prescribed)" if pair.followed else ""
    if chain.knob == model.CPU_CORES:
        return f"{setting.neighbours} → 0 neighbours"
    if chain.knob in _REMOVED:
        return _REMOVED[chain.knob]
    unit = {model.NUM_WORKERS: "workers", model.CPU_LIMIT: "cores"}[chain.knob]
    return f"{setting.value(chain.knob):g} → {value:g} {unit}{by_itself}"


def _too_much(advice: Prescription) -> bool:
    """Whether it takes more than it says is there."""
    cores = advice.free_cores is not None and advice.needs_cores > advice.free_cores + _CORES_ERROR
    memory = (
        advice.free_memory_bytes is not None
        and (advice.needs_memory_bytes or 0) > advice.free_memory_bytes
    )
    return cores or memory


def _percent(share: float) -> str:
    return f"{share:.0%}"
