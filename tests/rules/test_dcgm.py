"""The pack on a fleet with dcgm-exporter: which causes it tells, units, labels, both exporters.

Each part adds its nodes to a fleet, and what is expected of them: one run of promtool for many
parts, as evaluating the pack takes longer than the GPUs in it. What it says of a failure names
the node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_bottleneck_exporter import rulepack
from rules.cases import expect
from rules.dcgm_fleet import (
    BUSY_INEFFICIENT,
    DCGM_GROUPS,
    DEFAULT_CSV,
    JOB,
    MEBIBYTE,
    NO_PROFILING,
    NOTHING,
    Dcgm,
    add_dcgm,
    dcgm_fleet,
)
from rules.fleet import Fleet, Gpu, add_gpu
from rules.series import STALE

SECOND = 1e9
"""In nanoseconds."""
EMPTY = {"fb_used": 4, "fb_free": 81916}
END = 80
"""Minutes after which the longest `for`, an hour, is over."""
POD = {"namespace": "research", "pod": "train-0", "container": "main"}
FIRST = "GpuFault/critical"


def dcgm(**changes: Any) -> Dcgm:  # noqa: ANN401
    return replace(Dcgm(), **changes)


CASES: dict[str, tuple[Dcgm, str]] = {
    "healthy": (Dcgm(), "-"),
    "idle-and-free": (dcgm(gpu_util=0, gr_engine=0, sm=0, **EMPTY), "-"),
    "small_batch": (dcgm(**BUSY_INEFFICIENT), "small_batch/info"),
    "memory_bandwidth_bound": (
        dcgm(dram=0.75, pipes={"TENSOR": 0.1, "FP32": 0.1, "FP64": 0.0}),
        "memory_bandwidth_bound/info",
    ),
    "tensor_cores_idle": (
        dcgm(pipes={"TENSOR": 0.01, "FP32": 0.6, "FP64": 0.0}),
        "tensor_cores_idle/info",
    ),
    "double-precision": (dcgm(pipes={"TENSOR": 0.01, "FP32": 0.3, "FP64": 0.5}), "-"),
    "low_parallelism": (
        dcgm(sm=0.3, dram=0.5, fb_used=49152, fb_free=32768),
        "low_parallelism/info",
    ),
    "gpu_memory_capped": (dcgm(sm=0.3, fb_used=75000, fb_free=6920), "gpu_memory_capped/info"),
    "allocated_idle": (dcgm(gpu_util=0, gr_engine=0, sm=0), "allocated_idle/warning"),
    "thermal_throttle": (
        dcgm(sm_clock=1600, throttle={"CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS": 0.4 * SECOND}),
        "thermal_throttle/warning",
    ),
    "thermal_violation": (
        dcgm(sm_clock=1600, throttle={"POWER_VIOLATION": 0.0, "THERMAL_VIOLATION": 0.4 * SECOND}),
        "thermal_throttle/warning",
    ),
    "power_capped": (
        dcgm(sm_clock=1300, throttle={"CLOCKS_EVENT_REASON_SW_POWER_CAP_NS": 0.8 * SECOND}),
        "power_capped/info",
    ),
    "power_violation": (
        dcgm(sm_clock=1300, throttle={"POWER_VIOLATION": 0.8 * SECOND, "THERMAL_VIOLATION": 0.0}),
        "power_capped/info",
    ),
    "capped-at-full-clocks": (
        dcgm(throttle={"CLOCKS_EVENT_REASON_SW_POWER_CAP_NS": 0.8 * SECOND}),
        "-",
    ),
    "clock_limited": (dcgm(sm_clock=1300), "clock_limited/warning"),
    "low-clocks-heat-unknown": (dcgm(sm_clock=1300, throttle={"POWER_VIOLATION": 0.0}), "-"),
    "hw_slowdown": (
        dcgm(throttle={"CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS": 0.05 * SECOND}),
        "hw_slowdown/warning",
    ),
    "pcie_transfer_bound": (dcgm(pcie_bytes=4e10, sm=0.3), "pcie_transfer_bound/warning"),
    "pcie_link_degraded": (dcgm(link_width=8), "pcie_link_degraded/warning"),
    "near_oom": (
        dcgm(
            fb_used=[(1, 74000.0 + 85 * minute) for minute in range(END + 1)],
            fb_free=[(1, 7920.0 - 85 * minute) for minute in range(END + 1)],
        ),
        "- near_oom/warning",
    ),
    "unexplained": (
        dcgm(gpu_util=20, gr_engine=0.2, sm=0.18, dram=0.1, fb_used=49152, fb_free=32768),
        "unexplained_low_utilization/warning",
    ),
    "row-remap-failed": (dcgm(row_remap_failure=1), "gpu_fault/critical"),
    "row-remap-pending": (dcgm(row_remap_pending=1), "- gpu_fault/warning"),
}


def causes(fleet: Fleet) -> None:
    for name, (gpu, told) in CASES.items():
        add_dcgm(fleet, name, gpu)
        expect(fleet, name, told, END)


def default_counters(fleet: Fleet) -> None:
    """Without power limit and SM activity a busy GPU is not judged; an idle one is."""
    busy = {**DEFAULT_CSV, "gr_engine": 0.95, "fb_used": 20480, "fb_free": 61440}
    bare: dict[str, Any] = {**busy, **NO_PROFILING}
    cases: dict[str, tuple[Dcgm, str | None]] = {
        "busy": (dcgm(**busy), None),
        "idle": (dcgm(**{**busy, "gr_engine": 0}), "allocated_idle"),
        "half": (dcgm(**{**busy, "gr_engine": 0.4, "dram": 0.1}), "unexplained_low_utilization"),
        "bare-busy": (dcgm(**bare), None),
        "bare-idle": (dcgm(**bare, gpu_util=0), "allocated_idle"),
        "bare-starved": (
            dcgm(**{**bare, "fb_used": 49152, "fb_free": 32768}, gpu_util=20),
            "unexplained_low_utilization",
        ),
        "by-power": (dcgm(**{**bare, "power_limit": 700, "power": 200}), "small_batch"),
        "by-power-busy": (dcgm(**{**bare, "power_limit": 700}), None),
        "by-requested-limit": (
            dcgm(**bare, power=200, more={"DCGM_FI_DEV_POWER_MGMT_LIMIT": 700}),
            "small_batch",
        ),
    }
    for name, (gpu, cause) in cases.items():
        add_dcgm(fleet, name, gpu)
        fleet.expect_cause(name, END, cause)


def input_of(fleet: Fleet, node: str, name: str, value: float, **labels: str) -> None:
    """At the end, this input of the only GPU of `node` has this value and these labels only."""
    told = {"gpu": "0", "instance": node, "job": JOB, "uuid": f"GPU-{node}-0", **labels}
    text = ",".join(f'{key}="{of}"' for key, of in sorted(told.items()))
    query = f'round({name}{{instance="{node}"}}, 0.0001)'
    fleet.expect(fleet.minutes, query, {f"{{{text}}}": value})


RECORDED = {
    "gpu:busy:ratio_rate5m": 0.6,
    "gpu:memory_controller:ratio_rate5m": 0.4,
    "gpu:memory:used_ratio": 0.25,
    "gpu:clock:ratio_avg5m": 0.5,
    "gpu:power:ratio_avg5m": 0.5,
    "gpu:sm_active:ratio_rate5m": 0.85,
    "gpu:pcie:bytes_rate5m": 2.2e8,
    "gpu:held:bool": 1,
    "gpu:up:bool": 1,
}


def units(fleet: Fleet) -> None:
    """Percent, MiB, MHz, nanoseconds; the same from the names of dcgm-exporter 4.9."""
    add_dcgm(
        fleet,
        "old",
        dcgm(
            gr_engine=None,
            gpu_util=[(21, 20), (30, 60)],
            fb_used=20480,
            fb_free=60416,
            fb_reserved=1024,
            sm_clock=990,
            throttle={"CLOCKS_EVENT_REASON_SW_POWER_CAP_NS": 0.25 * SECOND},
            # By the energy half of the limit, whatever the power was when it was read.
            power=560,
            totals={"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 350 * 1000},
            pcie_bytes=2e8,
            replays=0.5,
        ),
    )
    add_dcgm(
        fleet,
        "new",
        dcgm(
            **NOTHING,
            more={
                "DCGM_FI_DEV_GPU_UTIL_RATIO": [(21, 0.2), (30, 0.6)],
                "DCGM_FI_DEV_MEMORY_UTIL_RATIO": 0.4,
                "DCGM_FI_DEV_FB_USED_BYTES": 20480 * MEBIBYTE,
                "DCGM_FI_DEV_FB_CAPACITY_BYTES": 81920 * MEBIBYTE,
                "DCGM_FI_DEV_SM_CLOCK_HERTZ": 990e6,
                "DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ": 1980e6,
                "DCGM_FI_DEV_BOARD_POWER_WATTS": 350,
                "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS": 700,
                "DCGM_FI_PROF_SM_UTIL_RATIO": 0.85,
                "DCGM_FI_PROF_TENSOR_UTIL_RATIO": 0.5,
                "DCGM_FI_PROF_PCIE_RX_BYTES": 2e8,
                "DCGM_FI_PROF_PCIE_TX_BYTES": 2e7,
            },
            totals={
                "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL": 0.25,
                "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL": 0.0,
            },
        ),
    )
    for node in ("old", "new"):
        # Sampled at 30 s: 20 samples of 60 over ten minutes, 10 over five.
        for name, value in RECORDED.items():
            input_of(fleet, node, name, value)
        throttled = f'gpu:throttle:ratio_rate5m{{instance="{node}",reason="power_cap"}}'
        fleet.expect(fleet.minutes, f"round(sum({throttled}), 0.0001)", {"{}": 0.25})
        tensor = f'gpu:pipe_active:ratio_rate5m{{instance="{node}",pipe="tensor"}}'
        fleet.expect(fleet.minutes, f"round(sum({tensor}), 0.0001)", {"{}": 0.5})
    fleet.expect(
        24,
        'round(gpu:busy:ratio_rate10m{instance="old"} > 0.2 < 0.6, 10)',
        {'{gpu="0",instance="old",job="dcgm",uuid="GPU-old-0"}': 0},
    )
    # 0.5 replays a second on 16 lanes of PCIe 5.
    input_of(fleet, "old", "gpu:pcie_replays:per_lane_minute", 0.4688)
    input_of(fleet, "old", "gpu:pcie:capacity_bytes", 16 * 985e6 * 4)
    input_of(fleet, "old", "gpu:nvlink:bytes_rate5m", 2e9)


def percentage_by_the_name_of_a_ratio(fleet: Fleet) -> None:
    wrong = {"DCGM_FI_DEV_GPU_UTIL_RATIO": 40}
    add_dcgm(fleet, "wrong", dcgm(gpu_util=None, gr_engine=None, more=wrong))
    fleet.expect(20, 'gpu:busy:ratio_rate5m{instance="wrong"}', {})


def engine_activity_before_sampled_utilization(fleet: Fleet) -> None:
    add_dcgm(fleet, "both", dcgm(gr_engine=0.3, gpu_util=100))
    input_of(fleet, "both", "gpu:busy:ratio_rate10m", 0.3)


XIDS: dict[str, tuple[Dcgm, tuple[str, ...]]] = {
    "changed": (dcgm(xid=[(20, 0), (40, 79)]), (FIRST,)),
    "born": (dcgm(xid=[(20, None), (40, 79)]), (FIRST,)),
    "after-another": (dcgm(xid=[(20, 43), (40, 48)]), (FIRST,)),
    "sticks": (dcgm(xid=79), ()),
    "of-an-application": (dcgm(xid=[(20, 0), (40, 43)]), ()),
    "contained": (dcgm(xid=[(20, 0), (40, 94)]), ("GpuFault/warning",)),
}


def xids(fleet: Fleet) -> None:
    for name, (gpu, alerts) in XIDS.items():
        add_dcgm(fleet, name, gpu)
        fleet.expect_firing(name, 25, *alerts)
        # No longer told by the input, though the gauge keeps it; the alert is held half an hour.
        fleet.expect(35, f'gpu:fatal_xids:increase10m{{instance="{name}"}} > 0', {})
        fleet.end(name, 35)


def repeated_xids(fleet: Fleet) -> None:
    add_dcgm(fleet, "gauge", dcgm(xid=79))
    add_dcgm(fleet, "both", dcgm(xid=79))
    who = {"job": JOB, "instance": "both", "gpu": "0", "UUID": "GPU-both-0", "xid": "79"}
    fleet.gauge("DCGM_EXP_XID_ERRORS_TOTAL", [(20, 1), (20, 2)], **who)
    fleet.expect_firing("gauge", 25)
    fleet.expect_firing("both", 25, FIRST)


def xid_label_that_changes_with_the_code(fleet: Fleet) -> None:
    """Newer exporters put the code and its text on the gauge as labels."""
    add_dcgm(fleet, "labelled", dcgm(xid=None))
    who = {"job": JOB, "instance": "labelled", "gpu": "0", "UUID": "GPU-labelled-0"}
    fleet.gauge("DCGM_FI_DEV_XID_ERRORS", [(20, 43), (40, STALE)], err_code="43", **who)
    fleet.gauge("DCGM_FI_DEV_XID_ERRORS", [(20, None), (40, 74)], err_code="74", **who)
    fleet.expect_firing("labelled", 24, FIRST)


def old_xid_after_an_outage(fleet: Fleet) -> None:
    add_dcgm(fleet, "outage", dcgm(xid=79))
    fleet.fail_scrapes("outage", 20, 50)
    for minute in (51, 55, 60, 65):
        fleet.expect(minute, 'gpu:fatal_xids:increase10m{instance="outage"} > 0', {})


def lost_gpu(fleet: Fleet) -> None:
    """Its series end while the exporter answers; an hour later it counts as taken out."""
    add_dcgm(fleet, "lost", Dcgm())
    lost = {name: [(15, 1), (1, STALE), (90, None)] for name in ("gpu_util", "sm_clock", "fb_used")}
    add_dcgm(fleet, "lost", dcgm(**{**NOTHING, **lost}), 1)
    fleet.expect_firing("lost", 25, "GpuTelemetryLost/warning")
    fleet.expect(
        25,
        'gpu:up:bool{instance="lost"} == 0',
        {'{__name__="gpu:up:bool",gpu="1",instance="lost",job="dcgm",uuid="GPU-lost-1"}': 0},
    )
    fleet.expect(85, 'gpu:up:bool{instance="lost"} == 0', {})
    fleet.expect_firing("lost", 100)


MIG = {"GPU_I_ID": "7", "GPU_I_PROFILE": "3g.40gb"}


def mig_instances(fleet: Fleet) -> None:
    """Each is a GPU of its own; the board's power is nobody's, and GPU_UTIL is not there."""
    one = dcgm(gpu_util=None, **BUSY_INEFFICIENT, labels=MIG)
    add_dcgm(fleet, "mig", one)
    fleet.expect_cause("mig", END, "small_batch")
    labels = {**MIG, "gpu": "0", "GPU_I_ID": "8"}
    other = dcgm(gpu_util=None, fb_used=20480, fb_free=20480, labels=labels, uuid="GPU-mig-0")
    add_dcgm(fleet, "mig", other, 1)
    fleet.expect(
        END,
        'sum by (uuid) (gpu:memory:used_ratio{instance="mig"})',
        {'{uuid="GPU-mig-0/7"}': 0.25, '{uuid="GPU-mig-0/8"}': 0.5},
    )
    fleet.expect(END, 'gpu:power:ratio_avg5m{instance="mig"}', {})
    fleet.expect_firing("mig", END, "GpuSmallBatch/info")


def owner(fleet: Fleet, node: str, **told: str) -> None:
    """Who the alert of the GPU of `node` names."""
    names = "workload_namespace,workload_pod,workload_container,slurm_job_id,namespace,pod"
    query = (
        f"count by ({names}) "
        f'(ALERTS{{instance="{node}",alertname="GpuSmallBatch",alertstate="firing"}})'
    )
    text = ",".join(f'{key}="{value}"' for key, value in sorted(told.items()))
    fleet.expect(fleet.minutes, query, {f"{{{text}}}": 1})


EXPORTERS_POD = {"namespace": "monitoring", "pod": "dcgm-exporter-abcde", "container": "exporter"}
WORKLOAD = {
    "workload_namespace": "research",
    "workload_pod": "train-0",
    "workload_container": "main",
}


def owners(fleet: Fleet) -> None:
    slow = dcgm(**BUSY_INEFFICIENT)
    exported = {f"exported_{name}": value for name, value in POD.items()}
    add_dcgm(fleet, "plain", replace(slow, labels=POD))
    owner(fleet, "plain", **WORKLOAD)
    add_dcgm(fleet, "exported", replace(slow, labels=exported, target=EXPORTERS_POD))
    owner(fleet, "exported", **WORKLOAD)
    add_dcgm(fleet, "nobody", replace(slow, target=EXPORTERS_POD))
    owner(fleet, "nobody")
    # honor_labels: the workload's labels on a GPU that is used, the exporter's on its neighbour.
    add_dcgm(fleet, "honored", dcgm(target=EXPORTERS_POD))
    add_dcgm(fleet, "honored", replace(slow, labels=POD, target=EXPORTERS_POD), 1)
    owner(fleet, "honored", **WORKLOAD)
    add_dcgm(fleet, "slurm", replace(slow, labels={"hpc_job": "4711"}))
    owner(fleet, "slurm", slurm_job_id="4711")
    mixed = replace(slow, labels={"hpc_job": "4712"}, target=EXPORTERS_POD)
    add_dcgm(fleet, "slurm-in-k8s", mixed)
    owner(fleet, "slurm-in-k8s", slurm_job_id="4712")


def pod_that_holds_without_memory(fleet: Fleet) -> None:
    idle = dcgm(gpu_util=0, gr_engine=0, sm=0, **EMPTY)
    add_dcgm(fleet, "its", replace(idle, labels={**POD, "pod": "its"}))
    add_dcgm(fleet, "free", replace(idle, labels={"pod": "", "namespace": "", "container": ""}))
    fleet.expect_cause("its", END, "allocated_idle")
    fleet.expect_cause("free", END, None)


def pods_that_share(fleet: Fleet) -> None:
    """Each has a copy of the metrics, with a label vgpu; the owner is told when there is one."""
    for number in range(2):
        labels = {**POD, "gpu": "0", "pod": f"serve-{number}", "vgpu": f"{number}"}
        add_dcgm(fleet, "shared", dcgm(labels=labels, uuid="GPU-shared"), number)
    fleet.expect_cause("shared", END, "sharing_contention")
    fleet.expect(END, 'count(gpu:tenants:count{instance="shared"} == 2)', {"{}": 1})
    fleet.expect(END, 'gpu:owner:info{instance="shared",workload!="owner unknown"}', {})


def pod_that_is_followed(fleet: Fleet) -> None:
    """Labels change in the middle of the windows, and nothing is counted twice."""
    first, second = ({**POD, "pod": name} for name in ("a", "b"))
    ends = [(30, 20.0), (1, STALE), (30, None)]
    begins = [(30, None), (30, 60.0)]
    for pod, signal in ((first, ends), (second, begins)):
        who = {"job": JOB, "instance": "n", "gpu": "0", "UUID": "GPU-n-0", **pod}
        fleet.gauge("DCGM_FI_DEV_GPU_UTIL", signal, **who)
    fleet.expect(
        35,
        'round(gpu:busy:ratio_rate10m{instance="n"}, 0.1)',
        {'{gpu="0",instance="n",job="dcgm",uuid="GPU-n-0"}': 0.4},
    )


def gpus_of_one_pod(fleet: Fleet) -> None:
    pod = {**POD, "pod": "many"}
    for index in range(4):
        busy = 0.1 if index == 3 else 0.98
        gpu = dcgm(gr_engine=busy, sm=busy * 0.9, labels=pod, fb_used=49152, fb_free=32768)
        add_dcgm(fleet, "many", gpu, index)
    fleet.expect(END, 'count(gpu:group:size{instance="many"} == 4)', {"{}": 4})
    fleet.expect_cause("many", END, "gpu_imbalance")


def host_causes_blind(fleet: Fleet) -> None:
    add_dcgm(fleet, "seen", Dcgm())
    add_dcgm(fleet, "unseen", dcgm(sm=None, labels={**POD, "pod": "unseen"}))
    node = {"job": "node", "instance": "seen:9100"}
    for cpu in range(4):
        for mode, rate in (("idle", 0.25), ("iowait", 0.5), ("user", 0.25)):
            labels = {**node, "cpu": f"{cpu}", "mode": mode}
            fleet.counter("node_cpu_seconds_total", rate, reset_at=None, **labels)
    for device, rate in (("nvme0n1", 0.1), ("nvme1n1", 0.75)):
        labels = {**node, "device": device}
        fleet.counter("node_disk_io_time_seconds_total", rate, reset_at=None, **labels)
    host = '{instance="seen:9100",job="node"}'
    fleet.expect(END, "round(instance:cpu_idle:ratio_rate5m, 0.0001)", {host: 0.25})
    fleet.expect(END, "round(instance:disk_busy:ratio_rate5m, 0.0001)", {host: 0.75})
    fleet.expect(
        END,
        'sum by (instance, blind) (gpu:blind:bool{instance=~"seen|unseen",blind!="job_causes"})',
        {
            '{blind="host_causes",instance="seen"}': 1,
            '{blind="host_causes",instance="unseen"}': 1,
            '{blind="device_causes",instance="unseen"}': 1,
        },
    )
    fleet.expect(
        END,
        'sum by (instance) (ALERTS{alertname="GpuCausesBlind",alertstate="firing",'
        'instance=~"seen|unseen",blind="host_causes"})',
        {'{instance="seen"}': 1, '{instance="unseen"}': 1},
    )


def both_exporters(fleet: Fleet) -> None:
    """The one that sees more has it; without it the other one stands in, old XIDs being old."""
    add_gpu(fleet, "node:10170", Gpu(busy=0.2, sm=0.15, stalls={"host_code": 0.8}))
    starved = dcgm(
        gr_engine=0.2, sm=0.15, dram=0.1, xid=79, fb_used=49152, fb_free=32768, labels=POD
    )
    add_dcgm(fleet, "node:9400", replace(starved, uuid="GPU-node:10170-0"))
    fleet.fail_scrapes("node:10170", 57, 121)
    add_dcgm(fleet, "other:9400", starved)
    fleet.expect_cause("node:10170", 55, "host_loop_bound")
    fleet.expect_firing("node:10170", 55, "GpuHostLoopBound/warning")
    fleet.expect_cause("node:9400", 55, None)
    fleet.expect(55, 'ALERTS{instance="node:9400"}', {})
    fleet.expect(55, 'gpu:up:bool{instance="node:9400"}', {})
    fleet.expect_cause("other:9400", 55, "unexplained_low_utilization")
    # Both nodes told once each, whatever the exporter.
    fleet.expect(
        55,
        'count by (instance) (ALERTS{alertstate="firing",alertname!="GpuCausesBlind",'
        'instance=~"(node|other):.*"})',
        {'{instance="node:10170"}': 1, '{instance="other:9400"}': 1},
    )
    fleet.expect_cause("node:9400", 112, "unexplained_low_utilization")
    fleet.expect_firing("node:9400", 112, "GpuUnexplainedLowUtilization/warning")
    for minute in (58, 62, 67):
        fleet.expect(minute, "gpu:fatal_xids:increase10m > 0", {})
        fleet.expect(minute, 'gpu:up:bool{instance="node:9400"} == 0', {})


def ours_that_comes_later(fleet: Fleet) -> None:
    add_dcgm(fleet, "later:9400", dcgm(uuid="GPU-later:10170-0"))
    add_gpu(fleet, "later:10170", Gpu())
    fleet.fail_scrapes("later:10170", 0, 40, up=None)
    held = 'count(gpu:held:bool{instance=~"later:.*"}) by (job)'
    fleet.expect(39, held, {'{job="dcgm"}': 1})
    for minute in (42, 50, 60, 75):
        fleet.expect(minute, held, {'{job="gpu"}': 1})
        fleet.expect(minute, 'gpu:cause:evidence{instance="later:9400"} == 1', {})
        fleet.expect_firing("later:9400", minute)
        fleet.expect_firing("later:10170", minute)


Part = Callable[[Fleet], None]


def fleet_of(minutes: int, interval: str, *parts: Part) -> Fleet:
    fleet = dcgm_fleet(minutes, interval)
    for part in parts:
        part(fleet)
    return fleet


def test_causes_owners_and_blindness(tmp_path: Path) -> None:
    """All asked in the end only: evaluated every two minutes."""
    causes_by = (causes, default_counters, mig_instances, gpus_of_one_pod)
    holders = (owners, pod_that_holds_without_memory, pods_that_share)
    fleet_of(END, "2m", *causes_by, *holders, host_causes_blind).check(tmp_path)


def test_inputs(tmp_path: Path) -> None:
    names = (units, percentage_by_the_name_of_a_ratio, engine_activity_before_sampled_utilization)
    fleet_of(35, "30s", *names, pod_that_is_followed).check(tmp_path)


def test_errors_and_losses(tmp_path: Path) -> None:
    errors = (xids, repeated_xids, xid_label_that_changes_with_the_code, old_xid_after_an_outage)
    fleet_of(100, "1m", *errors, lost_gpu).check(tmp_path)


def test_beside_our_exporter(tmp_path: Path) -> None:
    fleet = fleet_of(112, "1m", both_exporters, ours_that_comes_later)
    # Each GPU counts once, whoever tells of it.
    fleet.expect(55, "cluster:gpus_held:count", {"cluster:gpus_held:count": 3})
    fleet.check(tmp_path)


def test_alone_with_the_inputs_of_the_exporter_left_out(tmp_path: Path) -> None:
    """As `gpu-bottleneck-exporter rules --dialect dcgm` writes it."""
    pack = rulepack.for_dialect(rulepack.files(), "dcgm")
    files = [tmp_path / name for name in pack]
    for path, text in zip(files, pack.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    groups = [name for name in DCGM_GROUPS if name not in rulepack.INPUTS]
    fleet = Fleet(END, files, groups, "2m")
    for name in ("healthy", "small_batch", "allocated_idle", "clock_limited", "unexplained"):
        gpu, told = CASES[name]
        add_dcgm(fleet, name, replace(gpu, labels=POD))
        expect(fleet, name, told, END)
    fleet.expect(END, "count(gpu:group:size)", {"{}": 5})
    fleet.check(tmp_path)
