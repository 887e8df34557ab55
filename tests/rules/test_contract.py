"""What every rule keeps to: names, labels, thresholds, divisions, what it may read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import promql_parser as promql

from gpu_bottleneck_exporter import rulepack
from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from gpu_bottleneck_exporter.commands.files import dashboards
from gpu_bottleneck_exporter.prescription.thresholds import ADVICE
from rules import causes_table
from rules.parsed import Rule, groups, rules, seconds
from support.offenders import each
from tables import metrics

LABELS = {family.name: set(family.labels) for family in metrics.families()}
EXPORTED = set(LABELS)
OF_PROMETHEUS = {"up", "ALERTS"}
OF_OTHERS = {
    *("kube_job_owner", "kube_pod_owner", "kube_node_info", "kube_node_status_capacity"),
    "gpu:exempt:info",
}
"""Metrics of kube-state-metrics and of a site's own rules, used where they are there."""
RUNBOOKS = (
    "https://github.com/gpu-bottleneck-exporter/gpu-bottleneck-exporter/blob/main/rules/runbooks"
)

ALL = rules()
FOR_OTHERS = {"dcgm.yml", "jobstats.yml", "opencost.yml", "owners.yml"}
OURS = [rule for rule in ALL if rule.file not in FOR_OTHERS]
RECORDS = [rule for rule in ALL if not rule.is_alert]
ALERTS = [rule for rule in ALL if rule.is_alert]
RECORDED = {rule.name for rule in RECORDS}
THEIRS = {name for name in RECORDED if name.startswith(("nvidia_gpu_", "DCGM_FI_"))}
"""Names that jobstats and OpenCost ask for."""
ORDER = [rule for rule in RECORDS if rule.name == "gpu:cause:order"]
THRESHOLD = "gpu:threshold:"
THRESHOLDS = [rule for rule in RECORDS if rule.name.startswith(THRESHOLD)]
OTHERS = {
    "dcgm.yml": ("DCGM_", "node_"),
    "owners.yml": ("kube_pod_labels", "kube_namespace_labels"),
    "serving.yml": (
        *("vllm:", "sglang:", "tgi_", "nv_", "trtllm_", "llamacpp:", "ray_serve_", "dynamo_"),
    ),
}
"""Beginnings of what other exporters show, by the file that reads it."""
SELECTED = [(rule, name, asked) for rule in ALL for name, asked in rule.selected]
"""Of each selector its rule, metric and labels."""
UNSTABLE = {"irate", "idelta", "deriv", "topk", "bottomk"}
SUMMED = {"helper:tenant:stall"}
"""Whose samples are added up, so that series may come and go."""
"""Two samples decide, or the label sets change from one evaluation to the next."""
LONGEST = 500
"""Characters of an expression, without its indentation."""
LONG = {
    *("gpu:throttle:ratio_rate5m", "gpu:temperature_margin:celsius_avg5m", "gpu:tenants:count"),
    *("helper:workload:owner", "gpu:checkpoint:ratio_rate30m", "gpu:pcie_width:ratio"),
    *("helper:workload:grouped", "gpu:owner:info", "workload:stall_gpu_seconds:sum5m"),
    *("gpu:recent_workload:info", "helper:compiles:bool"),
    *("gpu:cause:evidence-startup_stall", "helper:straggler:work"),
    *("gpu:cause:evidence-pcie_transfer_bound", "gpu:cause:evidence-communication_bound"),
    *("helper:lost:ratio_rate10m", "gpu:bottleneck:lost_over1h", "gpu:power:ratio_avg5m"),
    *("gpu:architecture:info", "helper:dcgm_owner:info", "helper:pod_owner:info"),
    "GpuBudgetBurn-warning",
}
"""Longer ones, still to be split."""
ENDS_AT_ONCE = {
    "GpuThresholdsMissing": "ends with the reload that loads them",
    "GpuExporterDown": "ends with the next scrape",
}
"""Alerts without keep_firing_for, and why they cannot flap."""

README_FILE = Path(__file__).parents[2] / "rules/README.md"
README = README_FILE.read_text(encoding="utf-8")
STATE = README.partition("\n## State\n")[2].partition("\n## ")[0]
"""The list of rules that read their own last values."""


def test_rules_read_what_is_exported_or_recorded() -> None:
    """Or, some, what another exporter shows."""
    for rule, name, _ in SELECTED:
        others = OTHERS.get(rule.file, ())
        known = OF_PROMETHEUS | OF_OTHERS | RECORDED | (set() if others else EXPORTED)
        found = any(re.fullmatch(name, one) for one in known)
        assert found or name.startswith(others or "-"), (f"{rule}", name)


def test_rules_ask_for_labels_and_waits_that_the_exporter_has() -> None:
    ours = [one for one in SELECTED if one[0].file != "dcgm.yml" and one[1] in EXPORTED]
    wrong = [(f"{rule}", {*dict(asked)} - LABELS[name]) for rule, name, asked in ours]
    assert [one for one in wrong if one[1]] == []
    waits = {value for _, _, asked in SELECTED for label, value in asked if label == "waiting_on"}
    assert {name for value in waits for name in value.split("|")} <= {"", *WAITING_ON}


