"""The rules of Grafana's dashboard-linter, and what the queries may read."""

from __future__ import annotations

import json
import re

import promql_parser as promql

from grafana import boards
from grafana.boards import NAMES, Json, board, each_board, each_panel, each_query, panels
from grafana.schema import UNITS
from rules.causes_table import pack
from rules.parsed import nodes
from support.offenders import each
from tables import metrics

RECORDED = {rule.name for rule in pack() if not rule.is_alert}
LABELS = {family.name: {*family.labels} for family in metrics.families()}
OF_PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
OF_PROMETHEUS = {"up", "ALERTS", "scrape_duration_seconds", "scrape_samples_scraped"}
KNOWN = RECORDED | set(LABELS) | OF_PROCESS | OF_PROMETHEUS
OF_TARGET = {"cluster", "job", "instance"}
WHOLE_JOB = "GPUs of the same job are on other nodes, too"
OF_ENGINES = "deployments of engines are of no target of the exporter"
OF_OWNERS = "what owners lose is added up over all of their GPUs"
EXEMPT = {
    "exporter: Rules A": "thresholds are the rules' own: they have no target",
    "gpu: Job: busy A": WHOLE_JOB,
    "gpu: Job: power, share of the limit A": WHOLE_JOB,
    "gpu: Job: SM clock, share of the maximum A": WHOLE_JOB,
    **dict.fromkeys((f"fleet: GPU-hours lost in a week, by owner {at}" for at in "AB"), OF_OWNERS),
    **dict.fromkeys((f"fleet: Replicas, by deployment {at}" for at in "AB"), OF_ENGINES),
    **dict.fromkeys((f"fleet: This month, by owner {at}" for at in "ABCD"), OF_OWNERS),
}
"""Queries that need not match the instance (or the job), and why."""
OPERATORS = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


def variables(name: str) -> dict[str, Json]:
    return {one["name"]: one for one in board(name)["templating"]["list"]}


def matched(selector: promql.VectorSelector) -> dict[str, str]:
    """Each label and what is asked of it: operator and value."""
    return {
        one.name: OPERATORS[f"{one.op}".removeprefix("MatchOp.")] + one.value
        for one in selector.matchers.matchers
    }


# --- Templates ------------------------------------------------------------------------------------
@each_board
def test_data_source_and_targets_are_variables(name: str) -> None:
    """template-datasource-rule, -job-rule, -instance-rule, uneditable-dashboard-rule."""
    told = {"type": "datasource", "query": "prometheus", "label": "Data source"}
    assert told.items() <= variables(name)["datasource"].items()
    for variable, label in (("job", "Job"), ("instance", "Instance")):
        asks: Json = {"type": "query", "label": label, "multi": True, "allValue": ".+"}
        assert asks.items() <= variables(name)[variable].items()
        assert variables(name)[variable]["datasource"]["uid"] == "${datasource}"
    assert board(name)["editable"] is False


@each_board
def test_variables_ask_what_can_be_asked_for_the_time_range(name: str) -> None:
    """template-label-promql-rule, template-on-time-change-reload-rule."""
    for one in variables(name).values():
        if one["type"] == "query":
            assert one["refresh"] == 2
            assert all(selector.name in KNOWN for selector in boards.selectors(asked_by(one)))


def asked_by(variable: Json) -> str:
    """The PromQL within a variable's query."""
    query = boards.filled(variable["query"])
    found = re.fullmatch(r"label_values\((.+), \w+\)|query_result\((.+)\)", query)
    assert found is not None, query
    return found[1] or found[2]


# --- Panels ---------------------------------------------------------------------------------------
@each_panel
def test_a_panel_says_what_it_shows_and_asks_something(panel: Json) -> None:
    """panel-datasource-rule, -title-description-rule, -units-rule, -no-targets-rule."""
    expected = {"type": "prometheus", "uid": "${datasource}"}
    assert all(one["datasource"] == expected for one in (panel, *panel["targets"]))
    assert panel["title"]
    assert re.fullmatch(r".{15,}\.", panel["description"], re.DOTALL)
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["targets"]


BAD_NEWS = {"Rules": "Not loaded"}
"""Texts that need not mention a lack of data: they name one."""


