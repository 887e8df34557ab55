"""What the dashboards say of a known fleet: numbers, by the real rules."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.prescription.model import NUM_WORKERS, Outlook, Refusal
from grafana.boards import EVERYTHING, asked, board, filled, query, variable
from rules import day
from rules.fleet import FILES, GROUPS, Fleet, Gpu, add_gpu, group_names
from rules.series import Signal
from support.states import PRESCRIBED, SCORED

MINUTES = 41
NOW = 40.5
"""Between two evaluations: a range then holds the same samples in every version of Prometheus."""
RANGE = "10m"
NLP = {"workload_namespace": "nlp", "workload_pod": "train-0", "pod_uid": "7d1f"}
BATCH = {"workload_namespace": "nlp", "workload_pod": "train-1", "pod_uid": "8e20"}
VISION = {"workload_namespace": "vision", "workload_pod": "eval-0", "pod_uid": "9c2e"}
SLURM = {"slurm_job_id": "4711", "user": "ada"}
FREE: day.State = {**day.IDLE, "processes": 0, "memory": 0.0}
STARVED_STATE: day.State = {**day.STORAGE, "busy": 0.2, "stalls": {"storage": 0.8}}
ASLEEP: day.State = {"busy": 0.3, "sm": None, "stalls": {"asleep": 0.7}, "workers": None}
TO_80 = replace(PRESCRIBED, busy_ratio=0.8, busy_low_ratio=0.7)
HOURS = (2 * 0.8 + 2 * 1.0 + 0.7 + 0.8) * 10 / 60
SURPASSED = replace(SCORED, busy_ratio=0.56)
"""Busier by a tenth than predicted."""
TO_WIN = 126
"""GPU-hours a week of each starved GPU: it is 20 % busy, and would be 80 %."""


def made(state: day.State, **others: object) -> Gpu:
    return Gpu(**{**state, **others})  # type: ignore[arg-type]


@pytest.fixture
def fleet() -> Fleet:
    """Each count of the fleet dashboard is another number."""
    found = Fleet(MINUTES)
    many = {
        "well": (3, made(day.WELL, owner=SLURM)),
        "starved": (2, made(STARVED_STATE, owner=NLP, outlook=Outlook(TO_80, SCORED))),
        "idle": (2, made(day.IDLE, owner={"user": "eve"})),
        "unexplained": (1, made(ASLEEP, owner=VISION, outlook=Outlook(Refusal("mixed")))),
        "batch": (1, made(day.SMALL_BATCH, owner=BATCH, outlook=Outlook(None, SURPASSED))),
        "free": (4, made(FREE, feeders=False)),
        "well-alone": (1, made(day.WELL, owner=SLURM, target={"cluster": "two"})),
    }
    for node, (count, gpu) in many.items():
        for index in range(count):
            add_gpu(found, node, gpu, index)
    return found


def expect(fleet: Fleet, title: str, letter: str, value: float | None, **chosen: str) -> None:
    """A query of the fleet dashboard has this only value, or none."""
    text = query("fleet", title, letter, __range=RANGE, **chosen)
    fleet.expect(NOW, f"round({text}, 0.001)", {} if value is None else {"{}": round(value, 3)})


def test_what_is_said_of_the_fleet(fleet: Fleet, tmp_path: Path) -> None:
    """In one run of promtool: 40 minutes of rules take it seconds."""
    for add in (counts, losses, costs, gains, prescribed, zeros, nothing, choices, alerts):
        add(fleet)
    fleet.check(tmp_path)


def counts(fleet: Fleet) -> None:
    """Underused, held and idle, busy and inefficient, no cause to name, held, free."""
    of_all, of_nlp = (5, 2, 1, 4, 10, 4), (2, 0, 1, 0, 3, None)
    for letter, count, in_nlp in zip("ABCEFG", of_all, of_nlp, strict=True):
        expect(fleet, "GPUs", letter, count)
        expect(fleet, "GPUs", letter, in_nlp, namespace="nlp")
    expect(fleet, "GPUs held and free", "A", 10)
    expect(fleet, "GPUs held and free", "B", 4)
    expect(fleet, "GPUs held and free", "B", None, namespace="nlp")
    blind = {'{kind="device"}': 1.0, '{kind="job"}': 2.0}
    fleet.expect(NOW, query("fleet", "GPUs", "D"), blind)
    of_kinds = {'{blind="device_causes"}': 1.0, '{blind="job_causes"}': 2.0}
    fleet.expect(NOW, query("fleet", "Blind GPUs", "A"), of_kinds)
    expect(fleet, "Blind GPUs", "B", None)


def losses(fleet: Fleet) -> None:
    """In hours, and as shares."""
    expect(fleet, "GPU-hours lost", "A", HOURS)
    expect(fleet, "Lost share of held GPU-hours", "A", HOURS / (10 * 10 / 60))
    for letter, share in zip("AB", (0.5, 0.5), strict=True):
        expect(fleet, "Used well, used very well", letter, share)
    expect(fleet, "Unexplained", "A", 0.7 * 10 / 60 / HOURS)
    expect(fleet, "Unexplained", "A", 0, namespace="nlp")
    by_cause = {
        '{cause="local_storage_bound"}': 1.6,
        '{cause="allocated_idle"}': 2.0,
        '{cause="unexplained_low_utilization"}': 0.7,
        '{cause="small_batch"}': 0.8,
    }
    rate = query("fleet", "Lost GPUs, by cause", "A")
    fleet.expect(NOW, f"round({rate}, 0.001)", by_cause)
    hours = query("fleet", "GPU-hours lost, by cause", "A", __range=RANGE)
    told = {cause: round(lost / 6, 3) for cause, lost in by_cause.items()}
    fleet.expect(NOW, f"round({hours}, 0.001)", told)
    for letter in "BC":  # no more than ten causes, and not nothing
        expect(fleet, "Lost GPUs, by cause", letter, None)


def costs(fleet: Fleet) -> None:
    """With the box left empty, with a zero in it, and with a number."""
    # A zero before 10 would make it an octal number.
    for cost, factor in (("", None), ("0", None), ("2.5", 2.5), ("10", 10)):
        expect(fleet, "Cost of the loss", "A", factor and HOURS * factor, cost=cost)
        text = query("fleet", "Largest losses", "B", __range=RANGE, cost=cost, instance="idle")
        of_eve = '{cause="allocated_idle",owner="user eve"}'
        spent = {of_eve: round(factor * 2 / 6, 3)} if factor else {}
        fleet.expect(NOW, f"round({text}, 0.001)", spent)


def gains(fleet: Fleet) -> None:
    """Of all, and of those of a namespace."""
    row = '{owner="pod nlp/train-0",knob="num_workers"}'
    for letter, value in (("A", 2 * TO_WIN), ("B", 2)):
        text = query("fleet", "Gain of recommendations", letter)
        fleet.expect(NOW, f"round({text}, 0.001)", {row: value})
        other = query("fleet", "Gain of recommendations", letter, namespace="vision")
        fleet.expect(NOW, other, {})
    expect(fleet, "GPU-hours a week to win", "A", 2 * TO_WIN)
    expect(fleet, "GPU-hours a week to win", "A", 0, namespace="vision")
    for title, figure in (
        ("Changes followed", 3.0),
        ("Outcomes as predicted", 2 / 3),
        ("Median error of predictions", 0.02),
    ):
        expect(fleet, title, "A", figure)
        expect(fleet, title, "A", None, namespace="vision")


def prescribed(fleet: Fleet) -> None:
    """What the GPU's dashboard says of each: to set, predicted, refused, come of."""
    starved = {"gpu": "GPU-starved-0"}
    for letters, key, values in (
        ("ABCDEFG", "knob", (2, 6, 0.2, 0.8, 0.7, 0.95, TO_WIN)),
        ("IJ", "changed", (0.46, 0.44)),
    ):
        for letter, value in zip(letters, values, strict=True):
            text = f"sum by ({key}) ({query('gpu', 'Recommendation', letter, **starved)})"
            fleet.expect(NOW, f"round({text}, 0.001)", {f'{{{key}="{NUM_WORKERS}"}}': value})
    fleet.expect(NOW, query("gpu", "Recommendation", "H", **starved), {})
    refused = f"sum by (instance, reason) ({query('gpu', 'Recommendation', 'H')})"
    fleet.expect(NOW, refused, {'{instance="unexplained",reason="mixed"}': 1.0})
    score = f"sum by (changed) ({query('gpu', 'Recommendation', 'J', gpu='GPU-batch-0')})"
    fleet.expect(NOW, f"round({score}, 0.001)", {f'{{changed="{NUM_WORKERS}"}}': 0.56})
    for letter in "ABCDEFG":
        fleet.expect(NOW, query("gpu", "Recommendation", letter, gpu="GPU-batch-0"), {})


