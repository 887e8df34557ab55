"""From evidence to one named cause per GPU, with its loss and its owner: the machinery."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

from rules.fleet import JOB, RULES, Fleet, Gpu, Signal, add_gpu, told_of

END = 50
BESIDE = {"near_oom", "near_thermal_limit", "oversized_gpu"}
"""Have an alert of their own and are never the primary cause."""
CHAIN = (
    ("telemetry_lost",),
    ("gpu_fault",),
    ("hw_slowdown",),
    ("collective_hang",),
    ("waits_for_requests",),
    ("job_stalled",),
    ("restart_loop",),
    ("startup_stall",),
    ("allocated_never_used", "allocated_idle", "interactive_session"),
    ("gpu_imbalance",),
    ("cpu_throttled",),
    ("worker_churn",),
    ("shm_exhausted",),
    ("checkpoint_stall",),
    ("page_cache_thrash",),
    ("local_storage_bound", "network_storage_bound"),
    ("cpu_oversubscribed",),
    ("too_few_workers",),
    ("cpu_preprocessing_bound",),
    ("pcie_transfer_bound",),
    ("inline_loading",),
    ("host_loop_bound",),
    # They make a straggler.
    ("thermal_throttle", "clock_limited", "power_capped"),
    ("straggler",),
    ("communication_bound",),
    ("pcie_link_degraded",),
    ("sharing_contention",),
    ("gpu_memory_capped",),
    ("small_batch",),
    ("memory_bandwidth_bound",),
    ("tensor_cores_idle",),
    ("low_parallelism",),
    ("unexplained_low_utilization",),
)
"""Who comes first; causes of one step exclude each other or are told apart by their order."""

HEALTHY = Gpu()
LOOP = Gpu(busy=0.3, sm=0.2, stalls={"host_code": 0.7})
SMALL = Gpu(busy=0.9, sm=0.25, dram=0.1, memory=0.19)
ASLEEP = Gpu(busy=0.2, sm=0.15)
SERVER = Gpu(busy=0.2, sm=0.15, dram=0.1, stalls={"requests": 0.8})
POD = {
    "workload_namespace": "vision",
    "workload_pod": "train-0",
    "workload_container": "main",
    "pod_uid": "5f1e",
}


def order() -> dict[str, int]:
    """The rank of each cause, as written."""
    text = (RULES / "thresholds.yml").read_text()
    written = re.findall(
        r'"gpu:cause:order", labels: \{cause: (\w+)\}, expr: vector\((\d+)\)', text
    )
    assert len(written) == len(dict(written)) == text.count('"gpu:cause:order"')
    return {cause: int(rank) for cause, rank in written}


def test_the_order_is_that_of_the_chain() -> None:
    ranks = order()
    assert set(ranks) == {cause for step in CHAIN for cause in step}
    assert len(set(ranks.values())) == len(ranks)
    for earlier, later in pairwise(CHAIN):
        assert max(ranks[cause] for cause in earlier) < min(ranks[cause] for cause in later)


def test_each_cause_has_evidence_an_order_and_an_alert() -> None:
    causes = set(order()) | BESIDE
    evidence = (RULES / "recording.yml").read_text()
    assert set(re.findall(r"labels: \{cause: (\w+)\}", evidence)) == causes
    alerts = (RULES / "alerts.yml").read_text()
    assert set(re.findall(r"labels: \{.*cause: (\w+)\}", alerts)) == causes


# --- One cause of several --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """A GPU for which two causes hold."""

    first: str
    second: str
    gpu: Gpu


BURNING: Mapping[str, Signal] = {"worker_cpu": 0.7}
PAIRS = (
    Pair("telemetry_lost", "gpu_fault", Gpu(up=0, row_remap_failed=1)),
    Pair("gpu_fault", "hw_slowdown", Gpu(row_remap_failed=1, throttle={"hw_thermal": 0.3})),
    Pair("hw_slowdown", "host_loop_bound", replace(LOOP, throttle={"hw_thermal": 0.3})),
    Pair(
        "startup_stall",
        "host_loop_bound",
        Gpu(busy=0.0, age_seconds=900.0, stalls={"host_code": 1}),
    ),
    # A server without demand is not starting, and is no session; its kernels are not the matter.
    Pair("waits_for_requests", "startup_stall", replace(SERVER, busy=0.0, age_seconds=900.0)),
    Pair("waits_for_requests", "interactive_session", replace(SERVER, busy=0.05, interactive=1)),
    Pair(
        "waits_for_requests",
        "host_loop_bound",
        replace(SERVER, stalls={"requests": 0.41, "host_code": 0.39}),
    ),
    Pair(
        "waits_for_requests",
        "small_batch",
        replace(SERVER, busy=0.4, memory=0.19, stalls={"requests": 0.6}),
    ),
    # Its process ended two minutes ago, with the clocks locked; the rates still tell of it.
    Pair(
        "allocated_never_used",
        "clock_limited",
        Gpu(busy=[(18, 0.98), (END, 0.0)], processes=[(18, 1), (END, 0)], clock=0.6, owner=POD),
    ),
    Pair(
        "interactive_session",
        "host_loop_bound",
        Gpu(busy=0.05, sm=0.03, stalls={"host_code": 0.95}, interactive=1),
    ),
    Pair(
        "cpu_throttled",
        "cpu_oversubscribed",
        Gpu(busy=0.3, stalls={"cpu_quota": 0.7}, throttled=2.0, cpu_limit_cores=1.0),
    ),
    Pair(
        "worker_churn",
        "cpu_preprocessing_bound",
        Gpu(busy=0.3, stalls=BURNING, worker_starts=1.0, host_busy_cores=31.0),
    ),
    Pair("shm_exhausted", "host_loop_bound", replace(LOOP, shm_used=0.95)),
    Pair(
        "cpu_oversubscribed",
        "cpu_preprocessing_bound",
        Gpu(busy=0.1, stalls={"worker_cpu": 0.45, "cpu_queue": 0.45}, host_busy_cores=32.0),
    ),
    Pair(
        "too_few_workers",
        "cpu_preprocessing_bound",
        Gpu(busy=0.3, stalls=BURNING, workers=2, worker_cpu=2.0),
    ),
    Pair(
        "inline_loading",
        "host_loop_bound",
        replace(LOOP, workers=None, main_read_bytes=5e6),
    ),
    Pair(
        "pcie_transfer_bound",
        "small_batch",
        replace(SMALL, pcie_bytes=2.5e10),
    ),
    Pair(
        "thermal_throttle", "small_batch", replace(SMALL, throttle={"sw_thermal": 0.3}, clock=0.8)
    ),
    Pair("clock_limited", "pcie_link_degraded", Gpu(clock=0.6, link_width=8)),
    Pair("clock_limited", "small_batch", replace(SMALL, clock=0.6)),
    Pair("pcie_link_degraded", "small_batch", replace(SMALL, link_width=8)),
    Pair("sharing_contention", "small_batch", replace(SMALL, owners=(POD, {"user": "eve"}))),
    Pair("gpu_memory_capped", "low_parallelism", replace(SMALL, memory=0.9)),
    Pair("small_batch", "low_parallelism", SMALL),
    Pair(
        "memory_bandwidth_bound",
        "tensor_cores_idle",
        Gpu(sm=0.8, dram=0.7, pipes={"tensor": 0.0, "fp32": 0.5}),
    ),
)


def test_the_first_of_two_causes_is_primary(tmp_path: Path) -> None:
    fleet = Fleet(20)
    for pair in PAIRS:
        node = f"{pair.first}-{pair.second}"
        add_gpu(fleet, node, pair.gpu)
        fleet.expect_cause(node, 20, pair.first)
        query = (
            f'count by (cause) (gpu:cause:evidence{{instance="{node}",'
            f'cause=~"{pair.first}|{pair.second}"}} >= 0.4)'
        )
        answer = {f'{{cause="{cause}"}}': 1.0 for cause in (pair.first, pair.second)}
        fleet.expect(20, query, answer)
    # At no time has a GPU two of them.
    most = "max(max_over_time(count by (instance, gpu, uuid) (gpu:bottleneck:primary)[20m:1m]))"
    fleet.expect(20, most, {"{}": 1.0})
    fleet.check(tmp_path)


# --- Gates, owners, losses: all in one fleet -------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """A node, what is asked of it in the end, and what was the answer."""

    gpus: tuple[Gpu, ...]
    causes: Mapping[str, str] = field(default_factory=dict)
    """Primary causes by GPU; "uuid" where MIG instances share the index."""
    alerts: tuple[str, ...] = ()


def one(gpu: Gpu, cause: str | None = None, *alerts: str) -> Case:
    """A node with one GPU."""
    return Case((gpu,), {"0": cause} if cause else {}, alerts)


LOOPS = ("host_loop_bound", "GpuHostLoopBound/warning")
NO_LINKS = frozenset(
    f"gpu_pcie_link_{what}" for what in ("width", "width_max", "generation", "generation_max")
)
BAD_HOST = Gpu(host_busy_cores=32.0, host_iowait_cores=12.0, disk_busy=1.0)

CASES = {
    "one of two": Case((HEALTHY, LOOP), {"1": LOOPS[0]}, LOOPS[1:]),
    # Fine is fine, whatever its host looks like.
    "fine": one(HEALTHY),
    "fine on a bad host": one(BAD_HOST),
    "fine and idle for a tenth": one(Gpu(busy=0.9, stalls={"storage": 0.1})),
    # Held: by a process, with more memory than a monitoring tool takes.
    "free": one(replace(LOOP, processes=0)),
    "free with little memory": one(replace(LOOP, memory=0.003)),
    "held with little memory": one(replace(LOOP, memory=0.0034), *LOOPS),
    "free and broken": one(
        replace(LOOP, processes=0, row_remap_failed=1), "gpu_fault", "GpuFault/critical"
    ),
    # Worth an alert, but nobody loses anything by it yet.
    "free with a bad link": one(
        Gpu(busy=0.0, sm=0.0, processes=0, memory=0.0, link_width=8),
        None,
        "GpuPcieLinkDegraded/warning",
    ),
    # Warm: ten minutes old.
    "young": one(replace(LOOP, age_seconds=599.0)),
    "old enough": one(replace(LOOP, age_seconds=600.0, busy=0.31), *LOOPS),
    # Starvable: below .70 it is told, below .50 alerted.
    "starvable": one(replace(LOOP, busy=0.69, sm=0.6), LOOPS[0]),
    "not starvable": one(replace(LOOP, busy=0.71, sm=0.6)),
    "underused": one(replace(LOOP, busy=0.49), *LOOPS),
    "not underused": one(replace(LOOP, busy=0.55, sm=0.51), LOOPS[0]),
    # Hysteresis: it fell to .40, and .55 is not well again; .65 is.
    "underused still": one(replace(LOOP, busy=[(15, 0.4), (END, 0.55)]), *LOOPS),
    "underused no more": one(replace(LOOP, busy=[(10, 0.4), (END, 0.65)], sm=0.51), LOOPS[0]),
    # MIG instances: no power, clocks, throttling or links, and the same index.
    "instances": Case(
        (
            HEALTHY,
            *(
                replace(
                    gpu,
                    uuid=f"MIG-{name}",
                    power_watts=None,
                    clock=None,
                    throttle=None,
                    pcie_bytes=None,
                    nvlink_bytes=None,
                    memory_controller=None,
                    missing=NO_LINKS | {"gpu_pcie_replays_total"},
                )
                for name, gpu in (("well", HEALTHY), ("small", SMALL), ("loop", LOOP))
            ),
        ),
        {"MIG-small": "small_batch", "MIG-loop": "host_loop_bound"},
        ("GpuSmallBatch/info", "GpuHostLoopBound/warning"),
    ),
    # Before Hopper: what the host does is told as well as ever.
    "no GPM": one(
        replace(LOOP, sm=None, occupancy=None, dram=None, pipes=None, nvlink_bytes=None), *LOOPS
    ),
    # An exporter that is restarted, and eight minutes without scrapes.
    "reset": one(replace(LOOP, reset_at=25), *LOOPS),
    "reset of a fine one": one(replace(HEALTHY, reset_at=25)),
    "gap": one(replace(LOOP, gap=(30, 38)), *LOOPS),
    "gap of a fine one": one(replace(HEALTHY, gap=(30, 38))),
}
ONCE = {"reset": LOOPS[0], "reset-of-a-fine-one": None, "gap-of-a-fine-one": None}
"""Nothing but this at any time."""


def add(fleet: Fleet, name: str, case: Case) -> None:
    node = name.replace(" ", "-")
    instances = any(gpu.uuid for gpu in case.gpus)
    for index, gpu in enumerate(case.gpus):
        add_gpu(fleet, node, gpu, min(index, 1))
    label = "uuid" if instances else "gpu"
    query = f'count by ({label}, cause) (gpu:bottleneck:primary{{instance="{node}"}})'
    answer = {f'{{{label}="{gpu}",cause="{cause}"}}': 1.0 for gpu, cause in case.causes.items()}
    fleet.expect(END, query, answer)
    fleet.expect_firing(node, END, *case.alerts)


def test_gates(tmp_path: Path) -> None:
    fleet = Fleet(END)
    for name, case in CASES.items():
        add(fleet, name, case)
    # The guilty one is named, not its neighbour.
    firing = 'count by (gpu, uuid) (ALERTS{instance="one-of-two",alertname="GpuHostLoopBound"})'
    fleet.expect(END, firing, {'{gpu="1",uuid="GPU-one-of-two-1"}': 1.0})
    for node, cause in ONCE.items():
        query = (
            f'count by (cause) (count_over_time(gpu:bottleneck:primary{{instance="{node}"}}[45m]))'
        )
        fleet.expect(END, query, {f'{{cause="{cause}"}}': 1.0} if cause else {})
    # The alert outlives the gap, and is not late after it.
    for minute in (29, 34, 37, 39, 44):
        fleet.expect_firing("gap", minute, *LOOPS[1:])
    # It reads the gate's own past.
    for minute, state in ((13, 1.0), (24, 1.0), (34, 1.0), (END, 1.0)):
        fleet.expect(minute, 'count(gpu:gate:underused{instance="underused-still"})', {"{}": state})
    fleet.expect(10, 'count(gpu:gate:underused{instance="underused-no-more"})', {"{}": 1.0})
    fleet.expect(24, 'count(gpu:gate:underused{instance="underused-no-more"})', {})
    fleet.expect(END, 'count(gpu:gate:underused{instance="not-underused"})', {})
    fleet.check(tmp_path)


def test_age_unknown(tmp_path: Path) -> None:
    """Who cannot see how old a process is waits ten minutes with its judgement."""
    fleet = Fleet(20)
    add_gpu(fleet, "ageless", replace(ASLEEP, feeders=False))
    add_gpu(fleet, "new", replace(ASLEEP, feeders=False, processes=[(5, 0), (20, 1)]))
    for node, warm in (("ageless", 10), ("new", 15)):
        fleet.expect_cause(node, warm - 1, None)
        fleet.expect_cause(node, warm + 1, "unexplained_low_utilization")
    fleet.check(tmp_path)


# --- Owners ----------------------------------------------------------------------------------

CLUSTER = {"cluster": "north", "region": "eu"}


def alert(name: str, node: str, cause: str, **labels: str) -> str:
    """The series of a firing alert with exactly these labels."""
    pairs = {
        "alertname": name,
        "alertstate": "firing",
        "cause": cause,
        "gpu": "0",
        "instance": node,
        "job": "gpu",
        "owner": "job",
        "severity": "warning",
        "uuid": f"GPU-{node}-0",
        **labels,
    }
    return "ALERTS{" + ",".join(f'{key}="{value}"' for key, value in pairs.items()) + "}"


SHARED_POD = {"workload_namespace": "vision", "workload_pod": "train-0", "pod_uid": "uid-0"}


def test_owners(tmp_path: Path) -> None:
    fleet = Fleet(20)
    slurm = {"slurm_job_id": "4711", "user": "ada"}
    shm = replace(LOOP, shm_used=0.95)
    containers = [
        {**SHARED_POD, "workload_container": name, "container_id": name}
        for name in ("main", "proxy")
    ]
    users = [{**one, "user": one["container_id"]} for one in containers]
    steps = (slurm, {"slurm_job_id": "4711", "user": "bob"})
    loops = {"name": "GpuHostLoopBound", "cause": "host_loop_bound"}
    full = {"name": "GpuShmExhausted", "cause": "shm_exhausted"}
    for node, gpu, expected, labels in (
        ("pod", replace(LOOP, owner=POD), loops, POD),
        ("slurm", replace(LOOP, owner=slurm), loops, slurm),
        ("nobody", LOOP, loops, {}),
        ("several", replace(LOOP, owners=(POD, slurm)), loops, {}),
        # One tenant: what its containers and users do not share is left out.
        ("sidecar", replace(LOOP, owners=containers), loops, SHARED_POD),
        ("users", replace(LOOP, owners=users), loops, SHARED_POD),
        ("steps", replace(LOOP, owners=steps), loops, {"slurm_job_id": "4711"}),
        ("target", replace(LOOP, owner=POD, target=CLUSTER), loops, {**POD, **CLUSTER}),
        # The same for those that stand beside the primary cause.
        ("beside", replace(shm, owner=POD, target=CLUSTER), full, {**POD, **CLUSTER}),
        ("beside-several", replace(shm, owners=(POD, slurm)), full, {}),
    ):
        add_gpu(fleet, node, gpu)
        query = f'ALERTS{{instance="{node}",alertstate="firing"}}'
        fleet.expect(20, query, {alert(node=node, **expected, **told_of(labels, node)): 1.0})
    # Target labels survive in the groups of a job, too.
    idle = Gpu(busy=0.05, sm=0.02, owner=slurm | {"slurm_job_id": "1"}, target=CLUSTER)
    add_gpu(fleet, "group", idle)
    add_gpu(fleet, "other", replace(idle, busy=0.95, sm=0.9))
    query = 'ALERTS{instance="group",alertstate="firing"}'
    labels = {"slurm_job_id": "1", "user": "ada", **CLUSTER}
    fleet.expect(
        20, query, {alert("GpuImbalance", "group", "gpu_imbalance", **told_of(labels)): 1.0}
    )
    fleet.expect_firing("other", 20)
    fleet.check(tmp_path)


def test_what_holds_a_gpu_where_not_all_can_be_read(tmp_path: Path) -> None:
    """Processes of other PID namespaces are not seen, and memory may be the host's."""
    fleet = Fleet(40)
    unseen, unified = frozenset({"gpu_processes"}), frozenset({"gpu_memory_used_bytes"})
    nobody = {"busy": 0.0, "feeders": False, "sm": 0.0}
    for node, gpu, cause in (
        ("restricted", replace(SMALL, feeders=False, missing=unseen), "small_batch"),
        ("restricted-free", replace(HEALTHY, **nobody, memory=0.0, missing=unseen), None),  # type: ignore[arg-type]
        ("unified", replace(LOOP, missing=unified), "host_loop_bound"),
        ("unified-free", replace(HEALTHY, **nobody, processes=0, missing=unified), None),  # type: ignore[arg-type]
        ("neither", replace(LOOP, missing=unified | unseen), None),
    ):
        add_gpu(fleet, node, gpu)
        fleet.expect_cause(node, 35, cause)
    fleet.check(tmp_path)


