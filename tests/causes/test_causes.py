"""Every cause on virtual GPUs: exporter, Prometheus and shipped rules name it, and only it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import pytest

from causes.cases import CASES, CLUSTERS, NOT_QUITE, Case
from causes.heard import Whose
from causes.stage import staged
from rules.parsed import rules
from scenarios.cases import CASES as SCENARIOS
from scenarios.diagnoses import Heard
from support.judging import Strangers, conclude
from support.tools import require

_STAGED_ELSEWHERE = {
    "GpuThresholdsMissing",
    "GpuMonitoringAbsent",
    "GpuCountedTwice",
    "GpuNodeBottleneck",
    "GpuBudgetBurn",
    "GpuMemoryNotReleased",
    "GpuRequestsQueued",
    *("GpuReclaimable", "GpuReclaimableSoon"),
}
"""Alerts staged in tests/rules: without thresholds or targets, all others are silent; three
jobs that wait for one disk need a slow disk; a budget and a worn board take days; nothing here has
a device node or a memory limit; and virtual boards lose no link. No engine is scraped, and no job
is forgotten for hours."""


MOST_MISSED = 0.02
"""Share of all evaluations. With more, the machine is too slow: an hour of alerts is 30 s here."""


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mapping[str, list[str]], bool]:
    """Errors of both runs, by case, and whether want of CPU may explain them."""
    require("prometheus", "prometheus")
    require("cc", "gcc libc6-dev")
    others = Strangers()
    heard, missed = staged(CASES, tmp_path_factory.mktemp("causes"))
    faults = _wrong(heard)
    # Alerts come hundreds of times as fast as in use, and a node may be scraped late: by chance.
    if faults:
        # Those of the cluster as a whole ("") need all of them.
        again = CASES if "" in faults else [case for case in CASES if case.name in faults]
        heard, missed = staged(again, tmp_path_factory.mktemp("again"))
        faults = _wrong(heard)
    return faults, others.crowd or missed > MOST_MISSED


@pytest.mark.alone
@pytest.mark.quick
@pytest.mark.parametrize("name", [*(case.name for case in CASES), ""])
def test_prometheus_reports_the_expected_causes_and_no_others(
    name: str, wrong: tuple[Mapping[str, list[str]], bool]
) -> None:
    """An empty name stands for each node that several cases share, and each cluster."""
    faults, crowd = wrong
    fault = faults.get(name)
    conclude(fault, right=(None if crowd else False) if fault else True)


def _wrong(heard: Sequence[tuple[Whose, Heard]]) -> Mapping[str, list[str]]:
    """Errors by case; prints everything."""
    print(*heard, sep="\n")  # noqa: T201 - for `pytest -s` and for failures
    faults: dict[str, list[str]] = defaultdict(list)
    for whose, item in heard:
        if item.wrong:
            faults[whose.case].append(f"{whose.title}: {item.wrong}")
    return faults


def test_each_cause_of_the_rules_is_staged() -> None:
    causes = {rule.labels["cause"] for rule in rules() if rule.name == "gpu:cause:evidence"}
    causes -= {"memory_not_released", "near_memory_limit", "nvlink_degraded", "memory_worn"}
    causes -= {"kv_cache_full", "batch_limited", "load_imbalance", "no_demand", "engine_cpu_bound"}
    assert {cause for _, cause in _staged_alerts()} >= causes


def test_each_alert_of_the_rules_is_staged() -> None:
    alerts = {rule.name for rule in rules() if rule.is_alert}
    assert {alert for alert, _ in _staged_alerts()} == alerts - {*_STAGED_ELSEWHERE}


def test_each_cause_has_a_healthy_twin() -> None:
    names = {case.name for case in CASES}
    with_twin = [case for case in CASES if case.name + NOT_QUITE in names]
    of_twins = {cause for case in with_twin for _, cause in _alerts(case)}
    here = {cause for case in CASES if not case.alone for _, cause in _alerts(case)}
    assert of_twins == here


def _staged_alerts() -> set[tuple[str, str]]:
    """Alerts and causes that must fire in some situation, here or among the scenarios."""
    here = {pair for case in CASES for pair in _alerts(case)}
    there = [alert for case in SCENARIOS for expected in case.expected for alert in expected.alerts]
    return here | {(item.alert, item.cause) for item in there}


def _alerts(case: Case) -> set[tuple[str, str]]:
    expected = [case.expected, *(gpu.expected for gpu in case.gpus)]
    expected += [CLUSTERS[case.cluster]] if case.cluster else []
    return {(item.alert.alert, item.alert.cause) for item in expected if item.alert}
