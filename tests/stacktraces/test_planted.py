"""Whether the slow line of a real loop is named first."""

from __future__ import annotations

import pytest

from stacktraces import bench, planted

QUICK = {"collate", "lock"}


@pytest.mark.alone
@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[pytest.mark.quick] if k in QUICK else []) for k in planted.KINDS],
)
def test_the_slow_line_is_named_first(kind: str) -> None:
    result = bench.looked(kind, seconds=6)
    assert bench.is_right(kind, result), result
