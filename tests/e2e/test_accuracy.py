from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.accuracy import INTERVALS, Result, measure, table
from support.judging import settled


def wrong(results: Sequence[Result]) -> list[Result]:
    """GPUs with a wrong busy share, or with missing time."""
    return [result for result in results if result.mean > 0.02 or abs(result.accounted - 1) > 0.03]


@pytest.mark.alone
def test_busy_time_in_prometheus_is_true_at_any_scrape_interval(tmp_path: Path) -> None:
    results = settled(lambda: measure(tmp_path), wrong)
    print(f"\n{table(results)}")  # noqa: T201 - for `pytest -s` and for failures
    assert [result.interval for result in results] == [*INTERVALS, *INTERVALS]
    assert wrong(results) == []
    assert list(tmp_path.iterdir()) == []
