"""Every cause on virtual GPUs: exporter, Prometheus and shipped rules name it, and only it."""

from __future__ import annotations

from pathlib import Path

from causes.cases import CASES, CLUSTERS, NOT_QUITE, Case
from causes.heard import Heard
from causes.matrix import table
from causes.stage import staged
from rules.parsed import rules
from scenarios.cases import CASES as SCENARIOS
from support.tools import require
from support.waiting import note_repeated

_STAGED_ELSEWHERE = {"GpuThresholdsMissing", "GpuNodeBottleneck"}
"""With promtool in tests/rules: without thresholds, all other rules are silent; and three jobs that
wait for one disk need a slow disk."""


def test_each_gpu_is_said_to_have_what_it_has_and_nothing_else(tmp_path: Path) -> None:
    require("prometheus", "prometheus")
    wrong = _wrong(staged(CASES, _made(tmp_path / "first")))
    if wrong:
        note_repeated(wrong)
        # Reports about the cluster as a whole ("") need all of them.
        again = CASES if "" in wrong else [case for case in CASES if case.name in wrong]
        wrong = _wrong(staged(again, _made(tmp_path / "again")))
    assert not wrong


def test_each_cause_of_the_rules_is_staged() -> None:
    known = {rule.labels["cause"] for rule in rules() if rule.name == "gpu:cause:evidence"}
    assert {cause for _, cause in _staged_alerts()} >= known


def test_each_alert_of_the_rules_is_staged() -> None:
    alerts = {rule.name for rule in rules() if rule.is_alert}
    assert {alert for alert, _ in _staged_alerts()} == alerts - {*_STAGED_ELSEWHERE}


def test_each_cause_has_a_healthy_twin() -> None:
    names = {case.name for case in CASES}
    with_twin = [case for case in CASES if case.name + NOT_QUITE in names]
    of_twins = {cause for case in with_twin for _, cause in _alerts(case)}
    here = {cause for case in CASES if not case.alone for _, cause in _alerts(case)}
    assert of_twins == here


def test_names_tell_situations_apart() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len({*names})


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _wrong(heard: list[Heard]) -> dict[str, list[str]]:
    """What is wrong, by case; prints everything, for `pytest -s` and for failures."""
    print(table(heard))  # noqa: T201
    found: dict[str, list[str]] = {}
    for one in heard:
        if one.wrong:
            found.setdefault(one.whose.case, []).append(f"{one.whose.title}: {one.wrong}")
    print(found)  # noqa: T201
    return found


def _staged_alerts() -> set[tuple[str, str]]:
    """Alerts and causes that must fire in some situation, here or among the scenarios."""
    here = {pair for case in CASES for pair in _alerts(case)}
    there = [one for case in SCENARIOS for expected in case.expected for one in expected.alerts]
    return here | {(one.alert, one.cause) for one in there}


def _alerts(case: Case) -> set[tuple[str, str]]:
    expected = [case.expected, *(gpu.expected for gpu in case.gpus)]
    expected += [CLUSTERS[case.cluster]] if case.cluster else []
    return {(one.alert.alert, one.alert.cause) for one in expected if one.alert}
