from __future__ import annotations

from pathlib import Path

from e2e.accuracy import INTERVALS, measure, table


def test_busy_time_in_prometheus_is_true_at_any_scrape_interval(tmp_path: Path) -> None:
    results = measure(tmp_path)
    print(f"\n{table(results)}")  # noqa: T201 - for `pytest -s` and for failures
    assert [result.interval for result in results] == [*INTERVALS, *INTERVALS]
    off = [result for result in results if result.exporter.mean > 0.02]
    assert off == []
    unaccounted = [result for result in results if abs(result.accounted - 1) > 0.03]
    assert unaccounted == []
    assert list(tmp_path.iterdir()) == []