def zeros(fleet: Fleet) -> None:
    """Of one GPU that is used well, where the rules and the exporter are there."""
    here = {"instance": "well-alone"}
    for letter, count in zip("ABCEFG", (0, 0, 0, 1, 1, 0), strict=True):
        expect(fleet, "GPUs", letter, count, **here)
    shown = [
        *(("Lost GPUs, by cause", "C"), ("Blind GPUs", "B")),
        *(
            ("GPU-hours lost", "A"),
            ("Lost share of held GPU-hours", "A"),
            ("GPUs held and free", "B"),
        ),
        *(("Cost of the loss", "A"), ("GPU-hours a week to win", "A")),
    ]
    for title, letter in shown:
        expect(fleet, title, letter, 0, **here)
    fleet.expect(NOW, query("fleet", "GPUs", "D", **here), {'{kind="nothing"}': 0.0})
    expect(fleet, "Unexplained", "A", None, **here)
    fleet.expect(NOW, query("exporter", "GPUs", "A", **here), {"{}": 1.0})
    fleet.expect(NOW, query("exporter", "GPUs", "B", **here), {"{}": 0.0})


def nothing(fleet: Fleet) -> None:
    """Of a node that there is not: no zero either, so that no panel has good news of it."""
    of_no_node = {
        "Rules",
        "Replicas, by deployment",
        "GPU-hours lost in a week, by owner",
        "This month, by owner",
    }
    for one in asked():
        if one.panel["title"] not in of_no_node:
            fleet.expect(NOW, one.text({**EVERYTHING, "instance": "nowhere"}), {})


