"""Changes of real loops: what was predicted, what came of them, and how good that is."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from gpu_bottleneck_exporter.prescription.model import Prescription
from gpu_bottleneck_exporter.prescription.observed import Observed
from gpu_bottleneck_exporter.prescription.thresholds import ADVICE
from prescriptions.cases import is_fitted

NOTHING = "nothing prescribed"
MUCH = 0.2
"""Cores in use by other programs from which a change counts as disturbed."""
MOST = {"mean error, points": 3.0, "mean width, points": 18.0, "their mean error, points": 3.0}
LEAST = {"inside": 0.85, "not exceeded": 0.9}
"""Lower bounds of `sums`, of undisturbed predictions that nothing was fitted on."""
RECORDED = Path(__file__).with_name("recorded.jsonl")
_KEPT = ("family", "name", "knob", "value", "seen", "outcome", "strangers")
"""Fields of a change that `RECORDED` has."""


class Told(NamedTuple):
    """A prediction of the busy share, and its interval."""

    busy: float
    low: float
    high: float
    at_most: bool
    """Whether it is an upper bound."""


def told(said: Prescription) -> Told:
    """A prediction of a prescription."""
    return Told(said.busy_ratio, said.busy_low_ratio, said.busy_high_ratio, said.at_most)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a knob. Shares of the time, 0-1."""

    family: str
    name: str
    knob: str
    value: float | None
    """Value of the setting, afterwards; None: nothing was changed."""
    seen: Observed | None
    """Observation by the exporter, before the change."""
    outcome: float | None
    """Busy share afterwards, by the board."""
    strangers: float
    """Cores that other programs used: before or after, whichever is more."""

    # What follows is not recorded.
    before: float = 0.0
    """Busy share before it, by the board."""
    done: str = ""
    """The change in words."""
    said: Told | None = None
    """Predicted outcome as reported to users."""
    refused: str = NOTHING
    """Why they were told nothing."""
    fault: str = ""
    """A fault of the report, which must be empty."""
    own_error: float | None = None
    """The one that the exporter itself found afterwards."""

    @property
    def is_fitted(self) -> bool:
        """Whether the interval was fitted on it."""
        return is_fitted(f"{self.family}: {self.name}")

    @property
    def is_quiet(self) -> bool:
        """Whether no other program may have spoilt it."""
        return self.strangers <= MUCH

    @property
    def error(self) -> float | None:
        """Outcome less prediction."""
        return self.outcome - self.said.busy if self.said and self.outcome is not None else None

    def __str__(self) -> str:
        result, words = self.said, self.refused
        if result:
            words = f"{result.busy:.0%} ({result.low:.0%} to {result.high:.0%})"
            words = f"up to {words}" if result.at_most else words
        outside = (
            result and self.outcome is not None and not result.low <= self.outcome <= result.high
        )
        marks = {" ✗": outside or self.fault, " †": not self.is_quiet, " °": self.is_fitted}
        return _line(
            self.family,
            "".join([self.name, *(mark for mark, holds in marks.items() if holds)]),
            *(self.done, f"{self.before:.0%}", self.fault or words),
            "" if self.outcome is None else f"{self.outcome:.0%}",
            *("" if it is None else f"{100 * it:+.1f}" for it in (self.error, self.own_error)),
        )


def sums(changes: Iterable[Change]) -> dict[str, float]:
    """How good predictions are, two-sided ones and bounds apart; errors and widths in points."""
    changes = [*changes]
    judged = [
        (change.said, change.outcome, change.before)
        for change in changes
        if change.said and change.outcome is not None
    ]
    exact = [(result, after) for result, after, _ in judged if not result.at_most]
    bounds = [item for item in judged if item[0].at_most]
    return {
        "pairs": len(changes),
        "refused": sum(not change.said for change in changes),
        "two-sided": len(exact),
        "mean error, points": _mean(100 * abs(after - result.busy) for result, after in exact),
        "mean width, points": _mean(100 * (result.high - result.low) for result, _ in exact),
        "inside": _mean(result.low <= after <= result.high for result, after in exact),
        "upper bounds": len(bounds),
        "their mean error, points": _mean(100 * abs(after - it.busy) for it, after, _ in bounds),
        "not exceeded": _mean(after <= result.high for result, after, _ in bounds),
        # Less than half of the hoped-for gain too high.
        "useful": _mean(
            result.busy - after < (result.busy - now) / 2 for result, after, now in bounds
        ),
    }


def _mean(values: Iterable[float]) -> float:
    """NaN of none: within every limit."""
    return fmean([*values] or [math.nan])


def faults(found: Mapping[str, float]) -> list[str]:
    """Which sums are not as they must be."""
    high = [name for name, most in MOST.items() if found[name] > most]
    low = [name for name, least in LEAST.items() if found[name] < least]
    return [f"{name}: {_shown(name, found[name])}" for name in high + low]


def _shown(name: str, value: float) -> str:
    if math.isnan(value):
        return ""
    if isinstance(value, int):
        return f"{value}"
    return f"{value:.1f}" if "points" in name else f"{value:.0%}"


def tables(changes: Sequence[Change]) -> str:
    """All there is to show, but for the changes themselves, and for what needed none."""
    changes = [
        change for change in changes if change.value is not None or change.before < ADVICE.healthy
    ]
    fresh = [change for change in changes if not change.is_fitted]
    groups = {
        "**all**": sums(changes),
        "**nothing fitted on them**": sums(fresh),
        "**of these, undisturbed**": sums(item for item in fresh if item.is_quiet),
    }
    shown = [_line(name, *map(_shown, result, result.values())) for name, result in groups.items()]
    reasons = Counter(change.refused for change in changes if not change.said)
    counts = [_line(*item) for item in reasons.most_common()]
    values = [
        _table("predictions", *sums(()), lines=shown),
        _table("no prediction", "pairs", lines=counts),
    ]
    return "\n\n".join(filter(None, values))


def table(changes: Sequence[Change]) -> str:
    """Every one of them; empty without any."""
    columns = ("before", "predicted", "after", "error", "exporter's own")
    return _table("family | case | change", *columns, lines=changes)


def _table(first: str, *columns: str, lines: Sequence[object]) -> str:
    """Empty without lines; `first`: columns of words."""
    rule = ["---"] * len(first.split("|")) + ["---:"] * len(columns)
    return "\n".join(map(str, [_line(first, *columns), _line(*rule), *lines])) if lines else ""


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def load() -> list[Change]:
    """The changes that `make bench-prescriptions` measured last."""
    rows = map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
    return [Change(**{**row, "seen": Observed(**row["seen"])}) for row in rows]


def save(changes: Iterable[Change]) -> None:
    """Replace them by those of `changes` that came about."""
    rows = (asdict(change) for change in changes if change.seen and change.outcome is not None)
    lines = (json.dumps({name: row[name] for name in _KEPT}) for row in rows)
    RECORDED.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