@each_panel
def test_nothing_is_not_zero_and_an_empty_panel_claims_no_health(panel: Json) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    said = defaults["noValue"]
    assert said in {"-", BAD_NEWS.get(panel["title"])} or "no data" in said.lower()
    assert not defaults["custom"].get("spanNulls", False)
    assert all("vector(0)" not in target["expr"] for target in panel["targets"])


# --- Queries --------------------------------------------------------------------------------------


OF_NONE = {"cluster": "=~chosen|", "job": "=", "instance": "="}
"""What is asked of alerts about the rules themselves, which are of no target."""


@each_query
def test_a_query_keeps_to_the_targets_chosen(query: boards.Asked) -> None:
    """target-job-rule, target-instance-rule."""
    exempt = EXEMPT.get(f"{query}")
    owed = [*OF_NONE] if exempt is None else ["cluster", "job"] if exempt == WHOLE_JOB else []
    for label in owed:
        for selector in boards.selectors(query.text({**boards.EVERYTHING, label: "chosen"})):
            asks = matched(selector)
            of_none = selector.name == "ALERTS" and asks.get("job") == "="
            assert asks.get(label) == (OF_NONE[label] if of_none else "=~chosen"), label


@each_query
def test_a_rate_is_over_the_interval_of_the_scrapes(query: boards.Asked) -> None:
    """target-rate-interval-rule."""
    text = query.text({**boards.EVERYTHING, "__rate_interval": "77s"})
    for call in nodes(promql.parse(text), promql.Call):
        if call.func.name in {"rate", "irate"}:
            (matrix,) = call.args
            assert isinstance(matrix, promql.MatrixSelector)
            assert matrix.range.total_seconds() == 77


@each_board
def test_annotations_are_alerts_of_this_pack(name: str) -> None:
    (annotation,) = board(name)["annotations"]["list"]
    assert annotation["datasource"]["uid"] == "${datasource}"
    for selector in boards.selectors(boards.filled(annotation["target"]["expr"])):
        assert selector.name == "ALERTS"
        pattern = matched(selector)["alertname"].removeprefix("=~")
        assert any(re.fullmatch(pattern, alert) for alert in ALERTS)


# --- Columns, variables and runbooks: Grafana passes over what there is not -----------------------
ALERTS = {rule.name for rule in pack() if rule.is_alert}
BY = re.compile(r"\bby \(([^)]+)\)")
TABLES = [(name, panel) for name in NAMES for panel in panels(name) if panel["type"] == "table"]

each_table = each([panel for _, panel in TABLES], lambda panel: f"{panel['title']}")


def columns(panel: Json) -> set[str]:
    """The columns of a table whose queries all have an answer: what they group by, and values."""
    asked = panel["targets"]
    labels = {label for one in asked for label in BY.findall(one["expr"])[0].split(", ")}
    letters = {f"Value #{one['refId']}" for one in asked}
    return labels | (letters if len(asked) > 1 else {"Value"})


def rules_of(panel: Json) -> list[Json]:
    """Overrides but for those of any column."""
    found: list[Json] = panel["fieldConfig"]["overrides"]
    return [one for one in found if one["matcher"]["options"] != "/.*/"]


@each_table
def test_overrides_are_of_columns_that_there_are(panel: Json) -> None:
    there = columns(panel)
    for one in rules_of(panel):
        matcher = one["matcher"]
        if matcher["id"] == "byRegexp":
            pattern = re.compile(matcher["options"].strip("/"))
            assert any(pattern.search(column) for column in there), matcher
        else:
            assert matcher["options"] in there, matcher


def test_links_in_heads_lead_to_runbooks() -> None:
    urls = [link["url"] for panel in panels("exporter") for link in panel.get("links", [])]
    names = {re.fullmatch(r"\$\{runbooks\}/(\w+)\.md", url)[1] for url in urls}  # type: ignore[index]
    told = re.findall(r"Gpu[A-Z]\w+", board("exporter")["annotations"]["list"][0]["target"]["expr"])
    assert names == set(told)
    assert names <= ALERTS


@each_board
def test_every_variable_is_used(name: str) -> None:
    found = board(name)
    for one in found["templating"]["list"]:
        others = [v for v in found["templating"]["list"] if v["name"] != one["name"]]
        rest = json.dumps({**found, "templating": others})
        assert re.search(rf"\$\{{?{one['name']}\b", rest), one["name"]
