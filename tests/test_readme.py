"""The README holds to what it speaks of: metrics, queries, figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from tables import metrics

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COST = "8 | 64 | 0 |"


def section(heading: str) -> str:
    _, _, rest = TEXT.partition(f"\n## {heading}\n")
    assert rest
    return rest.partition("\n## ")[0]


def fences(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_sample_has_families_and_labels_that_exist() -> None:
    (sample,) = fences("text", section("What it exports"))
    declared = {family.name.removesuffix("_total"): family for family in metrics.families()}
    values = list(text_string_to_metric_families(sample))
    assert len(values) > 5
    for family in values:
        assert declared[family.name].kind == family.type
        labels = set().union(*(sample.labels for sample in family.samples))
        assert {"gpu", "uuid"} <= labels <= {*declared[family.name].labels}
    causes = {s.labels["waiting_on"] for f in values for s in f.samples if "waiting_on" in s.labels}
    assert causes <= {*WAITING_ON}


def test_the_sample_adds_up() -> None:
    (sample,) = fences("text", section("What it exports"))
    seconds: dict[str, float] = {}
    for family in text_string_to_metric_families(sample):
        for item in family.samples:
            seconds[item.name] = seconds.get(item.name, 0.0) + item.value
    explained = seconds["gpu_busy_seconds_total"] + seconds["gpu_stall_seconds_total"]
    assert explained == pytest.approx(seconds["gpu_observed_seconds_total"], abs=1e-6)


def test_the_cost_is_that_of_the_measurements() -> None:
    measured = (ROOT / "exporter/OPERATIONS.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\| {re.escape(COST)} (\w+) \|.*?\| ([\d.]+)% \|", measured, re.MULTILINE)
    assert {state for state, _ in rows} == {"busy", "starved"}
    chart = ROOT / "helm/gpu-bottleneck-exporter/values.yaml"
    for text in (section("Cost and rights"), chart.read_text(encoding="utf-8")):
        assert [share for _, share in rows if f" {float(share):.1f} %" not in text] == []
