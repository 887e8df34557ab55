"""What the rules make of prescriptions: how much faster, what they return and whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.prescription.model import CPU_LIMIT, STARTUP, Outlook, Refusal
from rules.fleet import Fleet, Gpu, add_gpu
from rules.series import STALE
from rules.test_rollouts import OPERATORS, ROLLOUT
from support.states import PRESCRIBED, SCORED

END = 30
IDLE = Gpu(busy=0.31, stalls={"worker_cpu": 0.69}, outlook=Outlook(PRESCRIBED, SCORED))
SPEEDUP, HOURS = 3.0, 112.0
"""From 31 % to 93 % busy: two thirds of a week's 168 hours."""
NLP = {"workload_namespace": "nlp", "workload_pod": "train-0", "pod_uid": "7d1f"}
SLURM = {"slurm_job_id": "4711", "user": "ada"}
INPUTS = ("busy_ratio", "busy_low_ratio", "busy_high_ratio", "value", "current_value")


def told(
    name: str, node: str, value: float | None, by: str = "knob"
) -> tuple[str, dict[str, float]]:
    """Of the GPUs of `node`, the sum of a series of prescriptions; None: there is none."""
    query = f'round(sum by ({by}) (gpu:prescription:{name}{{instance="{node}"}}), 0.001)'
    labels = "{}" if not by else f'{{{by}="num_workers"}}'
    return query, {} if value is None else {labels: value}


def test_what_is_prescribed_is_recorded(tmp_path: Path) -> None:
    fleet = Fleet(END)
    add_gpu(fleet, "idle", IDLE)
    for name, value in zip(INPUTS, (0.93, 0.88, 0.95, 6, 2), strict=True):
        fleet.expect(END, *told(name, "idle", value))
    fleet.expect(END, *told("speedup", "idle", SPEEDUP))
    fleet.expect(END, *told("gain_hours", "idle", HOURS))
    fleet.expect(END, *told("scored_ratio", "idle", 0.46))
    fleet.expect(END, *told("error", "idle", -0.02))
    fleet.expect(END, "gpu:prescription:refused", {})
    fleet.check(tmp_path)


def test_nothing_is_made_up_where_nothing_is_prescribed(tmp_path: Path) -> None:
    """No zero, and not the last value either."""
    fleet = Fleet(END)
    add_gpu(fleet, "refused", replace(IDLE, outlook=Outlook(Refusal("mixed"))))
    add_gpu(fleet, "busy", Gpu())
    add_gpu(fleet, "reached", replace(IDLE, busy=0.95, stalls={"worker_cpu": 0.05}))
    add_gpu(fleet, "ended", IDLE)
    first = len(fleet._series)
    add_gpu(fleet, "no-rate", replace(IDLE, missing=frozenset({"gpu_busy_seconds_total"})))
    for at, one in enumerate(fleet._series[:first]):
        if one.labels["instance"] == "ended" and one.name.startswith("gpu_prescription_"):
            values = [
                value if minute < END - 2 else STALE for minute, value in enumerate(one.values)
            ]
            fleet._series[at] = replace(one, values=tuple(values))
    for node in ("refused", "busy", "reached", "ended", "no-rate"):
        for name in ("speedup", "gain_hours"):
            fleet.expect(END, *told(name, node, None))
    fleet.expect(END - 3, *told("speedup", "ended", SPEEDUP))
    for name in INPUTS:
        fleet.expect(
            END,
            f"count by (instance) (gpu:prescription:{name})",
            {
                '{instance="reached"}': 1.0,
                '{instance="no-rate"}': 1.0,
            },
        )
    refused = '{instance="refused",reason="mixed"}'
    fleet.expect(END, "sum by (instance, reason) (gpu:prescription:refused)", {refused: 1.0})
    fleet.check(tmp_path)


def test_a_gpu_that_was_never_busy_gains_all_but_no_factor(tmp_path: Path) -> None:
    fleet = Fleet(END)
    add_gpu(fleet, "stuck", replace(IDLE, busy=0.0, stalls={"worker_cpu": 1.0}))
    fleet.expect(END, *told("speedup", "stuck", None))
    fleet.expect(END, *told("gain_hours", "stuck", 168.0))
    fleet.check(tmp_path)


