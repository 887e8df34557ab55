"""The pack on a fleet with dcgm-exporter: which causes it tells, units, labels, both exporters."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter import rulepack
from rules.cases import expect, rows
from rules.dcgm_fleet import BASES, DCGM_FILES, DCGM_GROUPS, JOB, add_dcgm, who
from rules.fleet import Fleet, Gpu, add_gpu
from rules.scenes import add_scenes
from rules.series import STALE

END = 84
"""Minutes after which the longest `for`, an hour, is over."""
POD = BASES["in_pod"]


def fleet_of(minutes: int, interval: str) -> Fleet:
    return Fleet(minutes, DCGM_FILES, DCGM_GROUPS, interval)


def test_causes_owners_and_blindness(tmp_path: Path) -> None:
    """All asked in the end only: evaluated every four minutes."""
    fleet = fleet_of(END, "4m")
    for node, row in rows("dcgm").items():
        gpus = row if isinstance(row, list) else [row]
        for index, gpu in enumerate(gpus):
            add_dcgm(fleet, node, gpu, index)
        expect(fleet, node, gpus[0].get("told", "-"), END)
    owners(fleet)
    host = {"job": "node", "instance": "seen:9100"}
    for mode, rate in (("idle", 0.25), ("iowait", 0.5), ("user", 0.25)):
        for cpu in "0123":
            fleet.counter("node_cpu_seconds_total", rate, **host, cpu=cpu, mode=mode)
    for device, rate in (("nvme0n1", 0.1), ("nvme1n1", 0.75)):
        fleet.counter("node_disk_io_time_seconds_total", rate, **host, device=device)
    add_scenes(fleet, "dcgm_together", add_dcgm)
    fleet.check(tmp_path)


def owners(fleet: Fleet) -> None:
    """Who the alert of the GPU of a node names, and nobody else."""
    container = "workload_container"  # alerts do not have it, as it changes at restarts
    names = f"workload_namespace,workload_pod,{container},slurm_job_id,namespace,pod"
    for node, row in rows("dcgm_owners").items():
        add_dcgm(fleet, node, row)
        fired = f'ALERTS{{instance="{node}",alertname="GpuInefficient",alertstate="firing"}}'
        text = ",".join(f'{key}="{value}"' for key, value in sorted(row["owner"].items()))
        told = f"{fired} * on (job, instance, gpu, uuid) group_left ({container}) gpu:owner:info"
        fleet.expect(END, f"count by ({names}) ({told})", {f"{{{text}}}": 1})


def test_inputs(tmp_path: Path) -> None:
    fleet = fleet_of(35, "30s")
    units(fleet)
    # A pod that is followed: labels change within the windows, and nothing is counted twice.
    ends, begins = [(30, 20.0), (1, STALE), (30, None)], [(30, None), (30, 60.0)]
    for pod, signal in (("a", ends), ("b", begins)):
        fleet.gauge("DCGM_FI_DEV_GPU_UTIL", signal, **who("n", **{**POD, "pod": pod}))
    input_of(fleet, "n", "gpu:busy:ratio_rate10m", 0.4095)
    fleet.check(tmp_path)


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
        of_node = f'{{instance="{node}",reason=~"|power_cap",pipe=~"|tensor"}}'
        for name, value in (("throttle", 0.25), ("pipe_active", 0.5)):
            query = f"round(sum(gpu:{name}:ratio_rate5m{of_node}), 0.0001)"
            fleet.expect(fleet.minutes, query, {"{}": value})
    changes = 'count(gpu:busy:ratio_rate10m{instance="old"} > 0.2 < 0.6)'
    fleet.expect(24, changes, {"{}": 1})
    for name, value in rows("dcgm_recorded")["of old"].items():
        input_of(fleet, "old", name, value)
    # A percentage by the name of a ratio; and engine activity comes before sampled utilization.
    wrong = {"DEV_GPU_UTIL": None, "PROF_GR_ENGINE_ACTIVE": None, "DEV_GPU_UTIL_RATIO": 40}
    add_dcgm(fleet, "wrong", wrong)
    fleet.expect(20, 'gpu:busy:ratio_rate5m{instance="wrong"}', {})
    add_dcgm(fleet, "both", {"PROF_GR_ENGINE_ACTIVE": 0.3, "DEV_GPU_UTIL": 100})
    input_of(fleet, "both", "gpu:busy:ratio_rate10m", 0.3)


def test_errors_and_losses(tmp_path: Path) -> None:
    fleet = fleet_of(100, "2m")
    for name, row in rows("dcgm_xids").items():
        add_dcgm(fleet, name, row)
        expect(fleet, name, row["told"], END)
        # No longer told by the input, though the gauge keeps it; the alert is held half an hour.
        fleet.expect(35, f'gpu:fatal_xids:increase10m{{instance="{name}"}} > 0', {})
        fleet.end(name, 35)
    add_scenes(fleet, "dcgm_errors", add_dcgm)
    fleet.check(tmp_path)


def test_beside_our_exporter(tmp_path: Path) -> None:
    fleet = fleet_of(112, "2m")
    add_gpu(fleet, "node:10170", Gpu(busy=0.2, sm=0.15, stalls={"host_code": 0.8}))
    fleet.fail_scrapes("node:10170", 57, 121)
    add_gpu(fleet, "later:10170", Gpu())
    fleet.fail_scrapes("later:10170", 0, 40, up=None)
    add_scenes(fleet, "dcgm_beside", add_dcgm)
    fleet.check(tmp_path)


def test_alone_with_the_inputs_of_the_exporter_left_out(tmp_path: Path) -> None:
    """As `gpu-bottleneck-exporter rules --dialect dcgm` writes it."""
    pack = rulepack.adapted(rulepack.files(), rulepack.Changes(dialect="dcgm"))
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
