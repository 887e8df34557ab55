"""Real loading libraries starve a virtual GPU; the accounting must name what it waits for.

These are the quick cases. `python -m stacks.matrix` measures all.
"""

from __future__ import annotations

import pytest

from scenarios.cgroups import Unavailable
from stacks.cases import CASES, Case
from stacks.measure import Found, measured
from stacks.venvs import VenvError
from support.tools import _missing
from support.waiting import note_repeated

QUICK = [case for case in CASES if case.quick]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.title)
def test_the_idle_time_is_put_down_to_its_cause(case: Case) -> None:
    for found in found_in(case):
        print(f"{case.name}: busy {found.busy:.0%}, {found.shares}")  # noqa: T201 - for `pytest -s`
        assert not found.wrong, f"{found.wrong}: {dict(found.shares)}\n{found.feeders}"


def test_each_family_has_a_case_that_keeps_its_gpu_busy() -> None:
    families = {case.family for case in CASES}
    healthy = {case.family for case in CASES if not any(case.expected)}
    assert families == healthy


def test_cases_are_told_apart_by_their_titles() -> None:
    titles = [case.title for case in CASES]
    assert sorted(set(titles)) == sorted(titles)


def found_in(case: Case) -> list[Found]:
    try:
        found, at_first = measured(case)
    except (Unavailable, VenvError) as reason:
        _missing(f"{reason}")
    if at_first:
        note_repeated([one for one in at_first if one.wrong])
    return found
