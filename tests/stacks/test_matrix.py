"""Which cases are held out, which run together, and what the table says about its run."""

from __future__ import annotations

from dataclasses import replace

from stacks.cases import CASES
from stacks.matrix import Row, summary, table
from stacks.measure import stages

ROW = Row(
    title="http: urllib3",
    busy="25%",
    found="network 100%",
    verdict="right",
    run="2026-11-23 18:00",
    version="94daa5b",
)


def test_a_third_of_the_cases_is_held_out() -> None:
    held_out = sum(case.held_out for case in CASES)
    assert 0.25 <= held_out / len(CASES) <= 0.4


def test_the_draw_looks_at_nothing_but_the_title() -> None:
    http = [case for case in CASES if case.family == "http"]
    assert [case.name for case in http[:4] if case.held_out] == [
        "requests, a session",
        "requests, a connection each",
    ]
    assert all(
        replace(case, loop=(), expected=(), venv="torch", quick=not case.quick).held_out
        == case.held_out
        for case in CASES
    )


def test_only_light_cases_run_together() -> None:
    together = stages(CASES, 3)
    assert sorted(case.title for some in together for case in some) == sorted(
        case.title for case in CASES
    )
    assert max(map(len, together)) == 3
    assert all(case.light for some in together if len(some) > 1 for case in some)


def test_the_summary_tells_both_shares() -> None:
    wrong = replace(ROW, title="http: requests, a session", verdict="wrong")
    rows = [ROW, replace(ROW, title="http: aiohttp"), wrong]
    assert "| http | 2 of 3 (67%) | 2 of 2 (100%) | 0 of 1 (0%) |" in summary(rows)
    assert "| http | requests, a session ✗ | yes | network |" in table(rows)


def test_the_summary_names_its_run_and_version() -> None:
    assert summary([ROW, ROW]).startswith(
        "Measured on 2026-11-23 18:00 UTC, in one run. Version: 94daa5b.\n"
    )


def test_the_summary_tells_that_a_run_was_resumed_and_on_what() -> None:
    later = replace(ROW, run="2026-11-24 06:00", version="ce92f8e-dirty")
    assert summary([later, ROW]).startswith(
        "Measured on 2026-11-23 18:00 UTC, interrupted, resumed on 2026-11-24 06:00. "
        "Version: 94daa5b and ce92f8e-dirty.\n"
    )
