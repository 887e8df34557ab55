"""The pack as text, and what is made of it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from gpu_bottleneck_exporter import rulepack
from rules.parsed import Rule, check, durations, groups, rules, seconds

PACK = rulepack.files()
EXPORTERS = rulepack.for_dialect(PACK, "exporter")
KEYS = {"for", "keep_firing_for"}


def changed(change: Callable[[str], str]) -> list[tuple[Rule, Rule]]:
    """Each rule, and what has become of it."""
    after = {name: change(text) for name, text in PACK.items()}
    return [*zip(rules(PACK), rules(after), strict=True)]


# --- Scaled in time --------------------------------------------------------------------------
def numbers(rule: Rule) -> list[float]:
    """The numbers that are seconds: of thresholds and sums by their name, horizons."""
    literals = rule.nodes(promql.NumberLiteral)
    if rule.name.startswith("gpu:threshold:"):
        return [number.val for number in literals] * rule.name.endswith("_seconds")
    if re.search("_seconds:sum", rule.name):
        return [number.val for number in literals]
    calls = [call for call in rule.nodes(promql.Call) if call.func.name == "predict_linear"]
    return [number.val for call in calls for number in call.args if hasattr(number, "val")]


def without_numbers(rule: Rule) -> str:
    return re.sub(r"\b\d+(?:\.\d+)?(?:ms|[smhdwy]|\d)*\b", "N", f"{rule.expression}")


@pytest.mark.parametrize("factor", [20, 100])
def test_scaling_divides_durations_and_nothing_else(factor: float) -> None:
    found = 0
    for before, after in changed(functools.partial(rulepack.scaled, factor=factor)):
        was, now = list(durations(before)), list(durations(after))
        in_the_text = re.findall(r"[:\[]\d+[smhd]|offset \d", before.fields["expr"])
        assert len([duration for duration in was if duration]) == len(in_the_text), before
        assert now == [duration / factor for duration in was], before
        assert numbers(after) == pytest.approx([n / factor for n in numbers(before)]), before
        found += len(numbers(before))
        for key in KEYS & {*before.fields}:
            whole = seconds(before.fields[key])
            assert seconds(after.fields[key]) == pytest.approx(whole / factor), before
        kept = [{**one.fields, "expr": without_numbers(one)} for one in (before, after)]
        assert [*kept[0]] == [*kept[1]]
        assert {k: v for k, v in kept[0].items() if k not in KEYS}.items() <= kept[1].items()
    assert found >= 4
    for text in PACK.values():
        for old, new in zip(groups(text), groups(rulepack.scaled(text, factor)), strict=True):
            assert seconds(new["interval"]) == pytest.approx(seconds(old["interval"]) / factor)


@pytest.mark.parametrize("name", PACK)
def test_comments_survive_and_a_scale_of_one_changes_nothing(name: str) -> None:
    def comments(text: str) -> list[str]:
        return re.findall(r"^ *#.*", text, re.MULTILINE)

    assert comments(PACK[name])
    for text in (rulepack.scaled(PACK[name], 7), rulepack.without_keep_firing(PACK[name])):
        assert comments(text) == comments(PACK[name])
    assert groups(rulepack.scaled(PACK[name], 1)) == groups(PACK[name])


HORIZON = "expr: predict_linear(a:b[{}], {}) > 1800\n"
IN_WORDS = "expr: up\nannotations:\n  description: [5m] for: 1h\n"


@pytest.mark.parametrize(
    ("text", "factor", "expected"),
    [
        ("for: 1h30m # why\n", 1.5, "for: 1h # why\n"),
        ("for: 5ms\n", 10_000, "for: 1ms\n"),
        ("for: 0s\n", 10, "for: 0d\n"),
        ("expr: x[1d] offset 1w\n", 7, "expr: x[12342857ms] offset 1d\n"),
        ("expr: x[5m:]\n", 10, "expr: x[30s:]\n"),
        ("expr: x offset -5m\n", 10, "expr: x offset -30s\n"),
        ("expr: 60 * sum by (a) (x[9m:1m])\n", 10, "expr: 6 * sum by (a) (x[54s:6s])\n"),
        (HORIZON.format("30m", 1800), 10, HORIZON.format("3m", 180)),
        (IN_WORDS, 10, IN_WORDS),
    ],
)
def test_scaling_by_example(text: str, factor: float, expected: str) -> None:
    assert rulepack.scaled(text, factor) == expected


# --- Left out, or elsewhere --------------------------------------------------------------------
def test_without_keep_firing_nothing_else_is_missing() -> None:
    pairs = changed(rulepack.without_keep_firing)
    for before, after in pairs:
        assert after.fields == {k: v for k, v in before.fields.items() if k != "keep_firing_for"}
    assert any(before.fields != after.fields for before, after in pairs)


def test_without_prescriptions_only_what_is_looked_up_is_missing() -> None:
    for before, after in changed(rulepack.without_prescriptions):
        told = {key: text.partition("{{- $of")[0] for key, text in before.annotations.items()}
        assert {key: text.strip() for key, text in told.items()} == after.annotations
        assert {**before.fields, "annotations": {}} == {**after.fields, "annotations": {}} or (
            "annotations" not in before.fields
        )


def test_links_lead_elsewhere() -> None:
    text = rulepack.with_runbooks_at(PACK["alerts.yml"], "https://wiki.example.org/gpu/")
    text = rulepack.with_dashboards_at(text, "https://grafana.example.org/")
    for rule, before in zip(rules({"": text}), rules({"": PACK["alerts.yml"]}), strict=True):
        path = before.annotations["dashboard_path"]
        page = before.annotations["runbook_url"].rpartition("/")[2]
        assert rule.annotations["runbook_url"] == f"https://wiki.example.org/gpu/{page}"
        assert rule.annotations["dashboard_url"] == f"https://grafana.example.org{path}"
        assert "dashboard_path" not in rule.annotations


# --- One document ----------------------------------------------------------------------------
@pytest.mark.parametrize("dialect", rulepack.DIALECTS)
def test_merged_has_all_groups(tmp_path: Path, dialect: str) -> None:
    pack = rulepack.for_dialect(PACK, dialect)
    text = rulepack.merged(pack)
    assert groups(text) == [group for part in pack.values() for group in groups(part)]
    assert len({group["name"] for group in groups(text)}) == len(groups(text))
    assert all(f"  # {name}\n" in text for name in pack)
    # With both, each input has two rules on purpose: they are about different GPUs.
    check(tmp_path, text, lint="none" if dialect == "both" else "duplicate-rules")


@pytest.mark.parametrize("namespace", [None, "monitoring"])
@pytest.mark.parametrize("labels", [{}, {"release": "prometheus", "a.b/c": "true"}])
def test_a_prometheusrule_has_the_groups(namespace: str | None, labels: Mapping[str, str]) -> None:
    text = rulepack.as_prometheusrule(EXPORTERS, "gpu", namespace, labels)
    metadata = {"name": "gpu", "namespace": namespace, "labels": labels}
    assert yaml.load(text, Loader=yaml.CSafeLoader) == {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {key: value for key, value in metadata.items() if value},
        "spec": {"groups": groups(rulepack.merged(EXPORTERS))},
    }


def test_the_inputs_of_dcgm_replace_those_of_the_exporter() -> None:
    pack = rulepack.for_dialect(PACK, "dcgm")
    original = groups(PACK["recording.yml"])
    assert groups(pack["recording.yml"]) == [
        g for g in original if g["name"] not in rulepack.INPUTS
    ]
    assert len(original) - len(groups(pack["recording.yml"])) == len(rulepack.INPUTS)
    assert pack["dcgm.yml"] == PACK["dcgm.yml"]
    assert list(EXPORTERS) == list(rulepack.NAMES)


@pytest.mark.parametrize("name", rulepack.EXTRAS)
@pytest.mark.parametrize("dialect", rulepack.DIALECTS)
def test_extras_come_with_a_flag_only(dialect: str, name: str) -> None:
    without = rulepack.for_dialect(PACK, dialect)
    assert not set(rulepack.EXTRAS) & set(without)
    assert rulepack.for_dialect(PACK, dialect, [name]) == {**without, name: PACK[name]}


def test_an_owners_label_takes_the_place_of_the_examples_and_nothing_else_changes() -> None:
    for before, after in changed(lambda text: rulepack.with_owner_label(text, "label_x")):
        expected = json.dumps(before.fields).replace("label_team", "label_x")
        assert json.dumps(after.fields) == expected
        assert (after.fields == before.fields) == ("label_team" not in before.fields["expr"])


def test_budgets_take_the_place_of_the_example() -> None:
    hostile = 'a"b: {}\\ é'
    given = {"vision": 400.0, hostile: 0.5, "large": 1234567.25}
    text = rulepack.with_budgets(PACK["budgets.yml"], given)
    before, after = (rules({"": one}) for one in (PACK["budgets.yml"], text))
    made = [
        {
            "record": "owner:budget:gpu_hours",
            "labels": {"workload_owner": owner},
            "expr": f"vector({hours:.15g})",
        }
        for owner, hours in given.items()
    ]
    assert [rule.fields for rule in after] == [*made, *(rule.fields for rule in before[1:])]
    assert before[0].name == "owner:budget:gpu_hours"


def test_severities_change_alerts_and_what_is_lowered_is_told_by_no_other() -> None:
    wanted = {
        "GpuJobStalled": "info",
        "GpuMemoryNotReleased": "off",
        "GpuNearOom": "critical",
    }
    pack = {name: PACK[name] for name in rulepack.NAMES}
    changed = rulepack.with_severities(pack, wanted)
    before, after = rules(pack), rules(changed)
    names = {rule.name for rule in before} - {"GpuMemoryNotReleased"}
    assert {rule.name for rule in after} == names
    severities = {rule.name: rule.labels["severity"] for rule in after if rule.name in wanted}
    assert severities == {"GpuJobStalled": "info", "GpuNearOom": "critical"}
    was, now = ([r.labels for r in some if r.name == "gpu:cause:order"] for some in (before, after))
    changed_causes = [labels["cause"] for labels in now if labels not in was]
    assert changed_causes == ["job_stalled", "memory_not_released"]
    assert rulepack.with_severities(pack, {}) == pack


@pytest.mark.parametrize("most", [1, 20])
def test_groups_can_be_as_small_as_mimir_takes_them(most: int, tmp_path: Path) -> None:
    for text in PACK.values():
        small = rulepack.with_groups_of(text, most)
        assert small.count("#") == text.count("#"), "no comment is lost"
        found = groups(small)
        assert max(len(group["rules"]) for group in found) <= most
        assert len({group["name"] for group in found}) == len(found)
        assert [r for g in found for r in g["rules"]] == [
            r for g in groups(text) for r in g["rules"]
        ]
        check(tmp_path, small)
    assert rulepack.with_groups_of(text, 1000) == text


def every_rule(found: list[Any]) -> list[Any]:
    return [rule for group in found for rule in group["rules"]]
