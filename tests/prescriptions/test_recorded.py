"""How good predictions are, on recorded changes of real loops.

`ERROR` was fitted on those of `FITTED`; the others judge it.
"""

from __future__ import annotations

from statistics import mean

import pytest

from gpu_bottleneck_exporter.prescription import advise
from gpu_bottleneck_exporter.prescription.model import (
    CHECKPOINTS,
    CPU_CORES,
    HOST_CODE,
    Prescription,
)
from prescriptions.cases import FITTED
from prescriptions.recorded import Change, load
from prescriptions.rows import MUCH

CHANGES = [change for change in load() if change.strangers <= MUCH]
"""Those that no other program may have spoilt."""


def predicted(change: Change) -> Prescription:
    """What the exporter says of it now."""
    if change.knob in {HOST_CODE, CHECKPOINTS, CPU_CORES}:
        found = advise.ADVISERS[change.knob](change.seen)
    else:
        found = advise.predict(change.seen, change.knob, change.value)
    assert isinstance(found, Prescription), f"{change.family}: {change.name}: {found}"
    return found


HELD_OUT = [one for one in CHANGES if f"{one.family}: {one.name}" not in FITTED]


@pytest.mark.parametrize("changes", [CHANGES, HELD_OUT], ids=["all", "held out"])
def test_predictions_are_off_by_three_points_at_most(changes: list[Change]) -> None:
    assert len(changes) >= 25
    assert mean(abs(one.outcome - predicted(one).busy_ratio) for one in changes) <= 0.03


def test_nine_of_ten_outcomes_lie_in_the_interval() -> None:
    told = [(one.outcome, predicted(one)) for one in HELD_OUT]
    assert (
        mean(said.busy_low_ratio <= outcome <= said.busy_high_ratio for outcome, said in told)
        >= 0.85
    )


def test_exact_predictions_are_not_vague() -> None:
    exact = [said for one in CHANGES if not (said := predicted(one)).at_most]
    assert len(exact) >= 10
    assert mean(said.busy_high_ratio - said.busy_low_ratio for said in exact) <= 0.18


def test_nine_of_ten_bounds_are_not_exceeded() -> None:
    bounds = [(one.outcome, said) for one in CHANGES if (said := predicted(one)).at_most]
    assert mean(outcome <= said.busy_high_ratio for outcome, said in bounds) >= 0.9
