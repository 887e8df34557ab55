"""The rules as a PrometheusRule, the dashboards as ConfigMaps: the same as in the repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import yaml

from gpu_bottleneck_exporter import rulepack
from gpu_bottleneck_exporter.commands.rules import RuleOptions, printed
from helm import chart
from helm.chart import Object, each_case, rendered
from support.applied import MOST_APPLIED_BYTES, applied_bytes

RULES = ("thresholds.yml", "recording.yml", "alerts.yml", "reclaim.yml", "serving.yml")
"""Files in the order of their objects."""
DASHBOARDS = sorted((chart.ROOT / "grafana").glob("*.json"))
CHANGED = chart.case("rules")
WANTED = CHANGED["prometheusRule"]
CHANGES = rulepack.Changes(
    severities={
        **dict.fromkeys(WANTED["disabledAlerts"], rulepack.OFF),
        **{
            name: change["severity"] if change.get("enabled", True) else rulepack.OFF
            for name, change in WANTED["alerts"].items()
        },
    },
    without_keep_firing=not WANTED["keepFiringFor"],
    runbook_base=CHANGED["runbookBaseUrl"],
    grafana_url=CHANGED["grafanaUrl"],
    workload_namespace=WANTED["workloadNamespace"],
)
"""Values that the command has flags for are included."""


def source(changes: rulepack.Changes) -> list[Object]:
    """The groups of the rule files, as the command changes them."""
    pack = {name: (chart.ROOT / "rules" / name).read_text() for name in RULES}
    changed = rulepack.changed(rulepack.parsed(pack), changes)
    return [group for groups in changed.values() for group in groups]


def groups(found: chart.Rendered) -> list[Object]:
    return [group for rule in found.of("PrometheusRule") for group in rule["spec"]["groups"]]


def test_the_rules_are_those_of_the_repository_and_none_by_default() -> None:
    assert groups(rendered(chart.case("rules-as-they-are"))) == source(rulepack.Changes())
    assert rendered().of("PrometheusRule") == rendered().of("ConfigMap") == []


def test_owners_and_budgets_are_those_of_the_command() -> None:
    values = chart.case("budgets")["prometheusRule"]
    budgets = dict(sorted(values["budgets"].items()))
    options = RuleOptions(owner_label=values["ownerLabel"], budgets=budgets)
    expected = yaml.safe_load(printed(options))["groups"]
    actual = groups(rendered(chart.case("budgets")))
    assert sorted(actual, key=itemgetter("name")) == sorted(expected, key=itemgetter("name"))


def test_the_object_has_the_given_content() -> None:
    for rule in rendered(CHANGED).of("PrometheusRule"):
        metadata = rule["metadata"]
        assert metadata["namespace"] == WANTED["namespace"]
        assert WANTED["labels"].items() <= metadata["labels"].items()
        assert metadata["annotations"] == WANTED["annotations"]


def test_an_alert_about_an_owner_is_in_the_releases_namespace() -> None:
    """Capacity lost by an owner has no namespace of its own."""
    values = {"enabled": True, "workloadNamespace": True, "budgets": {"vision": 400}}
    actual = groups(rendered(prometheusRule=values))
    (burn,) = (r for g in actual for r in g["rules"] if r.get("alert") == "GpuBudgetBurn")
    assert burn["labels"]["namespace"] == NAMESPACE


@each_case
def test_client_side_apply_can_annotate_every_object(case: Path) -> None:
    objects = rendered(chart.loaded(case)).objects
    large = [o["metadata"]["name"] for o in objects if applied_bytes(o) > MOST_APPLIED_BYTES]
    assert large == []


NEW = {
    "underused": "vector(0.4)",
    "held_bytes": "vector(1073741824)",
    "nvlink_peak_bytes": "vector(100000000000)",
    "idle": WANTED["thresholds"]["idle"],
    "busy": "vector(9.5e-1)",
}
NAMESPACE = f'{{{{ or $labels.workload_namespace $labels.namespace "{chart.NAMESPACE}" }}}}'


def test_rules_are_changed_by_the_values_only() -> None:
    assert {*NEW} == {*WANTED["thresholds"]}
    expected = [{**group, "rules": [*changed(group["rules"])]} for group in source(CHANGES)]
    assert groups(rendered(CHANGED)) == expected
    assert untold(expected) > untold(source(rulepack.Changes())), (
        "an alert that is switched off comes back"
    )


def untold(found: list[Object]) -> set[str]:
    rules = (rule for group in found for rule in group["rules"])
    labels = (rule["labels"] for rule in rules if rule.get("record") == "gpu:cause:order")
    return {label["cause"] for label in labels if label.get("hour") == "untold"}


def changed(rules: list[Object]) -> Iterator[Object]:
    """The rules with the changes that only the chart makes."""
    for rule in rules:
        if "record" in rule:
            threshold = rule["record"].removeprefix("gpu:threshold:")
            yield {**rule, "expr": NEW.get(threshold, rule["expr"])}
        else:
            lasting = WANTED["alerts"].get(rule["alert"], {}).get("for", rule["for"])
            namespace = {"namespace": NAMESPACE} if "namespace" in rule["labels"] else {}
            labels = {**rule["labels"], **WANTED["alertLabels"], **namespace}
            yield {**rule, "for": lasting, "labels": labels}


def test_dashboards_are_those_of_the_repository() -> None:
    values = chart.case("dashboards")["dashboards"]
    maps = rendered(chart.case("dashboards")).of("ConfigMap")
    shown = {name: json.loads(text) for result in maps for name, text in result["data"].items()}
    assert shown == {path.name: json.loads(path.read_bytes()) for path in DASHBOARDS}
    assert len(maps) == len(DASHBOARDS) > 0
    for outcome in maps:
        assert outcome["metadata"]["namespace"] == values["namespace"]
        assert outcome["metadata"]["labels"]["grafana_dashboard"] == "yes"
        annotations = {**values["annotations"], "grafana_folder": values["folder"]}
        assert outcome["metadata"]["annotations"] == annotations


def test_dashboards_are_in_the_place_of_grafanas_chart() -> None:
    (result, *_) = rendered(dashboards={"enabled": True, "folder": ""}).of("ConfigMap")
    assert result["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert result["metadata"]["namespace"] == chart.NAMESPACE
    assert "annotations" not in result["metadata"]
