"""The rules as a PrometheusRule, the dashboards as ConfigMaps: the same as in the repository."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm import chart
from helm.chart import Object, rendered
from support.tools import require

RULES = ("thresholds.yml", "recording.yml", "alerts.yml")
DASHBOARDS = sorted((chart.ROOT / "grafana").glob("*.json"))
LARGEST_OBJECT = 1_000_000
"""Kubernetes takes a little more than a million bytes."""
CHANGED = chart.case("rules")
WANTED = CHANGED["prometheusRule"]


def source() -> list[Object]:
    """The groups of the rule files."""
    files = [chart.ROOT / "rules" / name for name in RULES]
    return [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]


def groups(found: chart.Rendered) -> list[Object]:
    return list(found.one("PrometheusRule")["spec"]["groups"])


def rules(of: list[Object]) -> list[dict[str, Any]]:
    return [rule for group in of for rule in group["rules"]]


def alerts(of: list[Object]) -> list[dict[str, Any]]:
    return [rule for rule in rules(of) if "alert" in rule]


def thresholds(of: list[Object]) -> list[tuple[str, str, Any]]:
    prefix = "gpu:threshold:"
    found = [rule for rule in rules(of) if rule.get("record", "").startswith(prefix)]
    return [(r["record"].removeprefix(prefix), r["expr"], r.get("labels")) for r in found]


changed = pytest.fixture(lambda: groups(rendered(CHANGED)))


def test_the_rules_are_those_of_the_repository_and_none_by_default() -> None:
    assert groups(rendered(chart.case("rules-as-they-are"))) == source()
    assert rendered().of("PrometheusRule") == rendered().of("ConfigMap") == []


@pytest.mark.parametrize("name", ["rules-as-they-are", "rules"])
def test_promtool_accepts_them(name: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": groups(rendered(chart.case(name)))}))
    command = [require("promtool", "prometheus"), "check", "rules", f"{file}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_object_says_what_it_is_told() -> None:
    metadata = rendered(CHANGED).one("PrometheusRule")["metadata"]
    assert metadata["namespace"] == WANTED["namespace"]
    assert WANTED["labels"].items() <= metadata["labels"].items()
    assert metadata["annotations"] == WANTED["annotations"]


def test_disabled_alerts_are_gone_and_nothing_else(changed: list[Object]) -> None:
    before, after = (
        [r.get("alert") or r["record"] for r in rules(of)] for of in (source(), changed)
    )
    assert {*WANTED["disabledAlerts"]} <= {*before}
    assert after == [name for name in before if name not in WANTED["disabledAlerts"]]


def test_thresholds_are_replaced_by_name_and_no_others(changed: list[Object]) -> None:
    new = {
        "underused": "vector(0.4)",
        "held_bytes": "vector(1073741824)",
        "nvlink_peak_bytes": "vector(100000000000)",
        "idle": WANTED["thresholds"]["idle"],
    }
    assert set(new) == set(WANTED["thresholds"])
    expected = [(name, new.get(name, expr), labels) for name, expr, labels in thresholds(source())]
    assert thresholds(changed) == expected


def test_labels_go_to_every_alert_and_to_no_recording(changed: list[Object]) -> None:
    for rule in rules(changed):
        labels = rule.get("labels", {})
        assert (WANTED["alertLabels"].items() <= labels.items()) is ("alert" in rule)
    assert all("severity" in rule["labels"] for rule in alerts(changed))


def test_links_lead_to_ones_own_runbooks_and_grafana(changed: list[Object]) -> None:
    paths = {rule["annotations"]["dashboard_path"] for rule in alerts(source())}
    links = {f"https://grafana.example.org{path}" for path in paths}
    for rule in alerts(changed):
        page, told = f"{rule['alert']}.md", rule["annotations"]
        assert told["runbook_url"] == f"https://runbooks.example.org/gpu/{page}"
        assert (chart.ROOT / "rules/runbooks" / page).is_file()
        assert told["dashboard_url"] in links
        assert "dashboard_path" not in told


def test_alerts_of_a_job_may_have_its_namespace(changed: list[Object]) -> None:
    owners = {rule["alert"]: rule["labels"]["owner"] for rule in alerts(source())}
    told = {(owners[rule["alert"]], rule["labels"].get("namespace")) for rule in alerts(changed)}
    namespace = "{{ or $labels.workload_namespace $labels.namespace }}"
    assert told == {("job", namespace), ("platform", None)}
    assert not any("namespace" in rule["labels"] for rule in alerts(source()))


def test_older_engines_get_no_keep_firing_for(changed: list[Object]) -> None:
    assert any("keep_firing_for" in rule for rule in alerts(source()))
    assert not any("keep_firing_for" in rule for rule in alerts(changed))


def test_templates_of_prometheus_are_left_alone(changed: list[Object]) -> None:
    told = {rule["annotations"]["description"] for rule in alerts(source())}
    assert any("{{ $labels.instance }}" in text for text in told)
    assert {rule["annotations"]["description"] for rule in alerts(changed)} <= told


def test_dashboards_are_those_of_the_repository_to_the_byte() -> None:
    values = chart.case("dashboards")["dashboards"]
    maps = rendered(chart.case("dashboards")).of("ConfigMap")
    shown = {name: text.encode() for found in maps for name, text in found["data"].items()}
    assert shown == {path.name: path.read_bytes() for path in DASHBOARDS}
    assert len(maps) == len(DASHBOARDS) > 0
    for found in maps:
        assert found["metadata"]["namespace"] == values["namespace"]
        assert found["metadata"]["labels"]["grafana_dashboard"] == "yes"
        annotations = {**values["annotations"], "grafana_folder": values["folder"]}
        assert found["metadata"]["annotations"] == annotations


def test_dashboards_are_where_grafanas_chart_looks_for_them() -> None:
    (found, *_) = rendered(dashboards={"enabled": True, "folder": ""}).of("ConfigMap")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["namespace"] == chart.NAMESPACE
    assert "annotations" not in found["metadata"]


def test_nothing_is_too_large() -> None:
    everything = {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}
    assert all(len(json.dumps(o)) < LARGEST_OBJECT for o in rendered(everything).objects)
