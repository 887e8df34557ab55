"""A short soak."""

from __future__ import annotations

from soak.soak import CHURNED, SCRAPED, grown, soak

SHORT_TICKS = 1_500
WARMING_UP_MEBIBYTES = 12
"""Memory takes longer than this to settle; descriptors and threads do not."""


def test_nothing_is_left_of_processes_that_went_and_gpus_that_failed() -> None:
    result = soak(SHORT_TICKS)
    assert result.run[-1].ticks > SHORT_TICKS // 2
    assert min(result.scrapes, result.reloads) > SCRAPED
    assert max(one.descriptors for one in result.run) > result.quiet.descriptors + CHURNED
    assert grown(result, WARMING_UP_MEBIBYTES) == []