def test_a_few_percent_of_checkpoints_do_not_hide_what_runs_on_the_gpu(tmp_path: Path) -> None:
    fleet = Fleet(40)
    writes = {"main_written_bytes": 2e8, "worker_read_bytes": 1e6}
    fp32 = {"sm": 0.9, "dram": 0.2, "pipes": {"tensor": 0.0, "fp32": 0.6, "fp64": 0.0}}
    for node, busy, changes, cause in (
        ("both", 0.93, fp32, "tensor_cores_idle"),
        ("checkpoints", 0.93, {}, "checkpoint_stall"),
        ("many-checkpoints", 0.75, fp32, "checkpoint_stall"),
    ):
        stalls = {"storage": 0.99 - busy}
        gpu = Gpu(busy=busy, stalls=stalls, **writes, **changes)  # type: ignore[arg-type]
        add_gpu(fleet, node, gpu)
        fleet.expect_cause(node, 38, cause)
    fleet.check(tmp_path)


def test_jobs_of_two_clusters_may_have_one_number(tmp_path: Path) -> None:
    fleet = Fleet(20)
    for cluster, busy in (("north", 0.98), ("south", 0.3)):
        owner = {"slurm_job_id": "4711", "user": "ada"}
        for index in (0, 1):
            gpu = Gpu(busy=busy, owner=owner, target={"cluster": cluster})
            add_gpu(fleet, cluster, gpu, index)
        fleet.expect(20, f'max(gpu:group:size{{cluster="{cluster}"}})', {"{}": 2.0})
        most = f'round(max(gpu:group_busy:max{{cluster="{cluster}"}}), 0.01)'
        fleet.expect(20, most, {"{}": busy})
    fleet.check(tmp_path)


