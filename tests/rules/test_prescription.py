"""What the rules make of prescriptions: how much faster, what they return and whose it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpu_bottleneck_exporter.prescription.advise import ERROR
from gpu_bottleneck_exporter.prescription.model import (
    CPU_LIMIT,
    NOTHING_KNOWN,
    Outlook,
    Refusal,
)
from rules.fleet import RULES, Fleet, Gpu, add_gpu
from rules.series import STALE, Series
from rules.test_rollouts import OPERATORS, ROLLOUT
from support.states import PRESCRIBED, SCORED

END = 30
MIXED = Outlook(Refusal("mixed"))
IDLE = Gpu(busy=0.31, stalls={"worker_cpu": 0.69}, outlook=Outlook(PRESCRIBED, SCORED))
SPEEDUP, HOURS = 3.0, 112.0
"""From 31 % to 93 % busy: two thirds of a week's 168 hours."""
NLP = {"workload_namespace": "nlp", "workload_pod": "train-0", "pod_uid": "7d1f"}
SLURM = {"slurm_job_id": "4711", "user": "ada"}
INPUTS = ("busy_ratio", "busy_low_ratio", "busy_high_ratio", "value", "current_value")


def told(name: str, node: str, value: float | None) -> tuple[str, dict[str, float]]:
    """Of the GPUs of `node`, the sum of a series of prescriptions; None: there is none."""
    query = f'round(sum by (knob) (gpu:prescription:{name}{{instance="{node}"}}), 0.001)'
    return query, {} if value is None else {'{knob="num_workers"}': value}


def test_prescriptions(tmp_path: Path) -> None:
    fleet = Fleet(ROLLOUT)
    for add in (recorded, nothing_made_up, never_busy, gains, two_pods, track_record):
        add(fleet)
    fleet.check(tmp_path)


def expect_inputs(fleet: Fleet, node: str, *values: float) -> None:
    for name, value in zip(INPUTS, values, strict=True):
        fleet.expect(END, *told(name, node, value))


def refused(node: str) -> str:
    return f'sum by (reason) (gpu:prescription:refused{{instance="{node}"}})'


def recorded(fleet: Fleet) -> None:
    add_gpu(fleet, "idle", IDLE)
    expect_inputs(fleet, "idle", 0.93, 0.88, 0.95, 6, 2)
    results = {"speedup": SPEEDUP, "gain_hours": HOURS, "scored_ratio": 0.46, "error": -0.02}
    for name, value in results.items():
        fleet.expect(END, *told(name, "idle", value))
    fleet.expect(END, refused("idle"), {})


def nothing_made_up(fleet: Fleet) -> None:
    """Where nothing is prescribed there is no zero, and not the last value either."""
    add_gpu(fleet, "refused", replace(IDLE, outlook=MIXED))
    add_gpu(fleet, "busy", Gpu())
    add_gpu(fleet, "reached", replace(IDLE, busy=0.95, stalls={"worker_cpu": 0.05}))
    first = len(fleet._series)
    add_gpu(fleet, "ended", IDLE)
    fleet.change(ended, first=first)
    add_gpu(fleet, "no-rate", replace(IDLE, missing="gpu_busy_seconds_total"))
    for node in ("refused", "busy", "reached", "ended", "no-rate"):
        for name in ("speedup", "gain_hours"):
            fleet.expect(END, *told(name, node, None))
        for name in INPUTS:
            there = {"{}": 1.0} if node in {"reached", "no-rate"} else {}
            fleet.expect(END, f'count(gpu:prescription:{name}{{instance="{node}"}})', there)
        reason = {'{reason="mixed"}': 1.0} if node == "refused" else {}
        fleet.expect(END, refused(node), reason)
    fleet.expect(END - 3, *told("speedup", "ended", SPEEDUP))


def ended(one: Series) -> tuple[float | None, ...]:
    before = one.values[: END - 2] if one.name.startswith("gpu_prescription_") else one.values
    return (*before, *[STALE] * (len(one.values) - len(before)))


def never_busy(fleet: Fleet) -> None:
    """It gains all, but no factor."""
    add_gpu(fleet, "stuck", replace(IDLE, busy=0.0, stalls={"worker_cpu": 1.0}))
    fleet.expect(END, *told("speedup", "stuck", None))
    fleet.expect(END, *told("gain_hours", "stuck", 168.0))


