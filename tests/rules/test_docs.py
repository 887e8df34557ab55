"""The documentation of the rules: complete, and of one mind with them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from gpu_bottleneck_exporter.prescription.model import Outlook
from rules import causes_table
from rules.fleet import Fleet, Gpu, add_gpu, job
from rules.parsed import Rule
from support.offenders import each
from support.states import PRESCRIBED, SCORED
from tables import metrics

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "rules/runbooks"
README = ROOT / "rules/README.md"
PAGES = [README, *sorted(RUNBOOKS.glob("*.md"))]
HEADINGS = ["Mitigation", "Diagnosis", "False positives"]
TICKETS = "[closing and escalation](Tickets.md)"
"""Of each runbook: what holds for all alerts."""
GLOBAL = {
    "GpuThresholdsMissing",
    "GpuMonitoringAbsent",
    "GpuCountedTwice",
    "GpuFleetBottleneck",
    "GpuBudgetBurn",
    *("GpuReclaimable", "GpuReclaimableSoon"),
}
"""Alerts that are about no node and no GPU."""
FIRST_SCREEN = 12
"""Lines, in which a page says what to do."""

RULES = causes_table.pack()
RECORDED = {rule.name for rule in RULES if not rule.is_alert}
BOOKS = sorted({causes_table.page(rule) for rule in causes_table.alerts()})
"""The runbooks that alerts link to."""
SHARED = sorted({one.name for one in causes_table.alerts() if causes_table.names_cause(one)})
"""Alerts of several causes: beside those, a page that lists them."""
LABELS = {family.name: {*family.labels} for family in metrics.families()}
LABELS |= {f"{f.name}_bucket": {*f.labels, "le"} for f in metrics.families() if f.kind[0] == "h"}
OF_TARGET = {"job", "instance"}
OF_SITES = {"gpu:exempt:info"}
"""Recorded by a site's own rules."""
KNOWN = RECORDED | set(LABELS) | OF_SITES | {"up"}
NAME = re.compile(r"\b(?:gpu|instance|cause|cluster|workload|owner|helper):[a-z0-9_]+:[a-z0-9_]+")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOLD = re.compile(r"`(gpu:threshold:\w+(?:\{[^}]*\})?)` (\d[\d.]*\b)")


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def section(alert: str, heading: str) -> str:
    _, _, rest = read(RUNBOOKS / f"{alert}.md").partition(f"\n## {heading}\n")
    return rest.partition("\n## ")[0].strip()


def test_each_metric_is_read_by_a_rule_or_has_its_reason() -> None:
    texts = [read(ROOT / f"rules/{name}") for name in ("recording.yml", "alerts.yml")]
    names = {*re.findall(r"\bgpu_[a-z0-9_]+", " ".join(texts))}
    _, _, told = read(README).partition("\n## What no rule reads\n")
    unread = re.findall(r"`(gpu_\w+)`", re.sub(r":.*", "", told.partition("\n## ")[0]))
    assert {*unread} == {family.name for family in metrics.families()} - names


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    assert sorted(path.stem for path in RUNBOOKS.iterdir()) == sorted([*BOOKS, *SHARED, "Tickets"])


@each(SHARED)
def test_the_page_of_an_alert_of_several_causes_leads_to_each_of_them(alert: str) -> None:
    text = read(RUNBOOKS / f"{alert}.md")
    assert text.startswith(f"# {alert}\n")
    assert TICKETS in text.splitlines()[2]
    books = [one for one in BOOKS if one.startswith(f"{alert}-")]
    assert [stem for stem in re.findall(rf"\(({alert}-\w+)\.md\)", text) if stem] == books


@each(BOOKS)
def test_a_runbook_says_whose_it_is_then_what_to_do_then_how_to_confirm_it(alert: str) -> None:
    lines = FENCE.sub("", read(RUNBOOKS / f"{alert}.md")).splitlines()
    thresholds = ["Thresholds"] * ("## Thresholds" in lines)
    headings = [
        f"# {alert.replace('-', ': ')}",
        *(f"## {heading}" for heading in (*HEADINGS, *thresholds)),
    ]
    assert [line for line in lines if line.startswith("#")] == headings
    labels = causes_table.variants(alert)[0].labels
    cause = f"`{labels['cause']}`" if "cause" in labels else "no cause"
    severities = " or ".join(causes_table.severities(alert))
    assert lines[2] == f"*{cause}, {severities}, responder: {labels['responder']} · {TICKETS}*"
    assert lines.index("## Mitigation") < FIRST_SCREEN
    assert all(section(alert, heading) for heading in HEADINGS)


@each(BOOKS)
def test_a_runbook_and_the_alert_give_the_same_advice(alert: str) -> None:
    descriptions = [rule.annotations["description"] for rule in causes_table.variants(alert)]
    first, *others = [causes_table.signal_and_remedy(text)[1] for text in descriptions]
    advice = " ".join(section(alert, "Mitigation").split())
    assert first
    assert advice.startswith(first)
    # Of the milder ones: some say less, or something else.
    assert [remedy for remedy in others if remedy.rstrip(".") not in advice] == []


