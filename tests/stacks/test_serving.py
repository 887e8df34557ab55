"""Engines on virtual GPUs, scraped by a real Prometheus: each has its cause, its twin none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from stacks.serving import SERVING, Engine, Shares, scraped
from support.judging import settled
from support.rows import beside, rows
from support.tools import require

_OF_ITS_TIME = 0.9
Row = Mapping[str, Any]


def _engine(row: Row) -> Engine:
    return Engine(("inference", *row["engine"].split()), tuple(row["clients"].split()))


def _wrong(found: list[Shares], told: str) -> str | None:
    print(*found)  # noqa: T201 - for `pytest -s`
    ill, twin = found
    share, others = ill.get(told, 0.0), SERVING & twin.keys()
    if share >= _OF_ITS_TIME and not others:
        return None
    return f"{told} {share:.0%}, of {ill}; the twin: {twin}"


@pytest.mark.alone
@rows("row", beside(__file__, "serving.yml"))
def test_an_engine_is_told_what_holds_it_up_and_its_twin_nothing(row: Row) -> None:
    require("prometheus", "prometheus")
    require("cc", "gcc libc6-dev")
    pair = [_engine(row), _engine({**row, **row["twin"]})]
    with scraped(pair) as engines:
        settled(engines.shares, lambda found: _wrong(found, row["told"]))