def test_only_inputs_name_the_exporter() -> None:
    raw = {rule.group for rule in OURS if rule.reads - RECORDED - {"ALERTS"}}
    assert raw == {*rulepack.INPUTS, "gpu-telemetry-and-hardware", "serving-inputs"}


def test_fatal_xids_are_the_same_everywhere() -> None:
    """In both dialects and in the runbook."""
    asked = {
        (rule.file, value)
        for rule, _, labels in SELECTED
        for label, value in labels
        if label == "xid" and rule.name == "gpu:fatal_xids:increase10m"
    }
    assert {file for file, _ in asked} == {"recording.yml", "dcgm.yml"}
    (codes,) = {value for _, value in asked}
    runbook = README_FILE.parent.joinpath("runbooks/GpuFault-gpu_fault.md").read_text(
        encoding="utf-8"
    )
    mitigation = runbook.partition("## Diagnosis")[0].partition("- Wrong")[0]
    assert {*codes.split("|")} - {*re.findall(r"\b\d+\b", mitigation)} == set()


def test_recorded_names_are_level_metric_operations() -> None:
    pattern = re.compile(r"[a-z]+:[a-z][a-z0-9_]*:[a-z][a-z0-9_]*")
    assert [name for name in RECORDED - THEIRS if not pattern.fullmatch(name)] == []


def test_what_is_recorded_is_documented_or_a_helper() -> None:
    told = set(re.findall(r"`([a-z]+:\w+:\w+)", README))
    interface = {name for name in RECORDED - THEIRS if not name.startswith(("helper:", THRESHOLD))}
    assert interface - told == set()
    assert not re.search(r"`helper:\w", README.replace(STATE, ""))


def test_a_prediction_was_right_within_the_exporters_interval() -> None:
    inside = next(rule for rule in RECORDS if rule.name == "cluster:predictions_inside:ratio")
    assert f"<= bool {ADVICE.prediction_error:g} *" in inside.fields["expr"]


def test_each_helper_is_read_by_a_rule() -> None:
    read = {name for rule in ALL for name in rule.reads}
    assert [name for name in RECORDED - read if name.startswith("helper:")] == []


def test_sums_over_evaluations_are_right_where_these_are_on_whole_steps() -> None:
    """Else the window has one evaluation more on engines that align them."""
    sums = re.compile(r"(?:sum|count)_over_time")
    subquery = re.compile(r"\[\d+[smhd]:\d+[smhd]\](?! offset 1s)")
    every = [(f"{rule}", rule.fields["expr"]) for rule in ALL]
    assert [name for name, expr in every if sums.search(expr) and subquery.search(expr)] == []


@each(ALL)
def test_no_rule_is_unstable(rule: Rule) -> None:
    called = {call.func.name for call in rule.nodes(promql.Call)}
    aggregated = {f"{node.op}" for node in rule.nodes(promql.AggregateExpr)}
    assert not UNSTABLE & (called | aggregated) or rule.name in SUMMED


@each(ALERTS)
def test_an_alert_says_how_bad_it_is_and_whose(rule: Rule) -> None:
    assert rule.labels["severity"] in {"critical", "warning", "info"}
    assert rule.labels["responder"] in {"job", "platform"}
    assert rule.labels["severity"] != "critical" or rule.labels["cause"] == "gpu_fault"
    assert re.fullmatch(r"Gpu[A-Za-z]+", rule.name)


def test_the_cause_of_an_alert_is_a_known_one() -> None:
    known = {r.labels["cause"] for r in RECORDS if r.name == "gpu:cause:evidence"}
    of_causes = [rule for rule in causes_table.alerts() if "cause" in rule.labels]
    assert {rule.labels["cause"] for rule in of_causes} == known
    assert sorted(rule.labels["cause"] for rule in ORDER) == sorted(known)


def test_the_kinds_of_causes_are_those_that_rules_ask_for() -> None:
    asked = {one for _, name, asked in SELECTED if name == "gpu:cause:order" for one in asked}
    told = {item for rule in ORDER for item in rule.labels.items() if item[0] != "cause"}
    any_value = {name for name, value in asked if not value}
    assert told >= {item for item in asked if item[1]}
    # Which setting removes it is what descriptions ask.
    assert {name for name, _ in told - asked} <= any_value | {"knob"}


def test_no_rule_lists_causes() -> None:
    """Which are of a kind is said by `gpu:cause:order`; a rule may name two, as exceptions."""
    listed = [(f"{r}", value) for r, _, asked in SELECTED for key, value in asked if key == "cause"]
    assert [one for one in listed if one[1].count("|") > 1] == []


