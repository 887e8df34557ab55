"""The pack on a fleet with dcgm-exporter: which causes it tells, units, labels, both exporters.

Each part adds its nodes to a fleet, and what is expected of them: one run of promtool for many
parts, as evaluating the pack takes longer than the GPUs in it. What it says of a failure names
the node.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpu_bottleneck_exporter import rulepack
from rules.cases import expect, rows
from rules.dcgm_fleet import BASES, DCGM_FILES, DCGM_GROUPS, JOB, add_dcgm, who
from rules.fleet import Fleet, Gpu, add_gpu
from rules.series import STALE

END = 80
"""Minutes after which the longest `for`, an hour, is over."""
POD, EXPORTERS_POD = BASES["in_pod"], BASES["exporters_pod"]
INEFFICIENT = BASES["inefficient"]
FIRST = "GpuFault/critical"


def causes(fleet: Fleet) -> None:
    for node, row in rows("dcgm").items():
        gpus = row if isinstance(row, list) else [row]
        for index, gpu in enumerate(gpus):
            add_dcgm(fleet, node, gpu, index)
        expect(fleet, node, gpus[0].get("told", "-"), END)
    memory = {'{uuid="GPU-mig-0/7"}': 0.25, '{uuid="GPU-mig-0/8"}': 0.5}
    fleet.expect(END, 'sum by (uuid) (gpu:memory:used_ratio{instance="mig"})', memory)
    fleet.expect(END, 'gpu:power:ratio_avg5m{instance="mig"}', {})
    fleet.expect(END, 'count(gpu:group:size{instance="many"} == 4)', {"{}": 4})


def input_of(fleet: Fleet, node: str, name: str, value: float) -> None:
    """At the end, this input of the only GPU of `node` has this value and these labels only."""
    told = f'{{gpu="0",instance="{node}",job="{JOB}",uuid="GPU-{node}-0"}}'
    fleet.expect(fleet.minutes, f'round({name}{{instance="{node}"}}, 0.0001)', {told: value})


def units(fleet: Fleet) -> None:
    for node, row in rows("dcgm_units").items():
        add_dcgm(fleet, node, row)
        # Sampled at 30 s: 20 samples of 60 over ten minutes, 10 over five.
        for name, value in rows("dcgm_recorded")["of both"].items():
            input_of(fleet, node, name, value)
        for name, label, value in (
            ("throttle", 'reason="power_cap"', 0.25),
            ("pipe_active", 'pipe="tensor"', 0.5),
        ):
            query = f'sum(gpu:{name}:ratio_rate5m{{instance="{node}",{label}}})'
            fleet.expect(fleet.minutes, f"round({query}, 0.0001)", {"{}": value})
    fleet.expect(
        24,
        'round(gpu:busy:ratio_rate10m{instance="old"} > 0.2 < 0.6, 10)',
        {'{gpu="0",instance="old",job="dcgm",uuid="GPU-old-0"}': 0},
    )
    for name, value in rows("dcgm_recorded")["of old"].items():
        input_of(fleet, "old", name, value)
    # A percentage by the name of a ratio; and engine activity comes before sampled utilization.
    wrong = {"DEV_GPU_UTIL": None, "PROF_GR_ENGINE_ACTIVE": None, "DEV_GPU_UTIL_RATIO": 40}
    add_dcgm(fleet, "wrong", wrong)
    fleet.expect(20, 'gpu:busy:ratio_rate5m{instance="wrong"}', {})
    add_dcgm(fleet, "both", {"PROF_GR_ENGINE_ACTIVE": 0.3, "DEV_GPU_UTIL": 100})
    input_of(fleet, "both", "gpu:busy:ratio_rate10m", 0.3)


def xids(fleet: Fleet) -> None:
    for name, row in rows("dcgm_xids").items():
        add_dcgm(fleet, name, row)
        expect(fleet, name, row["told"], END)
        # No longer told by the input, though the gauge keeps it; the alert is held half an hour.
        fleet.expect(35, f'gpu:fatal_xids:increase10m{{instance="{name}"}} > 0', {})
        fleet.end(name, 35)


def repeated_xids(fleet: Fleet) -> None:
    """Told by the counter of newer exporters only."""
    add_dcgm(fleet, "both", {"DEV_XID_ERRORS": 79})
    fleet.gauge("DCGM_EXP_XID_ERRORS_TOTAL", [(20, 1), (20, 2)], **who("both", xid="79"))
    fleet.expect_firing("both", 25, FIRST)


def xid_label_that_changes_with_the_code(fleet: Fleet) -> None:
    """Newer exporters put the code and its text on the gauge as labels."""
    add_dcgm(fleet, "labelled", {"DEV_XID_ERRORS": None})
    for code, phases in (43, [(20, 43), (40, STALE)]), (74, [(20, None), (40, 74)]):
        labels = who("labelled", err_code=f"{code}")
        fleet.gauge("DCGM_FI_DEV_XID_ERRORS", phases, **labels)
    fleet.expect_firing("labelled", 24, FIRST)


def old_xid_after_an_outage(fleet: Fleet) -> None:
    add_dcgm(fleet, "outage", {"DEV_XID_ERRORS": 79})
    fleet.fail_scrapes("outage", 20, 50)
    for minute in (51, 55, 60, 65):
        fleet.expect(minute, 'gpu:fatal_xids:increase10m{instance="outage"} > 0', {})


def lost_gpu(fleet: Fleet) -> None:
    """Its series end while the exporter answers; an hour later it counts as taken out."""
    add_dcgm(fleet, "lost", {})
    lost = dict.fromkeys(("DEV_GPU_UTIL", "DEV_SM_CLOCK", "DEV_FB_USED"), "1 @15 stale @16 none")
    add_dcgm(fleet, "lost", {"only": True, **lost}, 1)
    fleet.expect_firing("lost", 25, "GpuTelemetryLost/warning")
    fleet.expect(
        25,
        'gpu:up:bool{instance="lost"} == 0',
        {'{__name__="gpu:up:bool",gpu="1",instance="lost",job="dcgm",uuid="GPU-lost-1"}': 0},
    )
    fleet.expect(85, 'gpu:up:bool{instance="lost"} == 0', {})
    fleet.expect_firing("lost", 100)


def owners(fleet: Fleet) -> None:
    """Who the alert of the GPU of a node names."""
    told = {node: row["owner"] for node, row in rows("dcgm_owners").items()}
    for node, row in rows("dcgm_owners").items():
        add_dcgm(fleet, node, row)
    # honor_labels: the workload's labels on a GPU that is used, the exporter's on its neighbour.
    add_dcgm(fleet, "honored", {"target": EXPORTERS_POD})
    add_dcgm(fleet, "honored", {**INEFFICIENT, "labels": POD, "target": EXPORTERS_POD}, 1)
    names = "workload_namespace,workload_pod,workload_container,slurm_job_id,namespace,pod"
    for node, whose in {**told, "honored": told["plain"]}.items():
        fired = f'ALERTS{{instance="{node}",alertname="GpuSmallBatch",alertstate="firing"}}'
        text = ",".join(f'{key}="{value}"' for key, value in sorted(whose.items()))
        fleet.expect(fleet.minutes, f"count by ({names}) ({fired})", {f"{{{text}}}": 1})


def pods_that_share(fleet: Fleet) -> None:
    """Each has a copy of the metrics, with a label vgpu; the owner is told when there is one."""
    for number in range(2):
        labels = {**POD, "gpu": "0", "UUID": "GPU-shared", "pod": f"serve-{number}"}
        add_dcgm(fleet, "shared", {"labels": {**labels, "vgpu": f"{number}"}}, number)
    fleet.expect_cause("shared", END, "sharing_contention")
    fleet.expect(END, 'count(gpu:tenants:count{instance="shared"} == 2)', {"{}": 1})
    fleet.expect(END, 'gpu:owner:info{instance="shared",workload!="owner unknown"}', {})


def pod_that_is_followed(fleet: Fleet) -> None:
    """Labels change in the middle of the windows, and nothing is counted twice."""
    ends, begins = [(30, 20.0), (1, STALE), (30, None)], [(30, None), (30, 60.0)]
    for pod, signal in (("a", ends), ("b", begins)):
        fleet.gauge("DCGM_FI_DEV_GPU_UTIL", signal, **who("n", **{**POD, "pod": pod}))
    fleet.expect(
        35,
        'round(gpu:busy:ratio_rate10m{instance="n"}, 0.1)',
        {'{gpu="0",instance="n",job="dcgm",uuid="GPU-n-0"}': 0.4},
    )


def host_causes_blind(fleet: Fleet) -> None:
    add_dcgm(fleet, "seen", {})
    add_dcgm(fleet, "unseen", {"PROF_SM_ACTIVE": None, "labels": {**POD, "pod": "unseen"}})
    node = {"job": "node", "instance": "seen:9100"}
    for cpu in range(4):
        for mode, rate in (("idle", 0.25), ("iowait", 0.5), ("user", 0.25)):
            fleet.counter("node_cpu_seconds_total", rate, **node, cpu=f"{cpu}", mode=mode)
    for device, rate in (("nvme0n1", 0.1), ("nvme1n1", 0.75)):
        fleet.counter("node_disk_io_time_seconds_total", rate, **node, device=device)
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
    starved = {**BASES["dcgm_starved"], "labels": POD}
    add_dcgm(fleet, "node:9400", {**starved, "labels": {**POD, "UUID": "GPU-node:10170-0"}})
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
    add_dcgm(fleet, "later:9400", {"labels": {"UUID": "GPU-later:10170-0"}})
    add_gpu(fleet, "later:10170", Gpu())
    fleet.fail_scrapes("later:10170", 0, 40, up=None)
    held = 'count(gpu:held:bool{instance=~"later:.*"}) by (job)'
    fleet.expect(39, held, {'{job="dcgm"}': 1})
    for minute in (42, 50, 60, 75):
        fleet.expect(minute, held, {'{job="gpu"}': 1})
        fleet.expect(minute, 'gpu:cause:evidence{instance="later:9400"} == 1', {})
        fleet.expect_firing("later:9400", minute)
        fleet.expect_firing("later:10170", minute)


def fleet_of(minutes: int, interval: str, *parts: Callable[[Fleet], None]) -> Fleet:
    fleet = Fleet(minutes, DCGM_FILES, DCGM_GROUPS, interval)
    for part in parts:
        part(fleet)
    return fleet


def test_causes_owners_and_blindness(tmp_path: Path) -> None:
    """All asked in the end only: evaluated every two minutes."""
    fleet_of(END, "2m", causes, owners, pods_that_share, host_causes_blind).check(tmp_path)


def test_inputs(tmp_path: Path) -> None:
    fleet_of(35, "30s", units, pod_that_is_followed).check(tmp_path)


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
        row = rows("dcgm")[name]
        add_dcgm(fleet, name, {**row, "labels": POD})
        expect(fleet, name, row.get("told", "-"), END)
    fleet.expect(END, "count(gpu:group:size)", {"{}": 5})
    fleet.check(tmp_path)
