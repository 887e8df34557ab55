"""How good predictions are, on recorded changes of real loops.

`ERROR` was fitted on a third of them; the others judge it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_bottleneck_exporter.prescription import advise
from gpu_bottleneck_exporter.prescription.model import CPU_LIMIT, NUM_WORKERS, Prescription
from prescriptions.changes import Change, faults, load, sums, told


def predicted(change: Change) -> Change:
    """It, with what the exporter says of it now."""
    assert change.seen is not None
    assert change.value is not None
    if change.knob in {NUM_WORKERS, CPU_LIMIT}:
        found = advise.predict(change.seen, change.knob, change.value)
    else:
        found = advise.ADVISERS[change.knob](change.seen)
    if isinstance(found, Prescription):
        return replace(change, said=told(advise.alone(found, change.seen)))
    return change


CHANGES = [predicted(change) for change in load() if change.is_quiet]


@pytest.mark.parametrize("held_out", [False, True])
def test_predictions_are_near_and_not_vague(held_out: bool) -> None:  # noqa: FBT001
    found = sums(one for one in CHANGES if not (held_out and one.is_fitted))
    assert faults(found) == []
    assert found["two-sided"] >= 10
    assert found["upper bounds"] >= 20
    assert found["refused"] <= 0.1 * found["pairs"]
