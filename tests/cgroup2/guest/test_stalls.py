"""Jobs that v2's limits hold back: the accounting must find the limit.

The machine is emulated and ten times slower than a real one: whatever the exporter misses for lack
of CPU time is `unknown`, as it should be, and is ignored here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting import stall
from scenarios import measure
from scenarios.cases import CASES, Case

CAUSES = {
    "quota 0.6 core, 4 workers": stall.CPU_QUOTA,
    "data larger than the memory limit": stall.MEMORY,
    "throttled disk reads": stall.STORAGE,
}
"""One for each kind of limit."""
LIMITED = {case.name: case for case in CASES if case.name in CAUSES}
WARM_NS, LOOK_NS = 40_000_000_000, 8_000_000_000
RIGHT = 0.5


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_WARM_NS", WARM_NS)
    monkeypatch.setattr(measure, "_LOOK_NS", LOOK_NS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CAUSES)
def test_a_limit_is_found(name: str, tmp_path: Path) -> None:
    case: Case = LIMITED[name]
    ((result,),) = measure.measure([case], tmp_path, None)
    print(result)  # noqa: T201 - the figures, for the log
    fields = {cause: share for cause, share in result.shares.items() if cause != stall.UNKNOWN}
    total = sum(fields.values())
    assert total > 0, f"{result}"
    assert fields.get(CAUSES[name], 0.0) / total >= RIGHT, f"{result}"
    assert max(fields, key=lambda cause: fields[cause]) == CAUSES[name]
