"""From evidence to one named cause per GPU, with its loss and its owner: the machinery."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from rules.cases import Row, Table, alert, expect, firing, node_of
from rules.fleet import JOB, RULES, Fleet, Gpu, add_gpu, told_of
from rules.series import Signal

END = 50
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
        r'"gpu:cause:order", labels: \{cause: (\w+)[^}]*\}, expr: vector\((\d+)\)', text
    )
    assert len(written) == len(dict(written)) == text.count('"gpu:cause:order"')
    return {cause: int(rank) for cause, rank in written}


def test_the_order_is_that_of_the_chain() -> None:
    ranks = order()
    assert set(ranks) >= {cause for step in CHAIN for cause in step}
    assert len(set(ranks.values())) == len(ranks)
    for earlier, later in pairwise(CHAIN):
        assert max(ranks[cause] for cause in earlier) < min(ranks[cause] for cause in later)


# --- One cause of several --------------------------------------------------------------------


BURNING: Mapping[str, Signal] = {"worker_cpu": 0.7}
PAIRS: tuple[tuple[str, str, Gpu], ...] = (
    ("telemetry_lost", "gpu_fault", Gpu(up=0, row_remap_failed=1)),
    ("gpu_fault", "hw_slowdown", Gpu(row_remap_failed=1, throttle={"hw_thermal": 0.3})),
    ("hw_slowdown", "host_loop_bound", replace(LOOP, throttle={"hw_thermal": 0.3})),
    ("startup_stall", "host_loop_bound", Gpu(busy=0.0, age_seconds=900.0, stalls={"host_code": 1})),
    # A server without demand is not starting, and is no session; its kernels are not the matter.
    ("waits_for_requests", "startup_stall", replace(SERVER, busy=0.0, age_seconds=900.0)),
    ("waits_for_requests", "interactive_session", replace(SERVER, busy=0.05, interactive=1)),
    (
        "waits_for_requests",
        "host_loop_bound",
        replace(SERVER, stalls={"requests": 0.41, "host_code": 0.39}),
    ),
    (
        "waits_for_requests",
        "small_batch",
        replace(SERVER, busy=0.4, memory=0.19, stalls={"requests": 0.6}),
    ),
    # Its process ended two minutes ago, with the clocks locked; the rates still tell of it.
    (
        "allocated_never_used",
        "clock_limited",
        Gpu(busy=[(18, 0.98), (END, 0.0)], processes=[(18, 1), (END, 0)], clock=0.6, owner=POD),
    ),
    (
        "interactive_session",
        "host_loop_bound",
        Gpu(busy=0.05, sm=0.03, stalls={"host_code": 0.95}, interactive=1),
    ),
    (
        "cpu_throttled",
        "cpu_oversubscribed",
        Gpu(busy=0.3, stalls={"cpu_quota": 0.7}, throttled=2.0, cpu_limit_cores=1.0),
    ),
    (
        "worker_churn",
        "cpu_preprocessing_bound",
        Gpu(busy=0.3, stalls=BURNING, worker_starts=1.0, host_busy_cores=31.0),
    ),
    ("shm_exhausted", "host_loop_bound", replace(LOOP, shm_used=0.95)),
    (
        "cpu_oversubscribed",
        "cpu_preprocessing_bound",
        Gpu(busy=0.1, stalls={"worker_cpu": 0.45, "cpu_queue": 0.45}, host_busy_cores=32.0),
    ),
    (
        "too_few_workers",
        "cpu_preprocessing_bound",
        Gpu(busy=0.3, stalls=BURNING, workers=2, worker_cpu=2.0),
    ),
    ("inline_loading", "host_loop_bound", replace(LOOP, workers=None, main_read_bytes=5e6)),
    ("pcie_transfer_bound", "small_batch", replace(SMALL, pcie_bytes=2.5e10)),
    ("thermal_throttle", "small_batch", replace(SMALL, throttle={"sw_thermal": 0.3}, clock=0.8)),
    ("clock_limited", "pcie_link_degraded", Gpu(clock=0.6, link_width=8)),
    ("clock_limited", "small_batch", replace(SMALL, clock=0.6)),
    ("pcie_link_degraded", "small_batch", replace(SMALL, link_width=8)),
    ("sharing_contention", "small_batch", replace(SMALL, owners=(POD, {"user": "eve"}))),
    ("gpu_memory_capped", "low_parallelism", replace(SMALL, memory=0.9)),
    ("small_batch", "low_parallelism", SMALL),
    (
        "memory_bandwidth_bound",
        "tensor_cores_idle",
        Gpu(sm=0.8, dram=0.7, pipes={"tensor": 0.0, "fp32": 0.5}),
    ),
)
"""Two causes that hold of a GPU, the first of which is the primary one."""


def test_the_first_of_two_causes_is_primary(tmp_path: Path) -> None:
    fleet = Fleet(20)
    for first, second, gpu in PAIRS:
        node = f"{first}-{second}"
        add_gpu(fleet, node, gpu)
        fleet.expect_cause(node, 20, first)
        both = f'gpu:cause:evidence{{instance="{node}",cause=~"{first}|{second}"}} >= 0.4'
        answer = {f'{{cause="{cause}"}}': 1.0 for cause in (first, second)}
        fleet.expect(20, f"count by (cause) ({both})", answer)
    # At no time has a GPU two of them.
    most = "max(max_over_time(count by (instance, gpu, uuid) (gpu:bottleneck:primary)[20m:1m]))"
    fleet.expect(20, most, {"{}": 1.0})
    fleet.check(tmp_path)


# --- Gates, owners, losses: all in one fleet -------------------------------------------------


LOOPS = "host_loop_bound/warning"
NO_LINKS = frozenset(
    f"gpu_pcie_link_{what}" for what in ("width", "width_max", "generation", "generation_max")
)
BAD_HOST = Gpu(host_busy_cores=32.0, host_iowait_cores=12.0, disk_busy=1.0)

CASES: Table = {
    # Fine is fine, whatever its host looks like.
    "fine": Row(HEALTHY),
    "fine on a bad host": Row(BAD_HOST),
    "fine and idle for a tenth": Row(Gpu(busy=0.9, stalls={"storage": 0.1})),
    # Held: by a process, with more memory than a monitoring tool takes.
    "free": Row(replace(LOOP, processes=0)),
    "free with little memory": Row(replace(LOOP, memory=0.003)),
    "held with little memory": Row(replace(LOOP, memory=0.0034), LOOPS),
    "free and broken": Row(replace(LOOP, processes=0, row_remap_failed=1), "gpu_fault/critical"),
    # Worth an alert, but nobody loses anything by it yet.
    "free with a bad link": Row(
        Gpu(busy=0.0, sm=0.0, processes=0, memory=0.0, link_width=8), "- pcie_link_degraded/warning"
    ),
    # Warm: ten minutes old.
    "young": Row(replace(LOOP, age_seconds=599.0)),
    "old enough": Row(replace(LOOP, age_seconds=600.0, busy=0.31), LOOPS),
    # Starvable: below .70 it is told, below .50 alerted.
    "starvable": Row(replace(LOOP, busy=0.69, sm=0.6), "host_loop_bound"),
    "not starvable": Row(replace(LOOP, busy=0.71, sm=0.6)),
    "underused": Row(replace(LOOP, busy=0.49), LOOPS),
    "not underused": Row(replace(LOOP, busy=0.55, sm=0.51), "host_loop_bound"),
    # Hysteresis: it fell to .40, and .55 is not well again; .65 is, and its alert is kept.
    "underused still": Row(replace(LOOP, busy=[(15, 0.4), (END, 0.55)]), LOOPS),
    "underused no more": Row(
        replace(LOOP, busy=[(10, 0.4), (END, 0.65)], sm=0.51),
        "host_loop_bound host_loop_bound/warning",
    ),
    # Before Hopper: what the host does is told as well as ever.
    "no GPM": Row(
        replace(LOOP, sm=None, occupancy=None, dram=None, pipes=None, nvlink_bytes=None), LOOPS
    ),
    # An exporter that is restarted, and eight minutes without scrapes.
    "reset": Row(replace(LOOP, reset_at=25), LOOPS),
    "reset of a fine one": Row(replace(HEALTHY, reset_at=25)),
    "gap": Row(replace(LOOP, gap=(30, 38)), LOOPS),
    "gap of a fine one": Row(replace(HEALTHY, gap=(30, 38))),
}
ONCE = {"reset": "host_loop_bound", "reset-of-a-fine-one": None, "gap-of-a-fine-one": None}
"""Nothing but this at any time."""


def add_instances(fleet: Fleet) -> None:
    """MIG instances: no power, clocks, throttling or links, and the same index."""
    nothing = dict.fromkeys(
        ("power_watts", "clock", "throttle", "pcie_bytes", "nvlink_bytes", "memory_controller")
    )
    missing = NO_LINKS | {"gpu_pcie_replays_total"}
    add_gpu(fleet, "instances", HEALTHY)
    for name, gpu in (("well", HEALTHY), ("small", SMALL), ("loop", LOOP)):
        instance = replace(gpu, uuid=f"MIG-{name}", missing=missing, **nothing)  # type: ignore[arg-type]
        add_gpu(fleet, "instances", instance, 1)
    expect_causes(fleet, "instances", "uuid", {"MIG-small": "small_batch", "MIG-loop": LOOPS})
    fleet.expect_firing("instances", END, alert("small_batch/info"), alert(LOOPS))


def expect_causes(fleet: Fleet, node: str, label: str, causes: Mapping[str, str]) -> None:
    """The primary causes of the GPUs of `node`: by index, or by uuid where instances share it."""
    query = f'count by ({label}, cause) (gpu:bottleneck:primary{{instance="{node}"}})'
    answer = {
        f'{{{label}="{gpu}",cause="{cause.partition("/")[0]}"}}': 1.0
        for gpu, cause in causes.items()
    }
    fleet.expect(END, query, answer)


def add_pair(fleet: Fleet) -> None:
    """The guilty one is named, not its neighbour."""
    for index, gpu in enumerate((HEALTHY, LOOP)):
        add_gpu(fleet, "one-of-two", gpu, index)
    expect_causes(fleet, "one-of-two", "gpu", {"1": LOOPS})
    fleet.expect_firing("one-of-two", END, alert(LOOPS))
    named = 'count by (gpu, uuid) (ALERTS{instance="one-of-two",alertname="GpuHostLoopBound"})'
    fleet.expect(END, named, {'{gpu="1",uuid="GPU-one-of-two-1"}': 1.0})


def test_gates(tmp_path: Path) -> None:
    fleet = Fleet(END)
    for name, row in CASES.items():
        add_gpu(fleet, node_of(name), row.gpu)
        expect(fleet, node_of(name), row.told, END)
    add_pair(fleet)
    add_instances(fleet)
    for node, cause in ONCE.items():
        query = (
            f'count by (cause) (count_over_time(gpu:bottleneck:primary{{instance="{node}"}}[45m]))'
        )
        fleet.expect(END, query, {f'{{cause="{cause}"}}': 1.0} if cause else {})
    # The alert outlives the gap, and is not late after it.
    for minute in (29, 34, 37, 39, 44):
        fleet.expect_firing("gap", minute, alert(LOOPS))
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
    full = "shm_exhausted/warning"
    for node, gpu, told, labels in (
        ("pod", replace(LOOP, owner=POD), LOOPS, POD),
        ("slurm", replace(LOOP, owner=slurm), LOOPS, slurm),
        ("nobody", LOOP, LOOPS, {}),
        ("several", replace(LOOP, owners=(POD, slurm)), LOOPS, {}),
        # One tenant: what its containers and users do not share is left out.
        ("sidecar", replace(LOOP, owners=containers), LOOPS, SHARED_POD),
        ("users", replace(LOOP, owners=users), LOOPS, SHARED_POD),
        ("steps", replace(LOOP, owners=steps), LOOPS, {"slurm_job_id": "4711"}),
        ("target", replace(LOOP, owner=POD, target=CLUSTER), LOOPS, {**POD, **CLUSTER}),
        # The same for those that stand beside the primary cause.
        ("beside", replace(shm, owner=POD, target=CLUSTER), full, {**POD, **CLUSTER}),
        ("beside-several", replace(shm, owners=(POD, slurm)), full, {}),
    ):
        add_gpu(fleet, node, gpu)
        query = f'ALERTS{{instance="{node}",alertstate="firing"}}'
        fleet.expect(20, query, {firing(node, told, **told_of(labels, node)): 1.0})
    # Target labels survive in the groups of a job, too.
    idle = Gpu(busy=0.05, sm=0.02, owner=slurm | {"slurm_job_id": "1"}, target=CLUSTER)
    add_gpu(fleet, "group", idle)
    add_gpu(fleet, "other", replace(idle, busy=0.95, sm=0.9))
    query = 'ALERTS{instance="group",alertstate="firing"}'
    labels = {"slurm_job_id": "1", "user": "ada", **CLUSTER}
    uneven = firing("group", "gpu_imbalance/warning", **told_of(labels))
    fleet.expect(20, query, {uneven: 1.0})
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
    fleet = Fleet(70, evaluation_interval="2m")
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
    fleet = Fleet(70, evaluation_interval="2m")
    add_gpu(fleet, "restricted", replace(HEALTHY, sm=None, feeders=False))
    for pod in ("old", "new"):
        for signal, given in signals.items():
            labels = {"job": JOB, "instance": "restricted", "pod": pod, "signal": signal}
            fleet.gauge("gpu_exporter_signal_available", given, **labels)
    firing = 'sum by (blind) (ALERTS{alertname="GpuCausesBlind",alertstate="firing"})'
    fleet.expect(70, firing, {f'{{blind="{what}"}}': 1.0 for what in told})
    fleet.check(tmp_path)
