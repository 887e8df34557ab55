"""The rules of Grafana's dashboard-linter, and what the queries may read."""

from __future__ import annotations

import re
from itertools import product

import promql_parser as promql

from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from grafana.boards import (
    EVERYTHING,
    NAMES,
    Asked,
    Json,
    asked,
    board,
    filled,
    nodes,
    panels,
    selectors,
)
from rules.causes_table import pack
from support.offenders import each
from tables import metrics

RECORDED = {rule.name for rule in pack() if not rule.is_alert}
LABELS = {family.name: {*family.labels} for family in metrics.families()}
OF_PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
OF_PROMETHEUS = {"up", "ALERTS", "scrape_duration_seconds", "scrape_samples_scraped"}
KNOWN = RECORDED | set(LABELS) | OF_PROCESS | OF_PROMETHEUS
OF_TARGET = {"cluster", "job", "instance"}
COUNTERS = {family.name for family in metrics.families() if family.kind == "counter"}
UNITS = {*("none", "short", "locale", "percentunit", "s", "bytes", "Bps", "watt", "celsius", "cps")}
"""Those in use, all of them known to Grafana."""
WHOLE_JOB = "GPUs of the same job are on other nodes, too"
EXEMPT = {
    "exporter: Rules A": "thresholds are the rules' own: they have no target",
    "gpu: Job: busy A": WHOLE_JOB,
    "gpu: Job: power, share of the limit A": WHOLE_JOB,
    "gpu: Job: SM clock, share of the maximum A": WHOLE_JOB,
}
"""Queries that need not match the instance (or the job), and why."""
OPERATORS = {
    "MatchOp.Equal": "=",
    "MatchOp.NotEqual": "!=",
    "MatchOp.Re": "=~",
    "MatchOp.NotRe": "!~",
}

each_board = each(NAMES)


def variables(name: str) -> dict[str, Json]:
    return {one["name"]: one for one in board(name)["templating"]["list"]}


def matched(selector: promql.VectorSelector) -> dict[str, str]:
    """Each label and what is asked of it: operator and value."""
    return {one.name: OPERATORS[f"{one.op}"] + one.value for one in selector.matchers.matchers}


# --- Templates ------------------------------------------------------------------------------------
@each_board
def test_the_data_source_is_a_variable(name: str) -> None:
    """template-datasource-rule."""
    found = variables(name)["datasource"]
    assert (found["type"], found["query"], found["label"]) == (
        "datasource",
        "prometheus",
        "Data source",
    )


@each_board
def test_targets_are_variables(name: str) -> None:
    """template-job-rule, template-instance-rule."""
    for variable, label in (("job", "Job"), ("instance", "Instance")):
        found = variables(name)[variable]
        assert found["datasource"]["uid"] == "${datasource}"
        assert (found["type"], found["label"]) == ("query", label)
        assert found["multi"]
        assert found["allValue"] == ".+"


@each_board
def test_variables_ask_what_can_be_asked(name: str) -> None:
    """template-label-promql-rule."""
    for one in variables(name).values():
        if one["type"] == "query":
            for selector in selectors(asked_by(one)):
                assert selector.name in KNOWN


def asked_by(variable: Json) -> str:
    """The PromQL within a variable's query."""
    query = filled(variable["query"])
    label = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
    result = re.fullmatch(r"query_result\((.+)\)", query)
    found = label or result
    assert found is not None, query
    return found[1]


@each_board
def test_variables_follow_the_time_range(name: str) -> None:
    """template-on-time-change-reload-rule."""
    queried = [one for one in variables(name).values() if one["type"] == "query"]
    assert {one["refresh"] for one in queried} == {2}


@each_board
def test_a_dashboard_cannot_be_edited_where_it_is_provisioned(name: str) -> None:
    """uneditable-dashboard-rule."""
    assert board(name)["editable"] is False


# --- Panels ---------------------------------------------------------------------------------------
@each_board
def test_a_panel_uses_the_data_source_of_the_variable(name: str) -> None:
    """panel-datasource-rule."""
    for panel in panels(name):
        expected = {"type": "prometheus", "uid": "${datasource}"}
        assert panel["datasource"] == expected, panel["title"]
        assert all(target["datasource"] == expected for target in panel["targets"]), panel["title"]


@each_board
def test_a_panel_says_what_it_shows(name: str) -> None:
    """panel-title-description-rule."""
    for panel in panels(name):
        assert panel["title"], panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert len(panel["description"]) > 15, panel["title"]


@each_board
def test_a_panel_has_a_unit(name: str) -> None:
    """panel-units-rule."""
    for panel in panels(name):
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]


