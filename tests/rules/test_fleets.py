"""What the rules say of whole fleets: one cause for many, ranks that wait, work in phases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rules.fleet import Fleet, Gpu, add_gpu
from rules.series import Signal
from rules.test_on_the_gpu import HEALTHY, changed

SYNCHRONOUS = 8
SPINS = changed(HEALTHY, busy=0.99, sm=0.35, power_watts=330.0, memory=0.4)
"""A rank that waits for another: busy by its utilization, with little to do."""
FEW_WORKERS: dict[str, object] = {"stalls": {"worker_cpu": 0.2}, "worker_cpu": 3.9, "sm": 0.5}


def firing(node: str, at: str = "") -> str:
    return (
        f'count by (alertname, gpu, cause) (ALERTS{{alertstate="firing",instance=~"{node}"{at},'
        'alertname!="GpuCausesBlind"})'
    )


def job(number: int) -> Mapping[str, str]:
    return {"slurm_job_id": f"{number}", "user": "ada"}


def test_a_starved_rank_costs_its_whole_job(tmp_path: Path) -> None:
    """It is busy for four fifths, far above what else is told, and seven others spin meanwhile."""
    fleet = Fleet(40)
    guilty = changed(HEALTHY, busy=0.8, owner=job(1), **FEW_WORKERS)
    add_gpu(fleet, "sync", guilty)
    for index in range(1, SYNCHRONOUS):
        add_gpu(fleet, "sync", changed(SPINS, owner=job(1)), index)
    told = '{alertname="GpuTooFewWorkers",cause="too_few_workers",gpu="0"}'
    fleet.expect(38, firing("sync"), {told: 1.0})
    fleet.expect(38, 'count by (gpu) (gpu:bottleneck:primary{instance="sync"})', {'{gpu="0"}': 1.0})
    fleet.expect(38, 'round(gpu:bottleneck:lost_ratio{instance="sync"} * 100)', lost("sync", 20.0))
    # The same idle time on a GPU that nobody waits for is worth no alert.
    add_gpu(fleet, "alone", changed(guilty, owner=job(2)))
    fleet.expect(38, firing("alone"), {})
    # Nor is it its siblings' where half of them idle as well: they do not wait for it.
    for index in range(4):
        add_gpu(fleet, "apart", changed(guilty, owner=job(3)), index)
    fleet.expect(38, firing("apart"), {})
    sums = {'{cause="too_few_workers"}': 1.6}
    fleet.expect(38, "round(cause:lost_gpu_seconds:rate, 0.01)", sums)
    fleet.check(tmp_path)


def lost(node: str, percent: float) -> dict[str, float]:
    labels = (
        f'cause="too_few_workers",gpu="0",instance="{node}",job="gpu",slurm_job_id="1",user="ada",'
        f'uuid="GPU-{node}-0",workload="Slurm job 1",workload_group="slurm-1"'
    )
    return {f"{{{labels}}}": percent}


def test_ranks_of_many_pods_are_one_job_by_where_they_meet(tmp_path: Path) -> None:
    fleet = Fleet(40)
    for rank in range(SYNCHRONOUS):
        pod = {"workload_namespace": "nlp", "workload_pod": f"train-{rank}", "pod_uid": f"u-{rank}"}
        gpu = changed(HEALTHY, busy=0.8, **FEW_WORKERS) if rank == 5 else SPINS
        add_gpu(fleet, f"node-{rank}", changed(gpu, owner={**pod, "rendezvous": "5f3c9ab01d2e"}))
    # Another namespace has a job that meets at an address of the same name.
    stranger = {"workload_namespace": "vision", "workload_pod": "train-0", "pod_uid": "v-0"}
    alone = changed(HEALTHY, busy=0.8, **FEW_WORKERS)
    add_gpu(fleet, "other", changed(alone, owner={**stranger, "rendezvous": "5f3c9ab01d2e"}))
    told = '{alertname="GpuTooFewWorkers",cause="too_few_workers",gpu="0"}'
    fleet.expect(38, firing("node-5"), {told: 1.0})
    fleet.expect(38, firing("node-[^5]|other"), {})
    group = 'max by (workload_group) (gpu:group:size{workload_group=~".*5f3c9ab01d2e"})'
    sizes = {"nlp": 8.0, "vision": 1.0}
    answer = {f'{{workload_group="{space}/5f3c9ab01d2e"}}': n for space, n in sizes.items()}
    fleet.expect(38, group, answer)
    fleet.expect(38, "round(sum(cause:lost_gpu_seconds:rate), 0.01)", {"{}": 1.6})
    fleet.check(tmp_path)


def test_the_same_group_of_two_clusters_is_two_jobs(tmp_path: Path) -> None:
    fleet = Fleet(20)
    for cluster in ("north", "south"):
        for index in range(2):
            gpu = changed(HEALTHY, owner=job(7), target={"cluster": cluster})
            add_gpu(fleet, cluster, gpu, index)
    sizes = {f'{{cluster="{cluster}"}}': 2.0 for cluster in ("north", "south")}
    fleet.expect(18, "max by (cluster) (gpu:group:size)", sizes)
    fleet.expect(
        18, "cluster:gpus_held:count", {f"cluster:gpus_held:count{k}": v for k, v in sizes.items()}
    )
    fleet.check(tmp_path)


# --- One cause for many ----------------------------------------------------------------------


def storage(number: int) -> Gpu:
    return Gpu(
        busy=0.2,
        sm=0.15,
        stalls={"network": 0.8},
        owner={"slurm_job_id": f"{number}", "user": "ada"},
    )


HOT = changed(HEALTHY, throttle={"sw_thermal": 0.3}, clock=0.8)
FLEETS: Mapping[str, tuple[str | None, list[Gpu]]] = {
    "slow for all": (
        "network_storage_bound",
        [storage(n) if n < 4 else changed(HEALTHY, owner=job(n)) for n in range(12)],
    ),
    # One job is its own affair, however many GPUs it has; and a few of many jobs are no fleet.
    "one job": (None, [storage(1) if n < 8 else HEALTHY for n in range(12)]),
    "a few": (None, [storage(n) if n < 4 else changed(HEALTHY, owner=job(n)) for n in range(16)]),
    "cooling": (
        "thermal_throttle",
        [changed(HOT if n < 3 else HEALTHY, owner=job(1)) for n in range(8)],
    ),
}
"""Each a cluster: the cause that the platform is told, and the GPUs, each on a node."""


def test_what_is_slow_for_many_is_one_for_the_platform(tmp_path: Path) -> None:
    fleet = Fleet(38, evaluation_interval="2m")
    for cluster, (_, gpus) in FLEETS.items():
        for number, gpu in enumerate(gpus):
            add_gpu(fleet, f"{cluster}-{number}", changed(gpu, target={"cluster": cluster}))
    told = 'ALERTS{alertstate="firing",alertname="GpuFleetBottleneck"}'
    answer = {f'{{cause="{c}",cluster="{name}"}}': 1.0 for name, (c, _) in FLEETS.items() if c}
    fleet.expect(38, f"count by (cluster, cause) ({told})", answer)
    slow = '{cause="network_storage_bound"}'
    fleet.expect(18, f'count by (cause) ({told[:-1]},cluster="slow for all"}})', {slow: 1.0})
    fleet.check(tmp_path)


def test_how_well_a_fleet_is_used(tmp_path: Path) -> None:
    fleet = Fleet(20)
    for number, busy in enumerate((0.95, 0.9, 0.75, 0.6)):
        add_gpu(fleet, f"node-{number}", changed(HEALTHY, busy=busy))
    add_gpu(fleet, "free", Gpu(busy=0.0, sm=0.0, processes=0, memory=0.0))
    shares = {"well": 0.75, "very_well": 0.5}
    answer = {f'cluster:gpus_used:ratio{{used="{used}"}}': share for used, share in shares.items()}
    fleet.expect(18, "cluster:gpus_used:ratio", answer)
    fleet.check(tmp_path)


# --- Phases, turns, starts -------------------------------------------------------------------

HOURS = 190


def phases(minutes: int, first: float, second: float) -> Signal:
    """The one and the other value in turns."""
    return [(minutes, (first, second)[at % 2]) for at in range(HOURS // minutes + 1)]


def test_work_in_phases_is_told_once(tmp_path: Path) -> None:
    fleet = Fleet(HOURS, evaluation_interval="2m")
    for minutes in (5, 8, 15, 18):
        gpu = Gpu(
            busy=phases(minutes, 0.05, 0.8),
            sm=phases(minutes, 0.05, 0.7),
            stalls={"host_code": phases(minutes, 0.95, 0.2)},
        )
        add_gpu(fleet, f"every-{minutes}", gpu)
        anything = (
            'max(ALERTS{alertstate="firing",severity="warning",'
            f'instance="every-{minutes}",alertname!="GpuCausesBlind"}})'
        )
        # From when it fires first it fires always, and it fires within an hour and a half.
        fleet.expect(HOURS, f"count_over_time({anything}[90m:1m])", {"{}": 91.0})
    fleet.check(tmp_path)


def test_causes_that_take_turns_end_in_the_name_of_the_largest(tmp_path: Path) -> None:
    fleet = Fleet(HOURS, evaluation_interval="2m")
    turns = Gpu(
        busy=0.3,
        sm=0.25,
        stalls={"host_code": phases(6, 0.7, 0.0), "storage": phases(6, 0.0, 0.7)},
        disk_busy=0.9,
    )
    more: dict[str, Signal] = {
        "host_code": [(7, 0.7), (5, 0.0)] * 16,
        "storage": [(7, 0.0), (5, 0.7)] * 16,
    }
    add_gpu(fleet, "turns", turns)
    add_gpu(fleet, "more", changed(turns, stalls=more))
    add_gpu(fleet, "well", changed(turns, busy=0.8, sm=0.7, stalls={"host_code": 0.2}))
    ever = 'last_over_time(ALERTS{alertstate="firing",instance="turns",cause!=""}[2h])'
    fleet.expect(HOURS, f"count by (alertname) ({ever})", {'{alertname="GpuUnderused"}': 1.0})
    told = '{alertname="GpuUnderused",cause="host_loop_bound",gpu="0"}'
    fleet.expect(85, firing("more"), {told: 1.0})
    fleet.expect(HOURS, firing("more"), {told: 1.0})
    fleet.expect(HOURS, firing("well"), {})
    fleet.check(tmp_path)


def test_who_has_just_begun_is_not_told_of_the_hour_before(tmp_path: Path) -> None:
    fleet = Fleet(HOURS, evaluation_interval="2m")
    before = (90, 0.05)
    gpu = Gpu(busy=[before, (HOURS, 0.95)], stalls={"host_code": [(90, 0.95), (HOURS, 0.05)]})
    add_gpu(fleet, "next", gpu)
    for minute in (130, 145, 160):
        fleet.expect(minute, firing("next", ',alertname="GpuUnderused"'), {})
    fleet.check(tmp_path)


def restarts(every: int, up: int) -> Signal:
    """The age of a job that runs for `up` of so many minutes."""
    return [
        (1, 60.0 * (minute % every) if minute % every < up else None) for minute in range(HOURS)
    ]


def test_a_loop_of_restarts_keeps_one_name_and_one_owner(tmp_path: Path) -> None:
    """Each run is another pod, and there is none in between; for all of the time one alert."""
    fleet = Fleet(HOURS, evaluation_interval="2m")
    every, up = 6, 4
    there = [(1, float(minute % every < up)) for minute in range(HOURS)]
    looping = Gpu(busy=0.02, sm=0.01, age_seconds=restarts(every, up), processes=there)
    add_gpu(fleet, "loop", looping)
    target = {"job": "gpu", "instance": "loop", "gpu": "0", "uuid": "GPU-loop-0"}
    for run in range(HOURS // every):
        at = [(every * run, None), (up, 1.0), (HOURS, None)]
        pod = {"workload_namespace": "nlp", "workload_pod": f"train-{run}", "user": "ada"}
        fleet.gauge("gpu_workload_info", at, **target, **pod)
    series = (
        "count by (workload, workload_namespace, user) (count_over_time("
        'ALERTS{alertstate="firing",instance="loop",alertname="GpuRestartLoop"}[100m]))'
    )
    owner = '{user="ada",workload="namespace nlp",workload_namespace="nlp"}'
    fleet.expect(HOURS, series, {owner: 1.0})
    during = 'count_over_time(ALERTS{alertstate="firing",alertname="GpuRestartLoop"}[100m:1m])'
    fleet.expect(HOURS, f"max({during})", {"{}": 101.0})
    fleet.check(tmp_path)
