"""The pack as text, and what is made of it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from gpu_bottleneck_exporter import rulepack
from gpu_bottleneck_exporter.errors import ExporterError
from rules.parsed import Rule, check, durations, groups, rules, seconds

SOURCE = Path(__file__).parents[2] / "rules"
PACK = rulepack.files()
FACTORS = (20, 100)
KEYS = ("for", "keep_firing_for")

by_factor = pytest.mark.parametrize("factor", FACTORS)
by_file = pytest.mark.parametrize("name", PACK)


@functools.cache
def scaled(factor: float) -> Mapping[str, str]:
    return {name: rulepack.scaled(text, factor) for name, text in PACK.items()}


def pairs(factor: float) -> list[tuple[Rule, Rule]]:
    return list(zip(rules(PACK), rules(scaled(factor)), strict=True))


def of_groups(text: str) -> dict[str, Any]:
    return {group["name"]: group for group in groups(text)}


def test_the_pack_is_the_top_level_folder() -> None:
    assert list(PACK) == ["thresholds.yml", "recording.yml", "alerts.yml", "dcgm.yml"]
    assert {name: (SOURCE / name).read_text(encoding="utf-8") for name in PACK} == PACK


CHANGES: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "without keep_firing_for": rulepack.without_keep_firing,
    "without prescriptions": rulepack.without_prescriptions,
    **{
        f"divided by {factor}": functools.partial(rulepack.scaled, factor=factor)
        for factor in (*FACTORS, rulepack.MINIMUM_SCALE, rulepack.MAXIMUM_SCALE)
    },
}


def test_promtool_accepts_the_pack_and_what_is_made_of_it(tmp_path: Path) -> None:
    for change, changed in CHANGES.items():
        folder = tmp_path / change
        folder.mkdir()
        check(folder, *map(changed, PACK.values()))


@by_factor
def test_scaling_divides_every_duration(factor: float) -> None:
    for before, after in pairs(factor):
        was, now = list(durations(before)), list(durations(after))
        in_the_text = re.findall(r"\[\d+[smhd]|offset \d", before.fields["expr"])
        assert len([duration for duration in was if duration]) == len(in_the_text), before
        assert now == [duration / factor for duration in was], before
        for key in {*KEYS} & {*before.fields}:
            whole = seconds(before.fields[key])
            assert seconds(after.fields[key]) == pytest.approx(whole / factor), before
    for name, text in PACK.items():
        for old, new in zip(groups(text), groups(scaled(factor)[name]), strict=True):
            assert seconds(new["interval"]) == pytest.approx(seconds(old["interval"]) / factor)


def numbers(rule: Rule) -> list[float]:
    """The numbers that are seconds: thresholds by their name, horizons."""
    literals = rule.nodes(promql.NumberLiteral)
    if rule.name.startswith("gpu:threshold:"):
        return [number.val for number in literals]
    calls = [call for call in rule.nodes(promql.Call) if call.func.name == "predict_linear"]
    return [number.val for call in calls for number in call.args if hasattr(number, "val")]


@by_factor
def test_scaling_divides_the_numbers_that_are_durations(factor: float) -> None:
    found = 0
    for before, after in pairs(factor):
        is_other = before.name.startswith("gpu:threshold:") and not before.name.endswith("_seconds")
        by = 1 if is_other else factor
        assert numbers(after) == pytest.approx([number / by for number in numbers(before)]), before
        found += by != 1 and len(numbers(before))
    assert found >= 4


def without_numbers(rule: Rule) -> str:
    return re.sub(r"\b\d+(?:\.\d+)?(?:ms|[smhdwy]|\d)*\b", "N", f"{rule.expression}")


@by_factor
def test_scaling_changes_nothing_else(factor: float) -> None:
    for before, after in pairs(factor):
        assert (before.name, before.labels) == (after.name, after.labels)
        assert before.annotations == after.annotations
        assert list(before.fields) == list(after.fields)
        assert without_numbers(before) == without_numbers(after)


@by_file
def test_comments_survive(name: str) -> None:
    def comments(text: str) -> list[str]:
        return re.findall(r"^ *#.*", text, re.MULTILINE)

    assert comments(PACK[name])
    for changed in (rulepack.scaled(PACK[name], 7), rulepack.without_keep_firing(PACK[name])):
        assert comments(changed) == comments(PACK[name])


@by_file
def test_a_scale_of_one_changes_nothing(name: str) -> None:
    assert groups(rulepack.scaled(PACK[name], 1)) == groups(PACK[name])


@pytest.mark.parametrize(
    ("text", "factor", "expected"),
    [
        ("        for: 1m\n", 60, "        for: 1s\n"),
        ("        for: 1m\n", 120, "        for: 500ms\n"),
        ("        for: 1h30m # why\n", 1.5, "        for: 1h # why\n"),
        ("    interval: 30s\n", 0.25, "    interval: 2m\n"),
        ("        for: 5ms\n", 10_000, "        for: 1ms\n"),
        ("        for: 0s\n", 10, "        for: 0d\n"),
        ("        expr: x[1d] offset 1w\n", 7, "        expr: x[12342857ms] offset 1d\n"),
        ("        expr: rate(x[5m:30s])\n", 10, "        expr: rate(x[30s:3s])\n"),
        ("        expr: x[5m:]\n", 10, "        expr: x[30s:]\n"),
        ("        expr: x offset -5m\n", 10, "        expr: x offset -30s\n"),
        (
            "        expr: predict_linear(a:b{c='d'}[30m], 1800) > 1800\n",
            10,
            "        expr: predict_linear(a:b{c='d'}[3m], 180) > 1800\n",
        ),
        (
            "        expr: >-\n          x[5m]\n          + y[5m]\n        for: 1m\n",
            10,
            "        expr: >-\n          x[30s]\n          + y[30s]\n        for: 6s\n",
        ),
        (
            "        expr: up\n        annotations:\n          description: [5m] for: 1h\n",
            10,
            "        expr: up\n        annotations:\n          description: [5m] for: 1h\n",
        ),
    ],
)
def test_scaling_by_example(text: str, factor: float, expected: str) -> None:
    assert rulepack.scaled(text, factor) == expected


@pytest.mark.parametrize("factor", [0, -1, 0.001, 1e5, float("nan"), float("inf")])
def test_a_scale_that_makes_no_sense(factor: float) -> None:
    with pytest.raises(ExporterError, match=r"--for-scale must be 0.01 to 10000, not"):
        rulepack.scaled("", factor)


def test_without_keep_firing_nothing_else_is_missing() -> None:
    without = {name: rulepack.without_keep_firing(text) for name, text in PACK.items()}
    for before, after in zip(rules(PACK), rules(without), strict=True):
        assert after.fields == {k: v for k, v in before.fields.items() if k != "keep_firing_for"}
    assert PACK["alerts.yml"] != without["alerts.yml"]


def test_without_prescriptions_nothing_else_is_missing() -> None:
    without = {name: rulepack.without_prescriptions(text) for name, text in PACK.items()}
    shorter = 0
    for before, after in zip(rules(PACK), rules(without), strict=True):
        told, bare = (dict(rule.annotations) for rule in (before, after))
        assert {**before.fields, "annotations": bare} == {"annotations": {}, **after.fields}
        if told != bare:
            shorter += 1
            assert told.pop("description").startswith(bare.pop("description"))
            assert told == bare
    assert shorter == PACK["alerts.yml"].count("{{- $of := ")
    assert "gpu:prescription:" not in without["alerts.yml"]


def test_runbooks_elsewhere() -> None:
    text = rulepack.with_runbooks_at(PACK["alerts.yml"], "https://wiki.example.org/gpu/")
    for rule in rules({"alerts.yml": text}):
        expected = f"https://wiki.example.org/gpu/{rule.name}.md"
        assert rule.annotations["runbook_url"] == expected


@pytest.mark.parametrize("dialect", rulepack.DIALECTS)
def test_merged_has_all_groups(tmp_path: Path, dialect: str) -> None:
    pack = rulepack.for_dialect(PACK, dialect)
    text = rulepack.merged(pack)
    assert groups(text) == [group for part in pack.values() for group in groups(part)]
    assert len(of_groups(text)) == len(groups(text))
    assert all(f"  # {name}\n" in text for name in pack)
    # With both, each input has two rules on purpose: they are about different GPUs.
    check(tmp_path, text, lint="none" if dialect == "both" else "duplicate-rules")


@pytest.mark.parametrize("namespace", [None, "monitoring"])
@pytest.mark.parametrize("labels", [{}, {"release": "prometheus", "a.b/c": "true"}])
def test_a_prometheusrule_has_the_groups(namespace: str | None, labels: Mapping[str, str]) -> None:
    pack = rulepack.for_dialect(PACK, "exporter")
    text = rulepack.as_prometheusrule(pack, "gpu", namespace, labels)
    found = yaml.safe_load(text)
    metadata: dict[str, object] = {"name": "gpu"}
    metadata |= {"namespace": namespace} if namespace else {}
    metadata |= {"labels": labels} if labels else {}
    assert found == {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata,
        "spec": {"groups": [group for part in pack.values() for group in groups(part)]},
    }


def test_a_prometheusrule_fits_where_kubectl_notes_what_was_applied() -> None:
    pack = rulepack.for_dialect(PACK, "exporter")
    assert len(rulepack.as_prometheusrule(pack, "gpu", "monitoring", {})) < 256 * 1024


def test_the_inputs_of_dcgm_replace_those_of_the_exporter() -> None:
    pack = rulepack.for_dialect(PACK, "dcgm")
    recording, original = of_groups(pack["recording.yml"]), of_groups(PACK["recording.yml"])
    assert recording == {name: g for name, g in original.items() if name not in rulepack.INPUTS}
    assert set(original) - set(recording) == {*rulepack.INPUTS}
    assert pack["dcgm.yml"] == PACK["dcgm.yml"]
    assert list(rulepack.for_dialect(PACK, "exporter")) == list(rulepack.NAMES)
