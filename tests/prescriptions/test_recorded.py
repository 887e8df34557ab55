"""How good predictions are, on recorded changes of real loops.

`ADVICE.prediction_error` was fitted on a third of them; the others judge it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import fmean

import pytest

from gpu_bottleneck_exporter.prescription import advise
from gpu_bottleneck_exporter.prescription.model import CPU_LIMIT, NUM_WORKERS, Prescription
from prescriptions.changes import Change, faults, load, sums, told


def predicted(change: Change) -> Change:
    """It, with what the exporter says of it now."""
    assert change.seen is not None
    assert change.value is not None
    if change.knob in {NUM_WORKERS, CPU_LIMIT}:
        result = advise.predict(change.seen, change.knob, change.value)
    else:
        result = advise.ADVISERS[change.knob](change.seen)
    if isinstance(result, Prescription):
        return replace(change, said=told(advise.alone(result, change.seen)))
    return change


ALL = load()
CHANGES = [predicted(change) for change in ALL if change.is_quiet]


@pytest.mark.parametrize("held_out", [False, True])
def test_predictions_are_near_and_not_vague(held_out: bool) -> None:  # noqa: FBT001
    result = sums(item for item in CHANGES if not (held_out and item.is_fitted))
    assert faults(result) == []
    assert result["two-sided"] >= 10
    assert result["upper bounds"] >= 20
    assert result["refused"] <= 0.1 * result["pairs"]


def error(changes: Iterable[Change]) -> float:
    """Mean error in points."""
    return fmean(100 * abs(result.error) for result in changes if result.error is not None)


def test_measuring_heavy_tails_halves_the_error() -> None:
    """Other programs disturbed these, and by that much even answers are off, too."""
    heavy = [(item, item.seen) for item in ALL if item.seen and (item.seen.spread or 0.0) > 0.3]
    as_if_even = [replace(item, seen=replace(result, spread=None)) for item, result in heavy]
    assert len(heavy) >= 2
    assert error(predicted(item) for item, _ in heavy) <= min(
        10.0, error(map(predicted, as_if_even)) / 2
    )