def test_startups_are_compared_with_the_hour_and_not_with_the_last_minutes(tmp_path: Path) -> None:
    """A third of the hour: of 168 hours a week 56 come back, whether it just starts or works."""
    startup = replace(PRESCRIBED, knob=STARTUP, current=1 / 3, value=0, busy=0.6, predicted=0.9)
    fleet = Fleet(END)
    for node, busy in (("starts", 0.0), ("works", 0.9)):
        stalls = {"storage": 1 - busy}
        add_gpu(fleet, node, replace(IDLE, busy=busy, stalls=stalls, outlook=Outlook(startup)))
        for name, value in (("speedup", 1.5), ("gain_hours", 56.0)):
            query, _ = told(name, node, value)
            fleet.expect(END, query, {f'{{knob="{STARTUP}"}}': value})
    fleet.check(tmp_path)


def test_gains_add_up_by_job_and_by_owner(tmp_path: Path) -> None:
    fleet = Fleet(END)
    for index in range(3):
        add_gpu(fleet, "one", replace(IDLE, owner=SLURM), index)
    add_gpu(fleet, "two", replace(IDLE, owner=SLURM))
    add_gpu(fleet, "two", Gpu(owner=SLURM), 1)
    add_gpu(fleet, "pod", replace(IDLE, owner=NLP))
    add_gpu(fleet, "nobody-known", IDLE)
    add_gpu(
        fleet, "refused", replace(IDLE, owner={"user": "eve"}, outlook=Outlook(Refusal("mixed")))
    )
    slurm, pod = '{workload_group="slurm-4711"}', '{workload_group="pod-7d1f"}'
    by_job = {slurm: 4 * HOURS, pod: HOURS}
    fleet.expect(END, "round(workload:prescription:gain_hours, 0.001)", by_job)
    owner = 'workload_namespace="nlp",workload_pod="train-0"'
    by_owner = {
        '{slurm_job_id="4711",user="ada",workload="Slurm job 4711"}': 4 * HOURS,
        f'{{{owner},workload="pod nlp/train-0"}}': HOURS,
        '{workload="owner unknown"}': HOURS,
    }
    fleet.expect(END, "round(owner:prescription:gain_hours, 0.001)", by_owner)
    fleet.check(tmp_path)


PODS: Mapping[str, Gpu] = {
    "old": replace(IDLE, owner=SLURM),
    "new": replace(
        IDLE,
        owner=SLURM,
        outlook=Outlook(
            replace(PRESCRIBED, knob=CPU_LIMIT, predicted=0.6, low=0.5, high=0.7),
            replace(SCORED, predicted=0.48, outcome=0.44),
        ),
    ),
}
"""Two pods of the exporter that disagree on one GPU."""


@pytest.mark.parametrize("silent", [False, True])
def test_while_two_pods_answer_a_gpu_counts_once(tmp_path: Path, silent: bool) -> None:  # noqa: FBT001
    """Also while the new one still refuses."""
    fleet = Fleet(ROLLOUT)
    for pod, gpu in PODS.items():
        target = {**OPERATORS, "pod": f"exporter-{pod}"}
        outlook = Outlook(Refusal("changing"), SCORED) if silent and pod == "new" else gpu.outlook
        add_gpu(fleet, "node", replace(gpu, target=target, outlook=outlook))
    for name, value in zip(INPUTS, (0.93, 0.88, 0.95, 6, 2), strict=True):
        fleet.expect(ROLLOUT, *told(name, "node", value))
    fleet.expect(ROLLOUT, *told("speedup", "node", SPEEDUP))
    fleet.expect(ROLLOUT, "round(sum(workload:prescription:gain_hours), 0.001)", {"{}": HOURS})
    fleet.expect(ROLLOUT, "gpu:prescription:refused", {})
    outcome = "round(gpu:prescription:scored_ratio + gpu:prescription:error, 0.001)"
    fleet.expect(ROLLOUT, f"sum({outcome})", {"{}": 0.44})
    fleet.check(tmp_path)


def test_while_two_pods_answer_the_interval_is_that_of_both(tmp_path: Path) -> None:
    fleet = Fleet(END)
    wider = replace(PRESCRIBED, predicted=0.9, low=0.8, high=0.97, value=5)
    for pod, advice in (("old", PRESCRIBED), ("new", wider)):
        target = {**OPERATORS, "pod": f"exporter-{pod}"}
        add_gpu(fleet, "node", replace(IDLE, target=target, outlook=Outlook(advice)))
    for name, value in zip(INPUTS, (0.93, 0.8, 0.97, 6, 2), strict=True):
        fleet.expect(END, *told(name, "node", value))
    fleet.check(tmp_path)
