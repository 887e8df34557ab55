from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.feeders.job import Sums


def test_sources_come_and_go() -> None:
    sums: Sums[str] = Sums()
    sums.advance({("a", "in"): 0})
    sums.advance({("a", "in"): 7, ("b", "in"): 500})
    sums.advance({("b", "in"): 503})
    assert sums.known(sources=True) == {"in": 10}
    sums.advance({})
    assert sums.known(sources=True) == {}
    assert sums.known(sources=False) == {"in": 10}
    sums.advance({("a", "in"): 100_000})
    sums.advance({("a", "in"): 100_001})
    assert sums.known(sources=True) == {"in": 11}


def test_a_source_that_starts_again_takes_nothing_away() -> None:
    sums: Sums[str] = Sums()
    for value in (100, 110, 3, 5):
        sums.advance({("a", "in"): value})
    assert sums.known(sources=True) == {"in": 12}


def test_a_key_that_no_source_gives_is_unknown() -> None:
    sums: Sums[str] = Sums()
    sums.advance({("a", "some"): 1, ("a", "full"): 1})
    sums.advance({("a", "some"): 2})
    assert sums.known(sources=True) == {"some": 1}


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
