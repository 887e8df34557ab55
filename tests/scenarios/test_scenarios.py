"""Real processes starve a virtual GPU in known ways; the accounting must name the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scenarios.cases import CASES, Case
from scenarios.cgroups import Unavailable
from scenarios.matrix import row
from scenarios.measure import repeated

pytestmark = [pytest.mark.scenarios, pytest.mark.xdist_group("scenarios")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_idle_time_is_put_down_to_its_cause(case: Case, tmp_path: Path) -> None:
    try:
        results = repeated(case, tmp_path, print)
    except Unavailable as reason:
        if os.environ.get("CI") == "true" and not reason.kernel:
            raise
        pytest.skip(f"{reason}")
    print("\n".join(row(case, found) for found in results))  # noqa: T201 - for `pytest -s`
    wrong = "\n".join(f"{found.wrong}\n{found}" for found in results if found.wrong)
    assert not wrong, wrong