def gains(fleet: Fleet) -> None:
    """They add up by job and by owner."""
    idle = replace(IDLE, target={"cluster": "gains"})
    slurm = replace(idle, owner=SLURM)
    for node, *gpus in (
        ("one", slurm, slurm, slurm),
        ("two", slurm, replace(slurm, busy=0.98, stalls={}, outlook=NOTHING_KNOWN)),
        ("pod", replace(idle, owner=NLP)),
        ("nobody-known", idle),
        ("nothing-to-gain", replace(idle, owner={"user": "eve"}, outlook=MIXED)),
    ):
        for index, gpu in enumerate(gpus):
            add_gpu(fleet, node, gpu, index)
    of_pod = 'workload_namespace="nlp",workload_pod="train-0",workload="pod nlp/train-0"'
    of_slurm = 'slurm_job_id="4711",user="ada",workload="Slurm job 4711"'
    groups = {'workload_group="slurm-4711"': 4, 'workload_group="pod-7d1f"': 1}
    owners = {of_slurm: 4, of_pod: 1, 'workload="owner unknown"': 1}
    for of, counts in (("workload", groups), ("owner", owners)):
        query = f'round({of}:prescription:gain_hours{{cluster="gains"}}, 0.001)'
        answer = {f'{{cluster="gains",{who}}}': n * HOURS for who, n in counts.items()}
        fleet.expect(END, query, answer)


def track_record(fleet: Fleet) -> None:
    """Of the changes that were noticed, by cluster; without any there is none."""
    for index, busy in enumerate((0.44, 0.45, 0.43, 0.56)):  # 0.46 predicted
        score = Outlook(MIXED.advice, replace(SCORED, busy_ratio=busy))
        add_gpu(fleet, "record", replace(IDLE, outlook=score, target={"cluster": "record"}), index)
    add_gpu(fleet, "unscored", replace(IDLE, outlook=MIXED, target={"cluster": "unscored"}))
    assert f"<= bool {ERROR:g} *" in (RULES / "recording.yml").read_text(encoding="utf-8")
    for name, value in (("count", 4), ("_inside:ratio", 0.75), ("_error:median", 0.025)):
        series = f"cluster:predictions{name if name[0] == '_' else f':{name}'}"
        for cluster, answer in (("record", {"{}": float(value)}), ("unscored", {})):
            query = f'round(sum({series}{{cluster="{cluster}"}}), 0.001)'
            fleet.expect(END, query, answer)


OTHER = Outlook(
    replace(PRESCRIBED, knob=CPU_LIMIT, busy_ratio=0.6, busy_low_ratio=0.5, busy_high_ratio=0.7),
    replace(SCORED, predicted_busy_ratio=0.48, busy_ratio=0.44),
)


def two_pods(fleet: Fleet) -> None:
    """While both answer a GPU counts once: if they disagree, and while the new one refuses."""
    wider = replace(PRESCRIBED, busy_ratio=0.9, busy_low_ratio=0.8, busy_high_ratio=0.97, value=5)
    for node, new in (
        ("disagree", OTHER),
        ("refuses", Outlook(Refusal("changing"), SCORED)),
        ("wider", Outlook(wider)),
    ):
        owner = {"slurm_job_id": node, "user": "ada"}
        for pod, outlook in (("old", Outlook(PRESCRIBED, SCORED)), ("new", new)):
            target = {**OPERATORS, "pod": f"exporter-{pod}"}
            add_gpu(fleet, node, replace(IDLE, owner=owner, target=target, outlook=outlook))
        # The interval is that of both.
        low, high = (0.8, 0.97) if node == "wider" else (0.88, 0.95)
        expect_inputs(fleet, node, 0.93, low, high, 6, 2)
        fleet.expect(ROLLOUT, *told("speedup", node, SPEEDUP))
        hours = f'sum(workload:prescription:gain_hours{{workload_group="slurm-{node}"}})'
        fleet.expect(ROLLOUT, f"round({hours}, 0.001)", {"{}": HOURS})
        fleet.expect(ROLLOUT, refused(node), {})
    for node, outcome in (("disagree", 0.44), ("refuses", 0.44)):
        of_node = f'{{instance="{node}"}}'
        sums = f"gpu:prescription:scored_ratio{of_node} + gpu:prescription:error{of_node}"
        fleet.expect(ROLLOUT, f"round(sum({sums}), 0.001)", {"{}": outcome})
