"""How many series the rules record for each GPU: what a fleet's Prometheus has to keep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpu_bottleneck_exporter.prescription.model import NOTHING_KNOWN, Outlook
from rules.day import CHECKPOINTS, COPYING, IDLE, LOOP, SMALL_BATCH, State
from rules.fleet import Fleet, Gpu, add_gpu
from support.states import PRESCRIBED, SCORED

END = 70
"""The windows of an hour are full."""
WORKING, STARVED = 90, 110
EVERYTHING = Gpu(
    energy_watts=560.0,
    power_default_watts=700.0,
    cpu_limit_cores=32,
    throttle=dict.fromkeys(("power_cap", "sync_boost", "app_clocks"), 0.1),
    owner={
        "workload_namespace": "nlp",
        "workload_pod": "train-0",
        "workload_container": "main",
        "pod_uid": "7d1f",
        "user": "ada",
    },
)
"""Every signal is there."""
OTHER_WAITS = {"host_code": 0.01, "worker_cpu": 0.01, "asleep": 0.01, "peer": 0.01, "unknown": 0.01}
STATES: dict[str, State] = {
    "well": {"busy": 0.95, "stalls": OTHER_WAITS},
    "copying": {**COPYING, "busy": 0.95, "stalls": OTHER_WAITS},
    "small-batch": {**SMALL_BATCH, "busy": 0.95, "stalls": OTHER_WAITS},
    "mixed": {"busy": 0.3, "stalls": {**OTHER_WAITS, "storage": 0.35, "network": 0.3}},
    "checkpoints": {**CHECKPOINTS, "stalls": {**OTHER_WAITS, "storage": 0.35}},
    "loop": {**LOOP, "stalls": {**OTHER_WAITS, "host_code": 0.76}},
    "idle": IDLE,
}


def test_a_gpu_adds_few_series(tmp_path: Path) -> None:
    fleet = Fleet(END, evaluation_interval="2m")
    for node, state in STATES.items():
        is_starved = state.get("busy") != 0.95
        outlook = Outlook(PRESCRIBED, SCORED) if is_starved else NOTHING_KNOWN
        for index in range(2):
            gpu = replace(EVERYTHING, **state, outlook=outlook)  # type: ignore[arg-type]
            add_gpu(fleet, node, gpu, index)
        of_gpu = f'count({{__name__=~"[a-z]+:.+",instance="{node}",gpu="0"}})'
        most = STARVED if is_starved else WORKING
        fleet.expect(END, f"{of_gpu} > {most} or {of_gpu} < 20", {})
    fleet.check(tmp_path)
