"""The README holds to what it speaks of: metrics, queries, figures."""

from __future__ import annotations

import re
from pathlib import Path

import promql_parser as promql
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpu_bottleneck_exporter.accounting.stall import CPU_QUEUE, WAITING_ON
from gpu_bottleneck_exporter.nodeview.text import in_full
from gpu_bottleneck_exporter.prescription.model import NUM_WORKERS, Prescription
from gpu_bottleneck_exporter.remedies import MEANINGS, RUNBOOKS, WAITS_FOR
from tables import metrics

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
LONGEST = 130
"""Lines."""
COST = "8 | 64 | 0 |"


def section(heading: str) -> str:
    _, _, rest = TEXT.partition(f"\n## {heading}\n")
    assert rest
    return rest.partition("\n## ")[0]


def fences(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_it_is_short_and_says_at_once_what_it_is_and_how_far_it_is() -> None:
    lines = TEXT.splitlines()
    assert len(lines) <= LONGEST
    assert lines[2].startswith("A Prometheus exporter that tells why NVIDIA GPUs are idle")
    picture = next(number for number, line in enumerate(lines) if line.startswith("!["))
    assert lines[picture + 2].startswith("**Status: alpha")


def test_the_sample_has_families_and_labels_that_exist() -> None:
    (sample,) = fences("text", section("What it exports"))
    declared = {family.name.removesuffix("_total"): family for family in metrics.families()}
    found = list(text_string_to_metric_families(sample))
    assert len(found) > 5
    for family in found:
        assert declared[family.name].kind == family.type
        labels = set().union(*(one.labels for one in family.samples))
        assert {"gpu", "uuid"} <= labels <= {*declared[family.name].labels}
    causes = {s.labels["waiting_on"] for f in found for s in f.samples if "waiting_on" in s.labels}
    assert causes <= {*WAITING_ON}


def test_the_sample_adds_up() -> None:
    (sample,) = fences("text", section("What it exports"))
    seconds: dict[str, float] = {}
    for family in text_string_to_metric_families(sample):
        for one in family.samples:
            seconds[one.name] = seconds.get(one.name, 0.0) + one.value
    explained = seconds["gpu_busy_seconds_total"] + seconds["gpu_stall_seconds_total"]
    assert explained == pytest.approx(seconds["gpu_observed_seconds_total"], abs=1e-6)


def aggregates(node: promql.Expr) -> list[promql.AggregateExpr]:
    here = [node] if isinstance(node, promql.AggregateExpr) else []
    parts = [getattr(node, name, None) for name in ("lhs", "rhs", "expr")]
    return here + [found for part in parts if part is not None for found in aggregates(part)]


@pytest.mark.parametrize("query", fences("promql"))
def test_a_query_tells_gpus_of_different_nodes_apart(query: str) -> None:
    grouped = [
        one.modifier.labels if one.modifier else [] for one in aggregates(promql.parse(query))
    ]
    assert grouped
    assert all({"instance", "gpu"} <= {*labels} for labels in grouped)


def test_the_glossary_names_every_reason_for_waiting() -> None:
    assert {f"`{reason}`" for reason in WAITING_ON} <= {*re.findall(r"`\w+`", section("Words"))}


def test_the_diagnosis_is_worded_as_the_command_does() -> None:
    verdict = r"^  likely cause  Waiting for (.+) \((\w+)\): (.+)$"
    ((what, cause, meaning),) = re.findall(verdict, TEXT, re.MULTILINE)
    assert (WAITS_FOR[cause], MEANINGS[cause], f"{RUNBOOKS[cause]}.md") == (
        what,
        meaning,
        *re.findall(r"^  runbook       (.+)$", TEXT, re.MULTILINE),
    )
    change = Prescription(
        cause=cause,
        knob=NUM_WORKERS,
        current_value=1,
        value=2,
        current_busy_ratio=0.449,
        busy_ratio=0.87,
        busy_low_ratio=0.79,
        busy_high_ratio=0.96,
        needs_cores=0.3,
        free_cores=0.3,
        then=CPU_QUEUE,
        pytorch=True,
    )
    assert f"\n  try           {in_full(change)}\n" in TEXT


def test_the_cost_is_that_of_the_measurements() -> None:
    measured = (ROOT / "exporter/OPERATIONS.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\| {re.escape(COST)} (\w+) \|.*?\| ([\d.]+)% \|", measured, re.MULTILINE)
    assert {state for state, _ in rows} == {"busy", "starved"}
    chart = ROOT / "helm/gpu-bottleneck-exporter/values.yaml"
    for text in (section("Cost and rights"), chart.read_text(encoding="utf-8")):
        assert [share for _, share in rows if f" {float(share):.1f} %" not in text] == []


def test_each_reference_is_defined_and_used() -> None:
    defined = re.findall(r"^\[(\w+)\]: https://\S+$", TEXT, re.MULTILINE)
    assert sorted(defined) == sorted(re.findall(r"\]\[(\w+)\]", TEXT))
