"""How good predictions are, on recorded changes of real loops.

`ERROR` was fitted on those of `FITTED`; the others judge it.
"""

from __future__ import annotations

from statistics import mean

import pytest

from gpu_bottleneck_exporter.prescription import advise
from gpu_bottleneck_exporter.prescription.model import CPU_LIMIT, NUM_WORKERS, Prescription
from prescriptions.cases import FITTED
from prescriptions.recorded import Change, load
from prescriptions.rows import MUCH

CHANGES = [change for change in load() if change.strangers <= MUCH]
"""Those that no other program may have spoilt."""
HELD_OUT = [one for one in CHANGES if f"{one.family}: {one.name}" not in FITTED]


def predicted(change: Change) -> Prescription | None:
    """What the exporter says of it now; None if it refuses."""
    if change.knob in {NUM_WORKERS, CPU_LIMIT}:
        found = advise.predict(change.seen, change.knob, change.value)
    else:
        found = advise.ADVISERS[change.knob](change.seen)
    return advise.alone(found, change.seen) if isinstance(found, Prescription) else None


def told(changes: list[Change], *, at_most: bool) -> list[tuple[float, Prescription]]:
    """Outcomes and predictions of one kind."""
    pairs = ((one.outcome, predicted(one)) for one in changes)
    return [(outcome, said) for outcome, said in pairs if said and said.at_most == at_most]


def test_few_are_refused() -> None:
    assert mean(predicted(one) is None for one in CHANGES) <= 0.1


@pytest.mark.parametrize("changes", [CHANGES, HELD_OUT], ids=["all", "held out"])
def test_two_sided_predictions_are_near_and_not_vague(changes: list[Change]) -> None:
    exact = told(changes, at_most=False)
    assert len(exact) >= 10
    assert mean(abs(outcome - said.busy_ratio) for outcome, said in exact) <= 0.03
    assert mean(said.busy_high_ratio - said.busy_low_ratio for _, said in exact) <= 0.18
    inside = [said.busy_low_ratio <= outcome <= said.busy_high_ratio for outcome, said in exact]
    assert mean(inside) >= 0.85


@pytest.mark.parametrize("changes", [CHANGES, HELD_OUT], ids=["all", "held out"])
def test_bounds_are_not_exceeded_and_near(changes: list[Change]) -> None:
    bounds = told(changes, at_most=True)
    assert len(bounds) >= 20
    assert mean(outcome <= said.busy_high_ratio for outcome, said in bounds) >= 0.9
    assert mean(abs(outcome - said.busy_ratio) for outcome, said in bounds) <= 0.03
