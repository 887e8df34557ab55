"""Real loading libraries starve a virtual GPU; the accounting must name what it waits for.

These are the quick cases. `python -m stacks.matrix` measures all.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scenarios.measure import Watched, judge
from stacks.cases import CASES, Case
from stacks.measure import found_in, side_by_side, stages

QUICK = [case for case in CASES if case.quick]
_STAGE_OF = {case.title: some for some in stages(QUICK, most=5) for case in some}


@pytest.fixture(scope="module")
def beside() -> Callable[[Case], list[Watched] | None]:
    """What is found in a case beside others of its kind, if it may run so."""
    known: dict[str, list[Watched] | None] = {}

    def found(case: Case) -> list[Watched] | None:
        if case.title not in known:
            some = _STAGE_OF[case.title]
            known.update(zip([one.title for one in some], side_by_side(some), strict=True))
        return known[case.title]

    return found


@pytest.mark.alone
@pytest.mark.quick
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.title)
def test_the_idle_time_is_put_down_to_its_cause(
    case: Case, beside: Callable[[Case], list[Watched] | None]
) -> None:
    judge([(found, found.right) for found in found_in(case, beside(case))])


def test_each_family_has_a_case_that_keeps_its_gpu_busy() -> None:
    families = {case.family for case in CASES}
    healthy = {case.family for case in CASES if not any(case.expected)}
    assert families == healthy


def test_cases_are_told_apart_by_their_titles() -> None:
    titles = [case.title for case in CASES]
    assert sorted(set(titles)) == sorted(titles)
