"""Which cases are held out, what the table says about its run, and what a log's excerpt shows."""

from __future__ import annotations

from dataclasses import replace

from stacks.cases import CASES
from stacks.matrix import Row, summary, table
from stacks.measure import excerpt


def test_a_third_of_the_cases_is_held_out_by_title_alone() -> None:
    held_out = sum(case.held_out for case in CASES)
    assert 0.25 <= held_out / len(CASES) <= 0.4
    assert all(
        replace(case, loop=(), expected=(), venv="torch", quick=not case.quick).held_out
        == case.held_out
        for case in CASES
    )


def test_the_summary_tells_both_shares_where_one_was_wrong() -> None:
    http = [case for case in CASES if case.family == "http"]
    tuned, held_out = (next(one for one in http if one.held_out == out) for out in (False, True))
    rows = [Row(tuned, "right"), Row(held_out, "wrong", "25%", "asleep 100%")]
    told = summary([*rows, Row(tuned, "not had: no redis-server")])
    assert "| http | 1 of 2 (50%) | 1 of 1 (100%) | 0 of 1 (0%) |" in told
    assert f"| http | {held_out.name} ✗ | yes | network | 25% | asleep 100% |" in table(rows)


def test_an_excerpt_of_a_log_shows_the_first_error() -> None:
    raised = "Traceback (most recent call last)\nValueError: not enough memory\n"
    killed = "Fatal Python error: Illegal instruction\n"
    begin, end = "starting\n" * 500, "shutting down\n" * 500
    assert excerpt(begin + raised + end + killed).startswith(raised)
    assert excerpt(begin + killed + end + raised).startswith(killed)
    assert excerpt(begin + end + "stopped").endswith("\nstopped")