def test_what_is_said_of_engines(tmp_path: Path) -> None:
    """An engine with two GPUs, and one without demand."""
    fleet = Fleet(MINUTES)
    asked_of: dict[str, Signal] = {"running": 4, "waiting": 1, "kv": 0.3, "decoded": 100}
    asked_of |= {"prefilled": 50, "queued_seconds": 1, "dequeued": 2}
    unasked: dict[str, Signal] = {"running": 0, "decoded": 0}
    llm = {"workload_namespace": "llm"}
    for index in (0, 1):  # each with a port of its own
        engine = made(
            day.WELL, engine=asked_of, energy_watts=500, owner={**llm, "workload_pod": "a-0"}
        )
        add_gpu(fleet, "serves", engine, index)
    unused = {**llm, "workload_pod": "a-1"}
    add_gpu(fleet, "unused", made(day.IDLE, engine=unasked, energy_watts=50, owner=unused))
    here = {"instance": "serves"}
    by_state = {'{state="running"}': 8.0, '{state="waiting"}': 2.0}
    fleet.expect(NOW, query("gpu", "Requests of the engine", **here), by_state)
    fleet.expect(NOW, query("gpu", "Requests of the engine", gpu="GPU-serves-0"), halved(by_state))
    of_phases = {'{phase="prefill"}': 100.0, '{phase="decode"}': 200.0}
    fleet.expect(NOW, query("gpu", "Tokens per second", **here), of_phases)
    for title, value in (("KV cache", 0.3), ("Time in the queue", 0.5), ("Tokens per joule", 0.3)):
        text = query("gpu", title, __rate_interval="5m", **here)
        fleet.expect(NOW, f"round({text}, 0.001)", {"{}": value})
    expect(fleet, "Replicas without demand", "A", 1)
    expect(fleet, "Replicas without demand", "A", 0, **here)
    expect(fleet, "Replicas without demand", "A", None, namespace="nlp")
    expect(fleet, "GPU-hours without demand", "A", 1 / 6)
    million = 3 / 6 * 2 / (300 * 600 / 1e6)
    expect(fleet, "Cost per million tokens", "A", million, cost="2")
    expect(fleet, "Cost per million tokens", "A", None, cost="")
    expect(fleet, "Cost per million tokens", "A", None, instance="unused")
    of_a = '{deployment="a",namespace="llm"}'
    for letter, count in (("A", 2.0), ("B", 1.0)):
        fleet.expect(NOW, query("fleet", "Replicas, by deployment", letter), {of_a: count})
    fleet.check(tmp_path)


def halved(values: dict[str, float]) -> dict[str, float]:
    """What one of two GPUs has of it."""
    return {series: value / 2 for series, value in values.items()}


# --- Variables ------------------------------------------------------------------------------------
def options(
    fleet: Fleet, name: str, label: str, found: set[str], at: float = NOW, **chosen: str
) -> None:
    """A variable of the GPU's dashboard offers these values of a label."""
    values = {**EVERYTHING, "__range": RANGE, **chosen}
    text = filled(variable("gpu", name)["query"], values).removeprefix("query_result")
    answer = {f'{{{label}="{one}"}}': 1.0 for one in found}
    fleet.expect(at, f"group by ({label}) {text}", answer)


def of(node: str, count: int) -> set[str]:
    """UUIDs of the GPUs of a node."""
    return {f"GPU-{node}-{index}" for index in range(count)}


