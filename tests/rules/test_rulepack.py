"""The pack, and what is made of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from gpu_bottleneck_exporter import rulepack
from gpu_bottleneck_exporter.rulepack import Changes, adapted
from rules.parsed import Rule, check, durations, groups, rules, seconds

PACK = rulepack.files()
EXPORTERS = adapted(PACK, Changes())
EVERY_FILE = Changes(
    dialect="both",
    jobstats=True,
    opencost=True,
    owner_label="label_team",
    budgets={"vision": 400},
)
"""Changes nothing: label and budget are the examples in the files."""
KEYS = {"for", "keep_firing_for"}


def changed(changes: Changes) -> list[tuple[Rule, Rule]]:
    """Each rule, and what has become of it."""
    return [*zip(rules(PACK), rules(adapted(PACK, changes)), strict=True)]


# --- Scaled in time --------------------------------------------------------------------------
def numbers(rule: Rule) -> list[float]:
    """The numbers that are seconds: of thresholds and sums by their name, horizons."""
    literals = rule.nodes(promql.NumberLiteral)
    if rule.name.startswith("gpu:threshold:"):
        return [number.val for number in literals] * rule.name.endswith("_seconds")
    if re.search("_(seconds|tokens):sum", rule.name):
        return [number.val for number in literals]
    calls = [call for call in rule.nodes(promql.Call) if call.func.name == "predict_linear"]
    return [number.val for call in calls for number in call.args if hasattr(number, "val")]


def without_numbers(rule: Rule) -> str:
    return re.sub(r"\b\d+(?:\.\d+)?(?:ms|[smhdwy]|\d)*\b", "N", f"{rule.expression}")


@pytest.mark.parametrize("factor", [20, 100])
def test_scaling_divides_durations_and_nothing_else(factor: float) -> None:
    found = 0
    for before, after in changed(replace(EVERY_FILE, scale=factor)):
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
    for name, text in adapted(PACK, replace(EVERY_FILE, scale=factor)).items():
        for old, new in zip(groups(PACK[name]), groups(text), strict=True):
            assert seconds(new["interval"]) == pytest.approx(seconds(old["interval"]) / factor)


HORIZON = "predict_linear(a:b[{}], {}) > 1800"


@pytest.mark.parametrize(
    ("expression", "factor", "expected"),
    [
        ("x[1d] offset 1w", 7, "x[12342857ms] offset 1d"),
        ("x[5m:]", 10, "x[30s:]"),
        ("x offset -5m", 10, "x offset -30s"),
        ("60 * sum by (a) (x[9m:1m])", 10, "6 * sum by (a) (x[54s:6s])"),
        (HORIZON.format("30m", 1800), 10, HORIZON.format("3m", 180)),
    ],
)
def test_expressions_scaled_by_example(expression: str, factor: float, expected: str) -> None:
    assert one_rule({"record": "a", "expr": expression}, factor)["expr"] == expected


@pytest.mark.parametrize(
    ("duration", "factor", "expected"),
    [("1h30m", 1.5, "1h"), ("5ms", 10_000, "1ms"), ("0s", 10, "0d")],
)
def test_durations_scaled_by_example(duration: str, factor: float, expected: str) -> None:
    assert one_rule({"record": "a", "expr": "up", "for": duration}, factor)["for"] == expected


def one_rule(rule: rulepack.Fields, factor: float) -> rulepack.Fields:
    group = {"name": "a", "interval": "1m", "rules": [rule]}
    (scaled,) = rulepack.changed({"": [group]}, Changes(scale=factor))[""]
    assert group["rules"] == [rule], "the original stays as it is"
    return dict(scaled["rules"][0])


# --- Written ----------------------------------------------------------------------------------
def test_files_keep_their_comments_unless_they_are_changed() -> None:
    assert adapted(PACK, EVERY_FILE) == PACK
    assert all(re.search(r"^ *# ", text, re.MULTILINE) for text in PACK.values())
    changed = adapted(PACK, replace(EVERY_FILE, without_keep_firing=True))
    keeping = {name for name, text in PACK.items() if "keep_firing_for: " in text}
    assert {name for name in PACK if changed[name] != PACK[name]} == keeping
    for name in keeping:
        head, groups, _ = changed[name].split("\n", maxsplit=2)
        assert groups == "groups:"
        assert head.startswith("# ")
        assert head.endswith(f"/rules/{name}")


def test_lines_of_expressions_stay_lines() -> None:
    for text in adapted(PACK, replace(EVERY_FILE, scale=7)).values():
        for rule in rules({"": text}):
            lines = rule.fields["expr"].splitlines()
            assert len(lines) == 1 or all(f" {line}\n" in text for line in lines), rule


@pytest.mark.parametrize("text", ["1e3", "1_000", "0o17", "y", "-", "on", "~", "12:30", "=", "5"])
def test_no_parser_takes_a_name_for_another_type(text: str) -> None:
    """Those of Go know numbers and flags that PyYAML takes for strings."""
    written = adapted(PACK, Changes(budgets={text: 400}))["budgets.yml"]
    assert re.search(rf"^ *workload_owner: '{re.escape(text)}'$", written, re.MULTILINE)


# --- Left out, or elsewhere --------------------------------------------------------------------
def test_without_keep_firing_nothing_else_is_missing() -> None:
    pairs = changed(replace(EVERY_FILE, without_keep_firing=True))
    for before, after in pairs:
        assert after.fields == {k: v for k, v in before.fields.items() if k != "keep_firing_for"}
    assert any(before.fields != after.fields for before, after in pairs)


def test_without_prescriptions_only_what_is_looked_up_is_missing() -> None:
    for before, after in changed(replace(EVERY_FILE, without_prescriptions=True)):
        told = {key: text.partition("{{- $of")[0] for key, text in before.annotations.items()}
        assert {key: text.strip() for key, text in told.items()} == after.annotations
        assert {**before.fields, "annotations": {}} == {**after.fields, "annotations": {}} or (
            "annotations" not in before.fields
        )


def test_links_lead_elsewhere() -> None:
    changes = replace(
        EVERY_FILE,
        runbook_base="https://wiki.example.org/gpu/",
        grafana_url="https://grafana.example.org/",
    )
    for before, rule in (pair for pair in changed(changes) if pair[0].is_alert):
        path = before.annotations["dashboard_path"]
        page = before.annotations["runbook_url"].rpartition("/")[2]
        assert rule.annotations["runbook_url"] == f"https://wiki.example.org/gpu/{page}"
        assert rule.annotations["dashboard_url"] == f"https://grafana.example.org{path}"
        assert "dashboard_path" not in rule.annotations


# --- One document ----------------------------------------------------------------------------
@pytest.mark.parametrize("dialect", rulepack.DIALECTS)
def test_merged_has_all_groups(tmp_path: Path, dialect: str) -> None:
    pack = adapted(PACK, Changes(dialect=dialect))
    text = rulepack.merged(pack)
    assert groups(text) == [group for part in pack.values() for group in groups(part)]
    assert len({group["name"] for group in groups(text)}) == len(groups(text))
    assert all(f"  # {name}\n" in text for name in pack)
    # With both, each input has two rules on purpose: they are about different GPUs.
    check(tmp_path, text, lint="none" if dialect == "both" else "duplicate-rules")


@pytest.mark.parametrize("namespace", [None, "monitoring"])
@pytest.mark.parametrize("labels", [{}, {"release": "prometheus", "a.b/c": "true"}])
def test_a_prometheusrule_has_the_groups(namespace: str | None, labels: Mapping[str, str]) -> None:
    every = groups(rulepack.merged(EXPORTERS))
    text = rulepack.as_prometheusrule(every, "gpu", namespace, labels)
    metadata = {"name": "gpu", "namespace": namespace, "labels": labels}
    assert yaml.load(text, Loader=yaml.CSafeLoader) == {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {key: value for key, value in metadata.items() if value},
        "spec": {"groups": every},
    }


def test_the_inputs_of_dcgm_replace_those_of_the_exporter() -> None:
    pack = adapted(PACK, Changes(dialect="dcgm"))
    original = groups(PACK["recording.yml"])
    assert groups(pack["recording.yml"]) == [
        g for g in original if g["name"] not in rulepack.INPUTS
    ]
    assert len(original) - len(groups(pack["recording.yml"])) == len(rulepack.INPUTS)
    assert pack["dcgm.yml"] == PACK["dcgm.yml"]
    assert list(EXPORTERS) == list(rulepack.NAMES)


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("jobstats.yml", {"jobstats": True}),
        ("opencost.yml", {"opencost": True}),
        ("owners.yml", {"owner_label": "label_team"}),
        ("budgets.yml", {"budgets": {"vision": 400}}),
    ],
)
@pytest.mark.parametrize("dialect", rulepack.DIALECTS)
def test_extras_come_with_a_flag_only(dialect: str, name: str, flag: Mapping[str, Any]) -> None:
    without = adapted(PACK, Changes(dialect=dialect))
    assert name not in without
    assert adapted(PACK, Changes(dialect=dialect, **flag)) == {**without, name: PACK[name]}


def test_an_owners_label_takes_the_place_of_the_examples_and_nothing_else_changes() -> None:
    for before, after in changed(replace(EVERY_FILE, owner_label="label_x")):
        expected = json.dumps(before.fields).replace("label_team", "label_x")
        assert json.dumps(after.fields) == expected
        assert (after.fields == before.fields) == ("label_team" not in before.fields["expr"])


def test_budgets_take_the_place_of_the_example() -> None:
    hostile = "a\"b: {}\\ é\u2028'"
    given = {"vision": 400.0, hostile: 0.5, "large": 1234567.25}
    text = adapted(PACK, Changes(budgets=given))["budgets.yml"]
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
    before, after = rules(EXPORTERS), rules(adapted(PACK, Changes(severities=wanted)))
    names = {rule.name for rule in before} - {"GpuMemoryNotReleased"}
    assert {rule.name for rule in after} == names
    severities = {rule.name: rule.labels["severity"] for rule in after if rule.name in wanted}
    assert severities == {"GpuJobStalled": "info", "GpuNearOom": "critical"}
    was, now = ([r.labels for r in some if r.name == "gpu:cause:order"] for some in (before, after))
    changed_causes = [labels["cause"] for labels in now if labels not in was]
    assert changed_causes == ["job_stalled", "memory_not_released"]


@pytest.mark.parametrize("most", [1, 20])
def test_groups_can_be_as_small_as_mimir_takes_them(most: int, tmp_path: Path) -> None:
    for name, small in adapted(PACK, replace(EVERY_FILE, group_size=most)).items():
        found = groups(small)
        assert max(len(group["rules"]) for group in found) <= most
        assert len({group["name"] for group in found}) == len(found)
        assert [r for g in found for r in g["rules"]] == [
            r for g in groups(PACK[name]) for r in g["rules"]
        ]
        check(tmp_path, small)
    assert adapted(PACK, replace(EVERY_FILE, group_size=1000)) == PACK
