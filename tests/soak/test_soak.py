"""A short soak, and proof that a long one would find growth."""

from __future__ import annotations

import pytest

from soak.hurried import hurry
from soak.soak import CHURNED, GPUS, SCRAPED, Allowed, Figures, Result, grown, soak

SHORT_TICKS = 1_500
WARMING_UP = Allowed(mebibytes=12)
"""Memory takes longer than this to settle; descriptors and threads do not."""


def test_nothing_is_left_of_processes_that_went_and_gpus_that_failed() -> None:
    result = soak(SHORT_TICKS)
    assert result.run[-1].ticks > SHORT_TICKS // 2
    assert min(result.scrapes, result.reloads) > SCRAPED
    assert max(one.descriptors for one in result.run) > result.quiet.descriptors + CHURNED
    assert grown(result, WARMING_UP) == []


def made(**growth: float) -> Result:
    """A run whose figures each grow by this much over the second half."""
    first = Figures(0, 40.0, 100, 12)
    run = [first._replace(ticks=1000 * turn) for turn in range(100)]
    more = {name: getattr(first, name) + by for name, by in growth.items()}
    return Result(first, [*run[:66], *(one._replace(**more) for one in run[66:])], first, 9, 9)


@pytest.mark.parametrize(
    ("growth", "words"),
    [
        ({"mebibytes": 4.0}, "mebibytes grew from 40.0 to 44.0"),
        ({"descriptors": 50}, "descriptors grew from 100.0 to 150.0"),
        ({"threads": 2}, "threads grew from 12.0 to 14.0"),
    ],
)
def test_what_grows_is_told(growth: dict[str, float], words: str) -> None:
    assert grown(made(), Allowed()) == []
    (said,) = grown(made(**growth), Allowed())
    assert said.startswith(words)


@pytest.mark.parametrize("left", [{"descriptors": 110}, {"threads": 16}])
def test_what_is_left_over_is_told(left: dict[str, int]) -> None:
    result = made()
    (said,) = grown(result._replace(settled=result.settled._replace(**left)), Allowed())
    assert "when all was over" in said


def test_all_waits_are_hurried() -> None:
    names = hurry(1.0)
    for one in (
        "sampling.watching.DISCOVERY_SECONDS",
        "sampling.worker.SLOWLY",
        "nodeview.build.KEPT_SECONDS",
    ):
        assert f"gpu_bottleneck_exporter.{one}" in names
    assert GPUS > 1
