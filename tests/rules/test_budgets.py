"""Whom lost GPU-hours are billed to, what adds up to a month, and when a budget will not last."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_bottleneck_exporter import rulepack
from gpu_bottleneck_exporter.commands.rules import RuleOptions, rendered
from rules import promtool
from rules.cases import rows, signal
from rules.fleet import FILES, GROUPS, RULES, Fleet, group_names
from rules.parsed import groups
from rules.scenes import add_scenes
from rules.series import Series

OWNERS = RULES / rulepack.OWNERS
BILLED = {
    "billed_by_label": ((*FILES, OWNERS), (*GROUPS, *group_names(OWNERS))),
    "billed_without": (FILES, GROUPS),
}


@pytest.mark.parametrize("section", BILLED)
def test_whom_a_job_is_billed_to(section: str, tmp_path: Path) -> None:
    files, order = BILLED[section]
    fleet = Fleet(33, files, order)
    add_scenes(fleet, section)
    fleet.check(tmp_path)


# --- Months and budgets ------------------------------------------------------------------------
STEPS = 288
"""Of five minutes, in a day."""
DAYS = 33
"""From the first of January 1970, where promtool begins."""
BUDGET = 310
SITUATIONS = {**rows("budgets"), **rows("budget_gaps")}
WAITS: Mapping[str, float] = {"worker_cpu": 0.7, "storage": 0.3}
"""What GPUs of an owner wait on, where that matters: it takes promtool twice as long."""


def lost(
    owner: str, row: Mapping[str, Any], waits: Mapping[str, float], until: float
) -> Iterator[Series]:
    """What the rules have recorded of a job of an owner, until that day."""
    loses = row["loses"]
    phases = signal(loses) if isinstance(loses, str) else [(DAYS + 1, loses)]
    assert isinstance(phases, Sequence)
    hours = [value for days, value in phases for _ in range(STEPS * min(days, DAYS + 1))]
    nights = [row.get("nights", False) and step % STEPS >= STEPS / 2 for step in range(len(hours))]
    factor = 2 if row.get("nights") else 1
    for waiting_on, share in waits.items():
        values = tuple(
            None if value is None else 0.0 if night else value * factor * share * 3600 / STEPS
            for value, night in zip(hours, nights, strict=True)
        )
        labels = {"workload_owner": owner, "waiting_on": waiting_on, "workload": "pod a/b"}
        yield Series("workload:stall_gpu_seconds:sum5m", labels, values[: round(until * STEPS)])


def check(
    folder: Path, until: Mapping[str, float], waits: Mapping[str, float], **asked: object
) -> None:
    """Let promtool judge what becomes of situations, by the rules on owners alone.

    `until` are their names, and the days after which no more is recorded of them.
    """
    budgets = [name for name in until if SITUATIONS[name].get("budget", True)]
    wanted = RuleOptions(budgets=dict.fromkeys([*budgets, "nobody"], BUDGET))
    (watched,) = groups(rendered(wanted)["budgets.yml"])
    if "alert_rule_test" not in asked:
        # To look something up for each alert at each evaluation takes promtool most of its time.
        for rule in watched["rules"]:
            rule.pop("annotations", None)
    bill = next(g for g in groups((RULES / "recording.yml").read_text()) if g["name"] == "gpu-bill")
    bill["rules"] = [rule for rule in bill["rules"] if rule["record"].startswith("owner:")]
    # Rules are evaluated without a pause here: to look back for a week takes half of the time.
    carried = "last_over_time(owner:lost_gpu_hours:month"
    text = json.dumps({"groups": [bill, watched]}).replace(f"{carried}[7d]", f"{carried}[1h]")
    (folder / "rules.yml").write_text(text)  # JSON is YAML
    series = [
        one for name, day in until.items() for one in lost(name, SITUATIONS[name], waits, day)
    ]
    test = {
        "interval": "5m",
        "input_series": [{"series": one.selector, "values": one.notation} for one in series],
        **asked,
    }
    document = {
        "rule_files": [f"{folder}/rules.yml"],
        "evaluation_interval": "5m",
        "group_eval_order": ["gpu-bill", "gpu-budgets"],
        "tests": [test],
    }
    (folder / "test.yml").write_text(json.dumps(document))
    done = promtool.test_rules(folder / "test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def at(day: float, query: str, answer: Mapping[str, float]) -> dict[str, object]:
    """After so many days, `query` gives exactly this."""
    samples = [{"labels": labels, "value": value} for labels, value in answer.items()]
    minutes = round(day * STEPS) * 5
    return {"expr": query, "eval_time": f"{minutes}m", "exp_samples": samples}


@pytest.mark.first
@pytest.mark.parametrize("section", ["budgets", "budget_gaps"])
def test_when_a_budget_will_not_last(section: str, tmp_path: Path) -> None:
    found = []
    until = {}  # what nobody asks for any more costs no more time
    for name, row in rows(section).items():
        until[name] = min(DAYS, max((*row.get("fires", ()), *row.get("not", ()))) + 0.1)
        fires = f'ALERTS{{alertname="GpuBudgetBurn",alertstate="firing",workload_owner="{name}"}}'
        for key in ("fires", "not"):
            count = {f'{{workload_owner="{name}"}}': 1.0} if key == "fires" else {}
            query = f"count by (workload_owner) ({fires})"
            found += [at(day, query, count) for day in row.get(key, ())]
    found.append(at(20, 'ALERTS{workload_owner="nobody"}', {}))
    check(tmp_path, until, {"storage": 1.0}, promql_expr_test=found)


def test_a_month_adds_up_and_begins_anew(tmp_path: Path) -> None:
    twice, gap = "twice as much", "nothing is recorded for two days"
    month = "round(sum by (workload_owner, month) (owner:lost_gpu_hours:month))"
    spent = f'round(owner:budget_spent:ratio{{workload_owner="{twice}"}}, 0.01)'

    def of_both(day: float, hours: Sequence[float], number: int) -> dict[str, object]:
        found = zip((twice, gap), hours, strict=True)
        of = {f'{{workload_owner="{who}",month="{number}"}}': float(value) for who, value in found}
        return at(day, month, of)

    of_causes = {
        f'{{workload_owner="{twice}",waiting_on="{on}"}}': round(0.61 * share, 2)
        for on, share in WAITS.items()
    }
    asked = [
        of_both(6, (126, 105), 1),
        of_both(9, (189, 147), 1),
        of_both(30, (630, 588), 1),
        of_both(32, (21, 21), 2),
        at(9, spent, of_causes),
    ]
    check(tmp_path, {twice: DAYS, gap: DAYS}, WAITS, promql_expr_test=asked)


def test_what_the_alert_says(tmp_path: Path) -> None:
    owner = "twice as much"
    (rule,) = (
        rule for rule in groups(rulepack.files()["budgets.yml"])[0]["rules"] if "alert" in rule
    )
    texts = rule["annotations"]
    summary = (
        f"{owner} has spent 61% of its budget of lost GPU-hours for this month, 70% of it "
        "worker_cpu, by day 10"
    )
    said = {
        **texts,
        "summary": summary,
        "description": texts["description"].replace("{{ $labels.workload_owner }}", owner),
    }
    alert = {"exp_labels": {**rule["labels"], "workload_owner": owner}, "exp_annotations": said}
    asked = {"eval_time": "9d", "alertname": rule["alert"], "exp_alerts": [alert]}
    check(tmp_path, {owner: DAYS}, WAITS, alert_rule_test=[asked])
