"""The documentation of the rules: complete, and of one mind with them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from gpu_bottleneck_exporter.prescription.model import Outlook
from rules import causes_table
from rules.fleet import Fleet, Gpu, add_gpu
from rules.parsed import Rule
from support.offenders import each
from support.states import PRESCRIBED, SCORED
from tables import metrics

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "rules/runbooks"
README = ROOT / "rules/README.md"
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "False positives", "Thresholds"]

RULES = causes_table.pack()
RECORDED = {rule.name for rule in RULES if not rule.is_alert}
ALERTS = sorted({rule.name for rule in RULES if rule.is_alert})
OF_CAUSES = [alert for _, alert in causes_table.causes()]
LABELS = {family.name: {*family.labels} for family in metrics.families()}
LABELS |= {f"{f.name}_bucket": {*f.labels, "le"} for f in metrics.families() if f.kind[0] == "h"}
OF_TARGET = {"job", "instance"}
WEIGHED = {"gpu-inputs", "gpu-inputs-host", "gpu-hour", "gpu-evidence", "gpu-evidence-hardware"}
# Gates have a table of their own in the README; whether others explain it is not a cause's own.
HELPERS = {
    name: [rule for rule in RULES if rule.name == name]
    for name in {rule.name for rule in RULES if rule.group in WEIGHED}
    - {"gpu:cause:evidence", "gpu:held:bool", "gpu:stall:share_rate5m"}
    - {"helper:host_cause:max", "helper:host_cause:bool", "helper:slow:bool"}
    - {"helper:group_broken:bool", "helper:group_waits:bool"}
    - {"gpu:recent_workload:info", "helper:recent_owner:info"}
}
KNOWN = RECORDED | set(LABELS) | {"up"}

PAGES = [README, *sorted(RUNBOOKS.glob("*.md"))]
NAME = re.compile(r"\b(?:gpu|instance|cause|cluster|workload|owner|helper):[a-z0-9_]+:[a-z0-9_]+")
FENCE = re.compile(r"^```promql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
TOLD = re.compile(r"`(gpu:threshold:\w+(?:\{[^}]*\})?)` \| ([\d.]+) \|")


def text_of(alert: str) -> str:
    return (RUNBOOKS / f"{alert}.md").read_text(encoding="utf-8")


def section(alert: str, heading: str) -> str:
    _, _, rest = text_of(alert).partition(f"\n## {heading}\n")
    return rest.partition("\n## ")[0].strip()


def flat(text: str) -> str:
    return " ".join(text.split())


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    assert sorted(path.name for path in RUNBOOKS.iterdir()) == [f"{name}.md" for name in ALERTS]


@each(ALERTS)
def test_a_runbook_has_all_headings_in_order_and_queries(alert: str) -> None:
    """It begins with cause, severities and owner."""
    lines = re.sub(r"^```.*?^```$", "", text_of(alert), flags=re.MULTILINE | re.DOTALL).splitlines()
    found = [line for line in lines if line.startswith("#")]
    assert found == [f"# {alert}", *(f"## {heading}" for heading in HEADINGS)]
    assert all(section(alert, heading) for heading in HEADINGS)
    assert FENCE.search(section(alert, "Diagnosis"))
    labels = causes_table.variants(alert)[0].labels
    cause = f"`{labels['cause']}`" if "cause" in labels else "none"
    severities = ", ".join(causes_table.severities(alert))
    expected = f"*Cause: {cause} · severity: {severities} · owner: {labels['owner']}*"
    assert text_of(alert).splitlines()[:4] == [f"# {alert}", "", expected, ""]


@each(ALERTS)
def test_a_runbook_and_the_alert_give_the_same_advice(alert: str) -> None:
    descriptions = [rule.annotations["description"] for rule in causes_table.variants(alert)]
    first, *others = [causes_table.signal_and_remedy(text)[1] for text in descriptions]
    assert first
    advice = flat(section(alert, "Mitigation"))
    assert advice.startswith(first)
    # Of the milder ones: some say less, or something else.
    assert [remedy for remedy in others if remedy.rstrip(".") not in advice] == []


@each(ALERTS)
def test_a_runbook_says_what_to_do_then_what_it_brings_then_what_does_not_help(alert: str) -> None:
    mitigation = section(alert, "Mitigation")
    kinds = re.findall(r"^(?:-|\d+\.) (Gain: |Wrong: |)", mitigation, re.MULTILINE)
    assert kinds == sorted(kinds)
    if alert in {*OF_CAUSES, "GpuExporterDown"}:
        assert "\n- Wrong: " in mitigation
    if alert in OF_CAUSES:
        (gain,) = re.findall(r"\n- Gain: (.+(?:\n  .+)*)", mitigation)
        # A figure, a bound, or that there is none.
        assert re.search(r"\d|whole|nearly|most|no figure|twice|half", gain)


def queries(page: Path) -> list[Rule]:
    """Each fence is one query; treated as rules, to be taken apart like them."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [Rule(page.name, "", {"record": "query", "expr": query}) for query in found]


