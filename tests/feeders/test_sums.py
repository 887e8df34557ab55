from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.feeders.job import Sums
from support.rows import rows

A, B = ("a", "in"), ("b", "in")
CAME = [{A: 0}, {A: 7, B: 500}, {B: 503}]
FULL = ("a", "full")


@rows(
    "history, now, ever",
    {
        "one comes, one goes": (CAME, {"in": 10}, {"in": 10}),
        "all are gone": ([*CAME, {}], {}, {"in": 10}),
        "one comes back": ([*CAME, {}, {A: 100_000}, {A: 100_001}], {"in": 11}, {"in": 11}),
        "it starts again": ([{A: 100}, {A: 110}, {A: 3}, {A: 5}], {"in": 12}, {"in": 12}),
        "a key that none gives": ([{A: 1, FULL: 1}, {A: 2}], {"in": 1}, {"in": 1, "full": 0}),
    },
)
def test_counters_of_all_sources_are_added_up(
    history: list[dict[tuple[str, str], int]], now: dict[str, int], ever: dict[str, int]
) -> None:
    sums: Sums[str] = Sums()
    for readings in history:
        sums.advance(dict(readings.items()))
    assert sums.known(sources=True) == now
    assert sums.known(sources=False) == ever


READINGS = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["in", "out"])), st.integers(0, 2**63)
)


@given(st.lists(READINGS, max_size=20))
def test_sums_never_fall(history: list[dict[tuple[str, str], int]]) -> None:
    sums: Sums[str] = Sums()
    before: dict[str, int] = {}
    for readings in history:
        sums.advance(dict(readings.items()))
        now = sums.known(sources=False)
        assert before.keys() <= now.keys()
        assert all(now[key] >= before[key] for key in before)
        before = now