# --- Losses and counts -----------------------------------------------------------------------


def test_losses(tmp_path: Path) -> None:
    fleet = Fleet(15)
    no_gpm = {"sm": None, "occupancy": None, "dram": None, "pipes": None, "nvlink_bytes": None}
    by_power = replace(SMALL, **no_gpm, power_watts=210.0)  # type: ignore[arg-type]
    lost = {
        "starved": (LOOP, "host_loop_bound", 0.7),
        "starved-less": (replace(LOOP, busy=0.5), "host_loop_bound", 0.5),
        "inefficient": (SMALL, "small_batch", 0.75),
        "inefficient-by-power": (by_power, "small_batch", 0.7),
        "slowed": (Gpu(throttle={"hw_thermal": 0.5}, clock=0.4), "hw_slowdown", 0.6),
        "broken": (Gpu(row_remap_failed=1), "gpu_fault", 1.0),
        "away": (Gpu(up=0), "telemetry_lost", 1.0),
        "unexplained": (ASLEEP, "unexplained_low_utilization", 0.8),
        "unasked": (SERVER, "waits_for_requests", 0.8),
        "never-used": (
            Gpu(busy=0.0, sm=0.0, processes=0, memory=0.0, feeders=False, owner=POD),
            "allocated_never_used",
            1.0,
        ),
        "fine": (HEALTHY, None, 0.0),
        "free": (Gpu(busy=0.0, sm=0.0, processes=0, memory=0.0), None, 0.0),
        "free-too": (Gpu(busy=0.0, sm=0.0, processes=1, memory=0.001), None, 0.0),
    }
    total: dict[str, float] = {}
    for node, (gpu, cause, ratio) in lost.items():
        add_gpu(fleet, node, gpu)
        query = f'round(sum by (cause) (gpu:bottleneck:lost_ratio{{instance="{node}"}}), 0.001)'
        fleet.expect(15, query, {f'{{cause="{cause}"}}': ratio} if cause else {})
        if cause:
            total[cause] = total.get(cause, 0.0) + ratio
    sums = {f'{{cause="{cause}"}}': round(ratio, 3) for cause, ratio in total.items()}
    fleet.expect(15, "round(sum by (cause) (cause:lost_gpu_seconds:rate), 0.001)", sums)
    # Assigned is not free, even if nobody uses it.
    fleet.expect(15, "sum(cluster:gpus_held:count)", {"{}": len(lost) - 2})
    fleet.expect(15, "sum(cluster:gpus_free:count)", {"{}": 2})
    fleet.check(tmp_path)


