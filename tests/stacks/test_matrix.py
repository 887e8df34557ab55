"""Which cases are held out, and what the table says about its run."""

from __future__ import annotations

from dataclasses import replace

from stacks.cases import CASES
from stacks.matrix import Row, summary, table


def test_a_third_of_the_cases_is_held_out_by_title_alone() -> None:
    held_out = sum(case.held_out for case in CASES)
    assert 0.25 <= held_out / len(CASES) <= 0.4
    assert all(
        replace(case, loop=(), expected=(), venv="torch", quick=not case.quick).held_out
        == case.held_out
        for case in CASES
    )


def test_the_summary_tells_both_shares_and_how_it_was_measured() -> None:
    row = Row("http: urllib3", "25%", "network 100%", "right", "2026-11-23 18:00", "94daa5b")
    wrong = replace(row, title="http: requests, a session", verdict="wrong")
    later = replace(row, title="http: aiohttp", run="2026-11-24 06:00", version="ce92f8e-dirty")
    told = summary([row, later, wrong])
    assert "| http | 2 of 3 (67%) | 2 of 2 (100%) | 0 of 1 (0%) |" in told
    assert told.startswith(
        "Measured on 2026-11-23 18:00 UTC, interrupted, resumed on 2026-11-24 06:00. "
        "Version: 94daa5b and ce92f8e-dirty.\n"
    )
    assert "| http | requests, a session ✗ | yes | network |" in table([wrong])