VALUES = {
    "waiting_on": set(WAITING_ON),
    "cause": {rule.labels["cause"] for rule in RULES if "cause" in rule.labels},
    "blind": {rule.labels["blind"] for rule in RULES if "blind" in rule.labels},
}


@each(PAGES)
def test_a_query_can_be_run_and_asks_for_what_exists(page: Path) -> None:
    for name, asked in (one for query in queries(page) for one in query.selected):
        names = set(name.split("|"))
        unknown = [n for n in names if not any(re.fullmatch(n, known) for known in KNOWN)]
        assert unknown == []
        for one in names & set(LABELS):
            assert {label for label, _ in asked} <= LABELS[one] | OF_TARGET
        for label, value in asked:
            assert label not in VALUES or set(value.split("|")) <= VALUES[label]


def test_the_queries_run_on_a_fleet(tmp_path: Path) -> None:
    fleet = Fleet(40)
    job = {"slurm_job_id": "7", "user": "ada"}
    for index, busy in enumerate((0.98, 0.98, 0.98, 0.2)):
        gpu = Gpu(busy=busy, throttle={"sw_thermal": 0.3}, xids={"94": index}, owner=job)
        add_gpu(fleet, "several", gpu, index)
    starved = Gpu(busy=0.2, stalls={"storage": 0.8}, disk_busy=0.9, link_width=8)
    add_gpu(fleet, "starved", replace(starved, outlook=Outlook(PRESCRIBED, SCORED)))
    add_gpu(fleet, "shared", Gpu(busy=1.0, owners=[job, {"user": "eve"}], cpu_limit_cores=4))
    add_gpu(fleet, "free", Gpu(busy=0.0, processes=0, memory=0.0, feeders=False))
    for page in PAGES:
        for query in queries(page):
            fleet.expect(39, f"(count({query.fields['expr']}) or vector(0)) * 0", {"{}": 0.0})
    fleet.check(tmp_path)


@each(PAGES)
def test_the_series_that_are_named_exist(page: Path) -> None:
    named = set(NAME.findall(page.read_text(encoding="utf-8")))
    assert named - RECORDED - {"gpu:threshold:"} == set()


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


@each(PAGES)
def test_the_thresholds_that_are_told_are_those_in_force(page: Path) -> None:
    told = dict(TOLD.findall(page.read_text(encoding="utf-8")))
    assert told.items() <= IN_FORCE.items()


def thresholds_of(begin: Iterable[Rule]) -> set[str]:
    """Thresholds that rules read, also through inputs and helpers in the layer of evidence."""
    todo, seen = list(begin), set[str]()
    while todo:
        new = todo.pop().reads - seen
        seen |= new
        todo += [rule for name in new for rule in HELPERS.get(name, [])]
    return {name for name in seen if name.startswith("gpu:threshold:")}


def told_thresholds(text: str) -> set[str]:
    return {series.partition("{")[0] for series, _ in TOLD.findall(text)}


@each([name for name in ALERTS if name != "GpuThresholdsMissing"])
def test_a_runbook_tells_the_thresholds_of_its_rules(alert: str) -> None:
    variants = causes_table.variants(alert)
    cause = variants[0].labels.get("cause")
    evidence = [r for r in RULES if r.name == "gpu:cause:evidence" and r.labels["cause"] == cause]
    needed = thresholds_of([*variants, *evidence])
    assert needed - told_thresholds(section(alert, "Thresholds")) == set()


def test_the_readme_tells_the_thresholds_of_the_gates() -> None:
    gates = {name for rule in RULES if rule.name.startswith("gpu:gate:") for name in rule.reads}
    needed = {name for name in gates if name.startswith("gpu:threshold:")}
    assert needed - told_thresholds(README.read_text(encoding="utf-8")) == set()


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@each(PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            to = (page.parent / target).resolve() if target else page
            assert to.exists()
            assert not anchor or anchor in anchors(to)


def test_the_table_has_a_row_for_each_cause_in_order() -> None:
    _, _, *rows = causes_table.table("runbooks").splitlines()
    told = [row.split("|")[1].strip(" `") for row in rows]
    ordered = [rule.labels["cause"] for rule in RULES if rule.name == "gpu:cause:order"]
    assert told[: len(ordered)] == ordered
    known = {rule.labels["cause"] for rule in RULES if rule.name == "gpu:cause:evidence"}
    assert sorted(told[len(ordered) :]) == sorted(known - set(ordered))
    assert all(cell.strip() for row in rows for cell in row.split("|")[1:-1])


def test_what_a_description_says() -> None:
    whose = "GPU {{ $labels.gpu }} ({{ if $x }}a{{ end }})"
    description = f"{whose} is idle {{{{ $value | f }}}} of the time: it\n waits. Do a.\n Do b."
    assert causes_table.signal_and_remedy(description) == ("It waits.", "Do a. Do b.")
