"""A short soak."""

from __future__ import annotations

from soak.soak import grown, soak

SHORT_TICKS = 1_500
ALLOWED = {"mebibytes": 12}
"""Memory takes longer than a short run to settle, and by chance, more processes and calls fall into
one half than into the other: descriptors and threads are compared with the start at the end."""


def test_nothing_is_left_of_processes_that_went_and_gpus_that_failed() -> None:
    assert grown(soak(SHORT_TICKS), ALLOWED) == []
