"""What a test makes of a case."""

from __future__ import annotations

from scenarios.cgroups import Unavailable
from stacks.cases import Case
from stacks.measure import Found, measured
from stacks.venvs import VenvError
from support.judging import conclude
from support.tools import missing


def found_in(case: Case, first: list[Found] | None = None) -> list[Found]:
    """Measured alone, if it was not right at `first`, beside others."""
    try:
        return measured(case, first)[0]
    except (Unavailable, VenvError) as reason:
        missing(f"{reason}")


def judge(results: list[Found]) -> None:
    """Wrong if one is, else unknown if one is."""
    told = "\n".join(map(str, results))
    print(told)  # noqa: T201 - for `pytest -s`
    right = [found.right for found in results]
    conclude(told, right=False if False in right else None if None in right else True)