def test_the_page_that_all_runbooks_link_says_when_tickets_end_and_who_acts() -> None:
    headings = re.findall(r"^## (.+)", read(RUNBOOKS / "Tickets.md"), re.MULTILINE)
    assert headings == [
        "When it ends",
        "What it costs to wait until Monday",
        "When its responder does not answer",
    ]


# --- Queries ---------------------------------------------------------------------------------
ALERT = {"INSTANCE": "several", "GPU": "0", "GROUP": "slurm-7", "CAUSE": "local_storage_bound"}
"""Labels of an alert, which stand in the queries of its runbook."""


def queries(page: Path) -> list[Rule]:
    """A fence has one or more, with an empty line between; as rules, to be taken apart so."""
    every = [text for kind, text in FENCE.findall(read(page)) if kind == "promql"]
    texts = [query for text in every for query in text.split("\n\n")]
    return [Rule(page.name, "", {"record": "query", "expr": filled(query)}) for query in texts]


def filled(query: str) -> str:
    """About a GPU of the fleet below."""
    for name, value in ALERT.items():
        query = query.replace(f'"{name}"', f'"{value}"')
    return query


VALUES = {
    "waiting_on": set(WAITING_ON),
    "cause": {rule.labels["cause"] for rule in RULES if "cause" in rule.labels},
    "blind": {rule.labels["blind"] for rule in RULES if "blind" in rule.labels},
}


@each(PAGES)
def test_a_query_asks_for_what_exists(page: Path) -> None:
    assert (
        page == README
        or any('"several"' in one.fields["expr"] for one in queries(page))
        or (page.stem in {*GLOBAL, *SHARED})
    ), "none is about the alert's own GPU"
    for name, asked in (one for query in queries(page) for one in query.selected):
        names = set(name.split("|"))
        assert [n for n in names if not any(re.fullmatch(n, known) for known in KNOWN)] == []
        for one in names & set(LABELS):
            assert {label for label, _ in asked} <= LABELS[one] | OF_TARGET
        for label, value in asked:
            assert label not in VALUES or set(value.split("|")) <= VALUES[label]


def test_the_queries_run_on_a_fleet(tmp_path: Path) -> None:
    fleet = Fleet(40)
    for index, busy in enumerate((0.98, 0.98, 0.98, 0.2)):
        gpu = Gpu(busy=busy, throttle={"sw_thermal": 0.3}, xids={"94": index}, owner=job(7))
        add_gpu(fleet, "several", gpu, index)
    starved = Gpu(busy=0.2, stalls={"storage": 0.8}, disk_busy=0.9, link_width=8)
    add_gpu(fleet, "starved", replace(starved, outlook=Outlook(PRESCRIBED, SCORED)))
    add_gpu(fleet, "shared", Gpu(busy=1.0, owners=[job(7), {"user": "eve"}], cpu_limit_cores=4))
    add_gpu(fleet, "free", Gpu(busy=0.0, processes=0, memory=0.0, feeders=False))
    for page in PAGES:
        for query in queries(page):
            fleet.expect(39, f"(count({query.fields['expr']}) or vector(0)) * 0", {"{}": 0.0})
    fleet.check(tmp_path)


# --- Names, numbers, links -------------------------------------------------------------------
@each(PAGES)
def test_the_series_that_are_named_exist(page: Path) -> None:
    assert set(NAME.findall(read(page))) - RECORDED - OF_SITES - {"gpu:threshold:"} == set()


def series(rule: Rule) -> str:
    """What it records, with its labels if it has any."""
    labels = ",".join(f'{name}="{value}"' for name, value in rule.labels.items())
    return f"{rule.name}{{{labels}}}" if labels else rule.name


IN_FORCE = {
    series(rule): rule.fields["expr"].removeprefix("vector(").rstrip(")")
    for rule in RULES
    if rule.name.startswith("gpu:threshold:")
}
"""Each threshold, and its number."""


def rules_of(page: Path) -> list[Rule]:
    """Whose thresholds a page must tell: of the alert and its evidence, or of the gates."""
    if page == README:
        return [rule for rule in RULES if rule.name.startswith(("gpu:gate:", "gpu:held:bool"))]
    if page.stem in {*SHARED, "Tickets"}:
        return []
    variants = causes_table.variants(page.stem)
    cause = variants[0].labels.get("cause", "none")
    return [*variants, *(r for r in RULES if r.labels.get("cause") == cause and not r.is_alert)]


@each(PAGES)
def test_a_page_tells_the_thresholds_of_its_rules_as_they_are(page: Path) -> None:
    told = TOLD.findall(read(page))
    assert set(told) <= IN_FORCE.items()
    read_by_them = {name for rule in rules_of(page) for name in rule.reads}
    needed = {name for name in read_by_them if name.startswith("gpu:threshold:")}
    assert needed - {one.partition("{")[0] for one, _ in told} == set()
