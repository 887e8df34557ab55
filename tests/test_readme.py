"""The README holds to what it speaks of: metrics, commands, queries, figures, links."""

from __future__ import annotations

import re
from pathlib import Path

import promql_parser as promql
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from gpu_bottleneck_exporter.cli import commands
from gpu_bottleneck_exporter.remedies import MEANINGS, REMEDIES
from rules.test_docs import LINK, anchors
from support.offenders import each
from tables import metrics

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
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


def test_the_table_of_commands_is_complete() -> None:
    told = re.findall(r"^\| `(\w+)` \|", section("Commands"), re.MULTILINE)
    assert sorted(told) == sorted(commands.commands)


def test_the_glossary_and_the_table_name_every_reason_for_waiting() -> None:
    assert {f"`{reason}`" for reason in WAITING_ON} <= {*re.findall(r"`\w+`", section("Words"))}


def test_it_installs_as_the_other_documents_say() -> None:
    pages = ("helm/gpu-bottleneck-exporter/README.md", "exporter/deploy/README.md")
    others = {line for page in pages for line in (ROOT / page).read_text("utf-8").splitlines()}
    lines = [line for fence in fences("console", section("Install")) for line in fence.splitlines()]
    assert len(lines) > 10
    assert [line for line in lines if line not in others] == []


def test_the_diagnosis_is_worded_as_the_command_does() -> None:
    cause, meaning = re.findall(r"^  likely cause  (\w+): (.+)$", TEXT, re.MULTILINE)[0]
    (remedy,) = re.findall(r"^  try first     (.+)$", TEXT, re.MULTILINE)
    assert (MEANINGS[cause], REMEDIES[cause]) == (meaning, remedy)


def test_the_cost_is_that_of_the_measurements() -> None:
    measured = (ROOT / "exporter/README.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\| {re.escape(COST)} (\w+) \|.*?\| ([\d.]+)% \|", measured, re.MULTILINE)
    assert {state for state, _ in rows} == {"busy", "starved"}
    chart = ROOT / "helm/gpu-bottleneck-exporter/values.yaml"
    for text in (section("Cost"), chart.read_text(encoding="utf-8")):
        assert [share for _, share in rows if f" {float(share):.1f} %" not in text] == []


FOLDERS = ("exporter", "grafana", "helm", "tests")
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(path for name in FOLDERS for path in (ROOT / name).rglob("*.md")),
]


@each([path for path in DOCUMENTS if "node_modules" not in path.parts])
def test_links_of_documents_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if not re.match(r"https?://", target):
            to = (page.parent / target).resolve() if target else page
            assert to.exists(), target
            assert not anchor or anchor in anchors(to), f"{target}#{anchor}"


def test_each_reference_is_defined_and_used() -> None:
    defined = re.findall(r"^\[(\w+)\]: https://\S+$", TEXT, re.MULTILINE)
    assert sorted(defined) == sorted(re.findall(r"\]\[(\w+)\]", TEXT))
