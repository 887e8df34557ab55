"""A short day of a busy fleet, by the minute, for engines that evaluate rules over the past.

Twelve GPUs on ten nodes: jobs that are starved by one cause after the other, hours without
work, GPUs that are slow or broken, an exporter that is restarted, and a node that is away.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from rules.fleet import Fleet, Gpu, add_gpu
from rules.series import STALE, Signal

HOUR = 60
MINUTES = 6 * HOUR
"""From the first to the last change; a minute more costs engines more than a GPU more."""

Shares = Mapping[str, float | None]
State = Mapping[str, float | Shares | None]
"""What differs from a healthy GPU: fields of `Gpu`."""
Plan = Sequence[tuple[int, State]]
"""States, and for how many minutes."""

# --- What a GPU can be like ---------------------------------------------------------------------
WELL: State = {}
IDLE: State = {
    "busy": 0.0,
    "sm": 0.0,
    "main_cpu": 0.0,
    "worker_cpu": 0.0,
    "network_bytes": 0.0,
    "worker_read_bytes": 0.0,
    "main_written_bytes": 0.0,
}
STORAGE: State = {"busy": 0.3, "stalls": {"storage": 0.7}, "disk_busy": 0.9}
REMOTE: State = {"busy": 0.3, "stalls": {"network": 0.5, "storage": 0.2}, "disk_busy": 0.05}
EVICTED: State = {"busy": 0.3, "stalls": {"memory": 0.6, "storage": 0.1}, "disk_busy": 0.9}
FEW_WORKERS: State = {"busy": 0.3, "stalls": {"worker_cpu": 0.7}, "workers": 2, "worker_cpu": 2.0}
PREPROCESSING: State = {
    "busy": 0.3,
    "stalls": {"worker_cpu": 0.7},
    "workers": 16,
    "worker_cpu": 15.8,
    "host_busy_cores": 30.0,
}
THROTTLED: State = {"busy": 0.3, "stalls": {"cpu_quota": 0.7}, "throttled": 2.0}
QUEUED: State = {"busy": 0.3, "stalls": {"cpu_queue": 0.7}, "host_busy_cores": 32.0}
LOOP: State = {"busy": 0.2, "stalls": {"host_code": 0.8}}
INLINE: State = {**LOOP, "workers": 0, "main_read_bytes": 2e7, "worker_read_bytes": 0.0}
CHURN: State = {"busy": 0.3, "stalls": {"worker_cpu": 0.5}, "worker_starts": 0.1}
CHECKPOINTS: State = {
    "busy": 0.6,
    "stalls": {"storage": 0.4},
    "main_written_bytes": 4e8,
    "disk_busy": 0.9,
}
SMALL_SHM: State = {"shm_used": 0.95}
UNASKED: State = {**IDLE, "stalls": {"requests": 1.0}}
IDLE_SIBLING: State = {"busy": 0.05, "stalls": {"peer": 0.9}}
COPYING: State = {"busy": 0.9, "sm": 0.2, "pcie_bytes": 3e10}
TINY_KERNELS: State = {"sm": 0.1, "dram": 0.6, "memory": 0.7}
SMALL_BATCH: State = {"sm": 0.2, "dram": 0.1, "memory": 0.2}
FULL_MEMORY: State = {"sm": 0.3, "memory": 0.92}
BANDWIDTH: State = {"sm": 0.8, "dram": 0.75, "pipes": {"tensor": 0.1}}
FP32: State = {"sm": 0.8, "pipes": {"tensor": 0.0, "fp32": 0.6}}
HOT_BOARD: State = {"clock": 0.45, "throttle": {"hw_thermal": 0.3}}
HOT_AIR: State = {"clock": 0.7, "throttle": {"sw_thermal": 0.4}}
CAPPED: State = {"clock": 0.6, "throttle": {"power_cap": 0.9}}
LOCKED_CLOCKS: State = {"clock": 0.5}
NARROW_LINK: State = {"link_width": 8}
HUNG: State = {
    "busy": 1.0,
    "power_watts": 150.0,
    "pcie_bytes": 0.0,
    "nvlink_bytes": 0.0,
    "pipes": {"tensor": 0.0},
}
SILENT: State = {
    "up": 0.0,
    "busy": None,
    **dict.fromkeys(
        (
            *("sm", "occupancy", "dram", "memory_controller", "power_watts", "clock", "memory"),
            *("processes", "pcie_bytes", "nvlink_bytes", "replays"),
        ),
        STALE,
    ),
}


# --- What happens when --------------------------------------------------------------------------
def _in_turn(*states: State, each: int = 60, between: int = 20) -> Plan:
    """One state after the other, with healthy times between them."""
    return [part for state in states for part in ((each, state), (between, WELL))]


NIGHT: Plan = [(100, IDLE), (20, WELL)]
TRAIN: Plan = [*NIGHT, *_in_turn(STORAGE, FEW_WORKERS, PREPROCESSING)]
LOADERS: Plan = _in_turn(REMOTE, EVICTED, THROTTLED, CHURN)
POD: Plan = _in_turn(LOOP, INLINE, QUEUED, CHECKPOINTS)
OTHER_POD: Plan = _in_turn(SMALL_SHM, IDLE, HUNG)
ON_THE_GPU: Plan = _in_turn(COPYING, TINY_KERNELS, SMALL_BATCH, each=80)
ALSO_THERE: Plan = _in_turn(FULL_MEMORY, BANDWIDTH, FP32, each=80)
HARDWARE: Plan = _in_turn(HOT_BOARD, HOT_AIR, CAPPED)
LINKS: Plan = _in_turn(LOCKED_CLOCKS, NARROW_LINK)
LOST: Plan = [(HOUR, WELL), (HOUR, SILENT), (HOUR, WELL), (2 * HOUR, UNASKED)]
AWAY: Plan = [(90, LOOP), (90, STORAGE), (2 * HOUR, IDLE)]
SHARED: Plan = [(HOUR, {"busy": 0.97, "sm": 0.9}), (4 * HOUR, IDLE)]

SLURM_JOB = {"slurm_job_id": "4711", "user": "ada"}
IN_POD = {"workload_namespace": "nlp", "workload_pod": "train-0", "pod_uid": "7d1f"}
RESTARTED_AT = 4 * HOUR + 40
"""The exporter on node `pod`, in the middle of a cause."""
ABSENCES = ((2 * HOUR, 10), (4 * HOUR + 30, 45))
"""Of node `away`: when, and for how many minutes."""


def day(fleet: Fleet) -> None:
    """Add the day; the fleet lasts for MINUTES."""
    add_gpu(fleet, "train", _gpu(TRAIN, owner=SLURM_JOB))
    add_gpu(fleet, "train", _gpu([*TRAIN[:6], (90, IDLE_SIBLING)], owner=SLURM_JOB), 1)
    add_gpu(fleet, "loaders", _gpu(LOADERS, owner={"user": "cleo"}))
    add_gpu(fleet, "pod", _gpu(POD, owner=IN_POD, reset_at=RESTARTED_AT))
    add_gpu(fleet, "other-pod", _gpu(OTHER_POD, owner={**IN_POD, "pod_uid": "8e2a"}))
    add_gpu(fleet, "device", _gpu(ON_THE_GPU, owner={"user": "bob"}))
    add_gpu(fleet, "device-too", _gpu(ALSO_THERE, owner={"user": "bob"}))
    add_gpu(fleet, "hardware", _gpu(HARDWARE, owner={"user": "dan"}, xids=_xid("79", 5)))
    add_gpu(fleet, "hardware", _gpu(LOST, xids=_xid("94", 5)), 1)
    add_gpu(fleet, "links", _gpu(LINKS, owner={"user": "dan"}))
    add_gpu(fleet, "away", _gpu(AWAY))
    tenants = [{**IN_POD, "workload_pod": name, "pod_uid": name} for name in ("one", "two")]
    add_gpu(fleet, "shared", _gpu(SHARED, owners=tenants))
    for start, minutes in ABSENCES:
        fleet.fail_scrapes("away", start, start + minutes)


def json_lines(fleet: Fleet, start: float) -> Iterator[str]:
    """The samples as VictoriaMetrics imports them, the first minute at Unix time `start`."""
    for one in fleet._series:
        there = [
            (minute, value)
            for minute, value in enumerate(one.values)
            if value is not None and not math.isnan(value)
        ]
        if there:
            yield json.dumps(
                {
                    "metric": {"__name__": one.name, **one.labels},
                    "values": [value for _, value in there],
                    "timestamps": [round((start + 60 * minute) * 1000) for minute, _ in there],
                }
            )


def _gpu(plan: Plan, **constant: object) -> Gpu:
    """A GPU that goes through the states, and is well afterwards."""
    whole = [*plan, (MINUTES + 1, WELL)]
    states = [(minutes, {**state, "stalls": _stalls(state)}) for minutes, state in whole]
    usual, names = Gpu(), {name for _, state in whole for name in state} | {"stalls"}
    changing: dict[str, object] = {}
    for name in names:
        default = getattr(usual, name)
        values = [(minutes, state.get(name, default)) for minutes, state in states]
        changing[name] = _by_key(values, default) if isinstance(default, Mapping) else values
    assert {*changing, *constant} <= {field.name for field in fields(Gpu)}
    return replace(usual, **changing, **constant)  # type: ignore[arg-type]


def _stalls(state: State) -> Shares:
    """What a state is not put down to is sleep; a GPU that says nothing stalls for nothing."""
    busy, stalls = state.get("busy", Gpu().busy), state.get("stalls", {})
    if not isinstance(busy, float):
        return dict.fromkeys(WAITING_ON)
    assert isinstance(stalls, Mapping)
    rest = 1 - busy - sum(share or 0.0 for share in stalls.values())
    return {**dict.fromkeys(WAITING_ON, 0.0), "asleep": rest, **stalls}


def _by_key(values: Sequence[tuple[int, Shares]], default: Shares) -> dict[str, Signal]:
    keys = {key for _, shares in values for key in shares}
    return {
        key: [(minutes, shares.get(key, default.get(key, 0.0))) for minutes, shares in values]
        for key in sorted(keys)
    }


def _xid(code: str, hour: int) -> Mapping[str, Signal]:
    """An error at that hour: its counter is not there before."""
    return {code: [(hour * HOUR, None), (MINUTES + 1, 1)]}