def choices(fleet: Fleet) -> None:
    """A namespace the jobs and the GPUs, a job the GPUs; All are GPUs of nobody, too."""
    jobs = {"pod-7d1f", "pod-8e20", "pod-9c2e", "slurm-4711"}
    everything = [("well", 3), ("starved", 2), ("idle", 2), ("unexplained", 1), ("batch", 1)]
    everything += [("free", 4), ("well-alone", 1)]
    options(fleet, "workload", "workload_group", jobs)
    options(fleet, "gpu", "uuid", {uuid for one in everything for uuid in of(*one)})
    options(fleet, "workload", "workload_group", {"pod-7d1f", "pod-8e20"}, namespace="nlp")
    options(fleet, "gpu", "uuid", of("starved", 2) | of("batch", 1), namespace="nlp")
    options(fleet, "gpu", "uuid", of("starved", 2), namespace="nlp", workload="pod-7d1f")
    options(fleet, "gpu", "uuid", of("well", 3) | of("well-alone", 1), workload="slurm-4711")
    options(fleet, "gpu", "uuid", set(), namespace="vision", workload="pod-7d1f")


def test_all_gpus_are_those_of_the_job() -> None:
    """Each by its UUID: a pattern of its own for All would take in what other jobs have."""
    found = variable("gpu", "gpu")
    assert (found["includeAll"], found["multi"], found.get("allValue")) == (True, True, None)


def test_jobs_that_have_ended_can_be_chosen(tmp_path: Path) -> None:
    fleet = Fleet(10)
    add_gpu(fleet, "ended", made(day.WELL, owner=NLP))
    fleet.remove("GPU-ended-0", 3)
    options(fleet, "workload", "workload_group", {"pod-7d1f"}, 9.5, namespace="nlp")
    options(fleet, "gpu", "uuid", {"GPU-ended-0"}, 9.5, namespace="nlp")
    fleet.check(tmp_path)


def test_the_order_of_choices() -> None:
    """Grafana asks for a variable anew when one changes that its query names."""
    names = [one["name"] for one in board("gpu")["templating"]["list"]]
    assert names.index("namespace") < names.index("workload") < names.index("gpu")
    assert "$namespace" in variable("gpu", "workload")["query"]
    assert {"$namespace", "$workload"} <= set(re.findall(r"\$\w+", variable("gpu", "gpu")["query"]))


# --- Alerts ---------------------------------------------------------------------------------------
def alerts(fleet: Fleet) -> None:
    """How many GPUs, on how many nodes."""
    alert = 'alertname="GpuStarved",cause="local_storage_bound",responder="job"'
    for letter, count in (("A", 1.0), ("B", 2.0), ("C", 1.0)):
        text = query("fleet", "Firing alerts", letter, instance="starved")
        fleet.expect(NOW, text, {f'{{{alert},severity="warning"}}': count})


def test_an_alert_of_a_node_counts_nodes(tmp_path: Path) -> None:
    """Its exporter is down: how many GPUs that concerns is not known."""
    fleet = Fleet(13)
    add_gpu(fleet, "gone", made(day.WELL))
    fleet.fail_scrapes("gone", 2, 14)
    series = '{alertname="GpuExporterDown",responder="platform",severity="warning"}'
    for letter, answer in (("A", {series: 1.0}), ("B", {}), ("C", {series: 1.0})):
        fleet.expect(13, query("fleet", "Firing alerts", letter), answer)
    fleet.check(tmp_path)


# --- What is shown where nothing is known: silence is no good news --------------------------------
def test_that_no_thresholds_are_loaded_is_shown(tmp_path: Path) -> None:
    """Whatever targets are chosen: the alert is of none, and no other one can fire."""
    fleet = Fleet(
        7,
        files=[file for file in FILES if file.name != "thresholds.yml"],
        groups=[name for name in GROUPS if name not in group_names(FILES[0])],
    )
    add_gpu(fleet, "well", Gpu())
    chosen = {"cluster": "one", "job": "gpu", "instance": "well"}
    row = '{alertname="GpuThresholdsMissing",responder="platform",severity="warning"}'
    fleet.expect(7, query("fleet", "Firing alerts", **chosen), {row: 1.0})
    for name in ("fleet", "exporter"):
        (mark,) = board(name)["annotations"]["list"]
        text = filled(mark["target"]["expr"], {**EVERYTHING, **chosen})
        fleet.expect(
            7, f"count by (alertname) ({text})", {'{alertname="GpuThresholdsMissing"}': 1.0}
        )
    fleet.check(tmp_path)