@each(ALERTS)
def test_an_alert_tells_people_what_to_do(rule: Rule) -> None:
    texts = {"summary", "description", "runbook_url", "dashboard_path"}
    assert set(rule.annotations) == texts | {*["hours"] * (rule.name == "GpuReclaimable")}
    assert rule.annotations["description"].endswith((".", "?", "{{ end }}", "{{- end }}"))
    pages = {f"{RUNBOOKS}/{name}.md" for name in (rule.name, rule.name + "-{{ $labels.cause }}")}
    assert rule.annotations["runbook_url"] in pages
    uids = {json.loads(board)["uid"] for board in dashboards().values()}
    (uid,) = re.findall(r"^/d/([a-z-]+)(?:\?|$)", rule.annotations["dashboard_path"])
    assert uid in uids
    # rules --no-prescriptions cuts the rest off.
    before = [text.partition("{{- $of")[0] for text in rule.annotations.values()]
    assert not any(re.search(r"[| ]query\b", text) for text in before)


@each(ALERTS)
def test_an_alert_is_calm(rule: Rule) -> None:
    assert seconds(rule.fields["for"]) >= 60
    if rule.name in ENDS_AT_ONCE:
        assert "keep_firing_for" not in rule.fields, "the reason is left over"
    elif rule.labels["severity"] != "info":
        assert seconds(rule.fields["keep_firing_for"]) >= 600


def test_thresholds_are_used_counted_and_numbers_in_a_file_of_their_own() -> None:
    used = {name for rule in ALL for name in rule.reads if name.startswith(THRESHOLD)}
    assert used == {rule.name for rule in THRESHOLDS}
    assert {rule.file for rule in THRESHOLDS} == {"thresholds.yml"}
    number = re.compile(r"vector\(\d+(\.\d+)?\)")
    assert [f"{rule}" for rule in THRESHOLDS if not number.fullmatch(rule.fields["expr"])] == []
    (alert,) = (rule for rule in ALL if rule.name == "GpuThresholdsMissing")
    assert re.findall(r"!= (\d+)", alert.fields["expr"]) == [f"{len(used)}"]


def bare(node: promql.Expr) -> promql.Expr:
    return bare(node.expr) if isinstance(node, promql.ParenExpr) else node


def is_positive(node: promql.Expr) -> bool:
    """Whether it can be seen not to be zero: a number, a power, a threshold, or filtered."""
    node = bare(node)
    if isinstance(node, promql.NumberLiteral):
        return node.val > 0
    if isinstance(node, promql.VectorSelector):
        return (node.name or "").startswith(THRESHOLD)
    if isinstance(node, promql.Call):
        return node.func.name == "scalar" and all(map(is_positive, node.args))
    return isinstance(node, promql.BinaryExpr) and is_positive_operation(node)


def is_positive_operation(node: promql.BinaryExpr) -> bool:
    operator = f"{node.op}"
    if operator == "^":
        return is_positive(node.lhs)
    if operator == "*":
        return is_positive(node.lhs) and is_positive(node.rhs)
    is_filter = operator == ">" and not (node.modifier and node.modifier.return_bool)
    bound = bare(node.rhs)
    return is_filter and isinstance(bound, promql.NumberLiteral) and bound.val >= 0


def test_no_expression_is_too_long_to_be_read() -> None:
    long = {f"{rule}" for rule in ALL if len(" ".join(rule.fields["expr"].split())) > LONGEST}
    assert long == LONG


def test_the_rules_that_keep_state_are_listed_and_for_how_long() -> None:
    """Each reads its own last value, or that of a rule that reads it."""
    recorded = {rule.name: rule.reads for rule in OURS if not rule.is_alert}
    del recorded["gpu:cause:evidence"]  # of many rules, some of which read others
    keeps = {
        name
        for name, reads in recorded.items()
        if any(name in recorded[other] for other in reads & recorded.keys())
    }
    rows = re.findall(r"^\| `([a-z0-9_:]+)` \| .+ \| .+ \|$", STATE, re.MULTILINE)
    assert sorted(rows) == sorted(keeps)


def test_nothing_is_divided_by_zero() -> None:
    every = [(rule, node) for rule in ALL for node in rule.nodes(promql.BinaryExpr)]
    divisors = [(rule, node.rhs) for rule, node in every if f"{node.op}" in "/%"]
    assert [(f"{rule}", f"{node}") for rule, node in divisors if not is_positive(node)] == []


def test_windows_of_a_day_are_in_a_group_that_is_evaluated_seldom() -> None:
    every = [group for text in rulepack.files().values() for group in groups(text)]
    days = re.compile(r"\[\d+d\]")
    of_days = {g["name"] for g in every if any(days.search(rule["expr"]) for rule in g["rules"])}
    seldom = {group["name"] for group in every if group["interval"] != "1m"}
    assert of_days == seldom == {"gpu-day", "gpu-bill", "gpu-budgets", "serving-week"}


@each(ALERTS)
def test_texts_read_what_is_recorded_seldom_over_a_window(rule: Rule) -> None:
    """Else the last value is too old for an instant query at every other evaluation."""
    every = [group for text in rulepack.files().values() for group in groups(text)]
    rare = {r["record"] for g in every if seconds(g["interval"]) > 300 for r in g["rules"]}
    texts = " ".join(rule.annotations.values())
    assert [name for name in rare if re.search(rf"\b{name}\b(?!\[)", texts)] == []
