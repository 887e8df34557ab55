"""A short soak."""

from __future__ import annotations

from soak.soak import grown, soak

SHORT_TICKS = 1_500
ALLOWED = {"mebibytes": 12, "threads": 1}
"""Memory takes longer than this to settle; and in so short a run, chance has more processes come in
one half than in the other. Whether their descriptors are closed is seen at the end."""


def test_nothing_is_left_of_processes_that_went_and_gpus_that_failed() -> None:
    assert grown(soak(SHORT_TICKS), ALLOWED) == []
