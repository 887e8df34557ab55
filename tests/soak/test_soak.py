"""A short soak."""

from __future__ import annotations

from soak.soak import grown, soak

SHORT_TICKS = 1_500
WARMING_UP_MEBIBYTES = 12
"""Memory takes longer than this to settle; descriptors and threads do not."""


def test_nothing_is_left_of_processes_that_went_and_gpus_that_failed() -> None:
    assert grown(soak(SHORT_TICKS), WARMING_UP_MEBIBYTES) == []