def test_no_gpu_at_all(tmp_path: Path) -> None:
    fleet = Fleet(5)
    fleet.expect(5, "sum(cluster:gpus_held:count)", {"{}": 0})
    fleet.expect(5, "sum(cluster:gpus_free:count)", {"{}": 0})
    fleet.expect(5, "gpu:bottleneck:primary", {})
    fleet.check(tmp_path)


# --- Coverage --------------------------------------------------------------------------------


def test_blind(tmp_path: Path) -> None:
    fleet = Fleet(70)
    known = replace(HEALTHY, owner=POD)
    for node, gpu, blind in (
        ("sees-all", known, ()),
        # Without idle time there is nothing to explain, and nothing that cannot be seen.
        ("never-idle", replace(known, busy=1.0), ()),
        ("no-feeders", replace(known, feeders=False), ("host_causes",)),
        ("unknown", replace(LOOP, owner=POD, stalls={"unknown": 0.7}), ("host_causes",)),
        ("no-gpm", replace(known, sm=None), ("device_causes",)),
        ("no-links", replace(known, pcie_bytes=None), ("link_causes",)),
        ("has-no-gpm", replace(known, sm=None, pcie_bytes=None, architecture="ampere"), ()),
        ("no-owner", HEALTHY, ("job_causes",)),
        ("free", replace(HEALTHY, processes=0, sm=None), ()),
    ):
        add_gpu(fleet, node, gpu)
        query = f'sum by (blind) (gpu:blind:bool{{instance="{node}"}})'
        fleet.expect(15, query, {f'{{blind="{what}"}}': 1.0 for what in blind})
        alerts = (
            "count by (blind, severity) "
            f'(ALERTS{{instance="{node}",alertname="GpuCausesBlind",alertstate="firing"}})'
        )
        fleet.expect(58, alerts, {})
        fleet.expect(70, alerts, {f'{{blind="{what}",severity="info"}}': 1.0 for what in blind})
    fleet.check(tmp_path)


@pytest.mark.parametrize(
    ("signals", "told"),
    [
        ({"xid_events": 1}, ("device_causes",)),
        ({"xid_events": 1, "host_pids": 0}, ("device_causes", "host_causes", "job_causes")),
        ({"xid_events": 1, "host_pids": 1}, ("device_causes", "host_causes", "job_causes")),
    ],
    ids=["unwanted", "not to be had", "seen"],
)
def test_blind_for_what_nobody_wants(
    signals: dict[str, int], told: tuple[str, ...], tmp_path: Path
) -> None:
    fleet = Fleet(70)
    add_gpu(fleet, "restricted", replace(HEALTHY, sm=None, feeders=False))
    for pod in ("old", "new"):
        for signal, given in signals.items():
            labels = {"job": JOB, "instance": "restricted", "pod": pod, "signal": signal}
            fleet.gauge("gpu_exporter_signal_available", given, **labels)
    firing = 'sum by (blind) (ALERTS{alertname="GpuCausesBlind",alertstate="firing"})'
    fleet.expect(70, firing, {f'{{blind="{what}"}}': 1.0 for what in told})
    fleet.check(tmp_path)