@each_board
def test_a_panel_asks_something(name: str) -> None:
    """panel-no-targets-rule."""
    for panel in panels(name):
        assert panel["targets"], panel["title"]


@each_board
def test_nothing_is_not_zero(name: str) -> None:
    for panel in panels(name):
        assert panel["fieldConfig"]["defaults"]["noValue"] not in {"", "0"}, panel["title"]
        custom = panel["fieldConfig"]["defaults"]["custom"]
        assert not custom.get("spanNulls", False), panel["title"]
        assert all("vector(0)" not in target["expr"] for target in panel["targets"]), panel["title"]


# --- Queries --------------------------------------------------------------------------------------
@each_board
def test_a_query_is_promql(name: str) -> None:
    """target-promql-rule; target-logql-rule and -auto-rule have nothing to check here."""
    for query in asked(name):
        assert selectors(query.text()), f"{query}"


@each_board
def test_a_query_reads_what_is_exported_or_recorded(name: str) -> None:
    for query in asked(name):
        for selector in selectors(query.text()):
            assert selector.name in KNOWN, f"{query}"
            labels = set(matched(selector)) - OF_TARGET
            if selector.name in LABELS:
                assert labels <= LABELS[selector.name], f"{query}"


@each_board
def test_a_query_asks_for_values_that_exist(name: str) -> None:
    for query in asked(name):
        for selector in selectors(query.text()):
            asks = matched(selector)
            assert set(asks.get("waiting_on", "").lstrip("=~").split("|")) <= {"", *WAITING_ON}, (
                f"{query}"
            )


OF_NONE = {"cluster": "=~chosen|", "job": "=", "instance": "="}
"""What is asked of alerts about the rules themselves, which are of no target."""


def of_target(selector: promql.VectorSelector) -> bool:
    """Not so: alerts that have no job and no instance."""
    return selector.name != "ALERTS" or matched(selector).get("job") != "="


def owed(query: Asked, label: str) -> bool:
    """Whether each selector must match the label by its variable."""
    exempt = EXEMPT.get(f"{query}")
    return exempt is None or (exempt == WHOLE_JOB and label != "instance")


@each(product(NAMES, ("cluster", "job", "instance")))
def test_a_query_keeps_to_the_targets_chosen(of: tuple[str, str]) -> None:
    """target-job-rule, target-instance-rule."""
    name, label = of
    for query in asked(name):
        if owed(query, label):
            for selector in selectors(query.text({**EVERYTHING, label: "chosen"})):
                asked_for = matched(selector).get(label)
                assert asked_for == ("=~chosen" if of_target(selector) else OF_NONE[label]), query


def test_no_exemption_is_left_over() -> None:
    for query in asked():
        if f"{query}" in EXEMPT:
            found = selectors(query.text({**EVERYTHING, "instance": "chosen"}))
            assert any(matched(one).get("instance") != "=~chosen" for one in found), f"{query}"
    assert set(EXEMPT) <= {f"{query}" for query in asked()}, f"{query}"


@each_board
def test_a_rate_is_over_the_interval_of_the_scrapes(name: str) -> None:
    """target-rate-interval-rule."""
    for query in asked(name):
        for call in nodes(query.text({**EVERYTHING, "__rate_interval": "77s"}), promql.Call):
            if call.func.name in {"rate", "irate"}:
                (matrix,) = call.args
                assert isinstance(matrix, promql.MatrixSelector), f"{query}"
                assert matrix.range.total_seconds() == 77, f"{query}"


@each_board
def test_a_counter_is_shown_as_a_rate(name: str) -> None:
    """target-counter-agg-rule."""
    for query in asked(name):
        text = query.text()
        read = [one.name for one in selectors(text) if one.name in COUNTERS]
        rated = [
            matrix.vector_selector.name
            for call in nodes(text, promql.Call)
            if call.func.name in {"rate", "increase"}
            for matrix in call.args
            if isinstance(matrix, promql.MatrixSelector)
        ]
        assert sorted(read) == sorted(one for one in rated if one in COUNTERS), f"{query}"


@each_board
def test_annotations_are_alerts_of_this_pack(name: str) -> None:
    known = {rule.name for rule in pack() if rule.is_alert}
    (annotation,) = board(name)["annotations"]["list"]
    assert annotation["datasource"]["uid"] == "${datasource}"
    for selector in selectors(filled(annotation["target"]["expr"])):
        assert selector.name == "ALERTS"
        pattern = matched(selector)["alertname"].removeprefix("=~")
        assert any(re.fullmatch(pattern, alert) for alert in known)
