"""Real processes starve a virtual GPU in known ways; accounting and alerts must name them.

Each case runs once, or twice if an alert was wrong, and is checked twice. Those that take little
CPU run at the same time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from scenarios.alerts import Listener, listening
from scenarios.cases import CASES, Case, stages
from scenarios.cgroups import Unavailable
from scenarios.matrix import row
from scenarios.measure import Measured, judge, measure
from support.tools import require

Measure = Callable[[Case], list[Measured]]
_each_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.quick] if case.quick else [])
        for case in CASES
    ],
)
pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener | None]:
    """None without a Prometheus: the accounting is checked all the same."""
    if shutil.which("prometheus") is None:
        yield None
        return
    with listening(tmp_path_factory.mktemp("rules")) as started:
        yield started


@pytest.fixture(scope="module", name="measured")
def measured_fixture(
    listener: Listener | None, tmp_path_factory: pytest.TempPathFactory
) -> Measure:
    results: dict[str, list[Measured] | Unavailable] = {}
    stage_of = {case.name: stage for stage in stages(CASES) for case in stage}

    def measured(case: Case) -> list[Measured]:
        if case.name not in results:
            stage = stage_of[case.name]
            try:
                folder = tmp_path_factory.mktemp("case")
                results.update(_measured(stage, folder, listener))
                # Alerts come hundreds of times as fast as in use: their order may be chance.
                again = [item for item in stage if only_alerts_wrong(results[item.name])]
                if again:
                    print("measured once more:", *names(again))  # noqa: T201 - for `pytest -s`
                    folder = tmp_path_factory.mktemp("again")
                    results.update(_measured(again, folder, listener))
            except Unavailable as reason:
                results.update(dict.fromkeys(names(stage), reason))
        result = results[case.name]
        if isinstance(result, Unavailable):
            pytest.skip(f"{result}")
        return result

    return measured


def _measured(
    stage: Sequence[Case], folder: Path, listener: Listener | None
) -> Iterator[tuple[str, list[Measured]]]:
    return zip(names(stage), measure(stage, folder, listener), strict=True)


def only_alerts_wrong(found: list[Measured] | Unavailable) -> bool:
    if isinstance(found, Unavailable) or any(item.right is False for item in found):
        return False
    return any(item.alerts_right is False for item in found)


def names(stage: Iterable[Case]) -> list[str]:
    return [case.name for case in stage]


@_each_case
def test_the_idle_time_is_put_down_to_its_cause(case: Case, measured: Measure) -> None:
    results = measured(case)
    judge([(f"{row(case, result)}\n{result}", result.right) for result in results])


@_each_case
def test_the_alert_of_its_cause_fires_and_no_other(case: Case, measured: Measure) -> None:
    require("prometheus", "prometheus")
    results = measured(case)
    heard = [result.heard for result in results if result.heard]
    assert len(heard) == len(case.expected)
    values = [f"{row(case, result)}\n{result.heard and result.heard.wrong}" for result in results]
    judge([*zip(values, (result.alerts_right for result in results), strict=True)])
