"""The metrics of dcgm-exporter that OpenCost reads, recorded from this exporter's."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from rules.dcgm_fleet import DCGM_FILES, DCGM_GROUPS
from rules.fleet import FILES, RULES, Fleet, Gpu, add_gpu, group_names
from rules.series import Series
from rules.tenants import Tenant, add_shared, pod

FILE = RULES / "opencost.yml"
MINUTES = 30
ENGINE, MEMORY = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_FB_USED"
NEEDED = {
    *("gpu-thresholds", "gpu-inputs", "gpu-inputs-host", "gpu-gates", "gpu-opencost"),
    "gpu-inputs-dcgm",
}


def fleet_of(files: tuple[Path, ...], groups: tuple[str, ...]) -> Fleet:
    every = (*groups, *group_names(FILE))
    without = [name for name in every if name not in NEEDED]
    return Fleet(MINUTES, (*files, FILE), every, without=without)


@pytest.fixture
def fleet() -> Fleet:
    return fleet_of(FILES[:2], group_names(*FILES[:2]))


def usage(function: str, where: str) -> str:
    """OpenCost's query."""
    of = f'{ENGINE}{{container!="", {where}}}'
    by = "container, pod, namespace, uid, cluster_id"
    return f"round({function}({function}_over_time({of}[10m])) by ({by}), 0.001)"


def labels(name: str, container: str = "main") -> str:
    return f'{{container="{container}",namespace="nlp",pod="{name}"}}'


def test_shares_of_pods_and_containers(tmp_path: Path, fleet: Fleet) -> None:
    gpu = Gpu(busy=0.8, stalls={"asleep": 0.2})
    slurm = Tenant({"slurm_job_id": "7", "user": "ada"}, 0.1, {"asleep": 0.05})
    first = pod("one", 0.5, waits={"asleep": 0.05}, memory=3 * 2.0**30)
    second = pod("two", 0.2, waits={"asleep": 0.1}, memory=2.0**30)
    add_shared(fleet, "shared", gpu, [first, second, slurm])
    parts = {labels("one"): 0.5, labels("two"): 0.2}
    for function in ("avg", "max"):
        fleet.expect(MINUTES, usage(function, 'instance="shared"'), parts)
    memory = f'sum by (pod) ({MEMORY}{{instance="shared"}})'
    fleet.expect(MINUTES, memory, {'{pod="one"}': 3072, '{pod="two"}': 1024})

    names = {"workload_namespace": "nlp", "workload_pod": "sole", "pod_uid": "u"}
    containers = [{**names, "workload_container": name} for name in ("main", "proxy")]
    target = {"cluster_id": "c", "node": "n1", "namespace": "ops"}
    add_gpu(fleet, "sole:10170", Gpu(busy=0.6, memory=0.5, owners=containers, target=target))
    of_sole = {f'{{cluster_id="c",{labels("sole", name)[1:]}': 0.3 for name in ("main", "proxy")}
    fleet.expect(MINUTES, usage("avg", 'instance="sole:10170"'), of_sole)
    whole = (
        '{__name__="DCGM_FI_DEV_FB_USED",cluster_id="c",node="n1",job="gpu",instance="sole:10170",'
        'gpu="0",uuid="GPU-sole:10170-0",UUID="GPU-sole:10170-0",device="nvidia0",Hostname="n1",'
        'namespace="nlp",pod="sole",container="main"}'
    )
    main = f'{MEMORY}{{instance="sole:10170",container="main"}}'
    fleet.expect(MINUTES, main, {whole: 4e10 / 2 / 2**20})

    # Without a pod: the GPU, for dashboards.
    add_gpu(fleet, "slurm:10170", Gpu(busy=0.7, owner={"slurm_job_id": "8"}))
    of_gpu = f'{ENGINE}{{instance="slurm:10170"}}'
    fleet.expect(
        MINUTES, f"round(sum by (Hostname, pod) ({of_gpu}), 0.01)", {'{Hostname="slurm"}': 0.7}
    )
    # Two pods whose driver and exporter count nothing.
    uncounted = [pod(name, counted=False) for name in ("c", "d")]
    add_shared(fleet, "uncounted", gpu, uncounted)
    equal = {labels("c"): 0.4, labels("d"): 0.4}
    fleet.expect(MINUTES, usage("avg", 'instance="uncounted"'), equal)
    fleet.expect(MINUTES, f'{MEMORY}{{instance="uncounted"}}', {})
    fleet.check(tmp_path)


def test_gpus_of_dcgm_exporter_are_left_to_it(tmp_path: Path, fleet: Fleet) -> None:
    ours = pod("ours")
    for node in ("both", "old", "free"):
        add_gpu(fleet, node, Gpu(busy=0.5, owner=ours.labels))
    parts = ("MIG-1", "MIG-2")
    for index, uuid in enumerate(parts):
        mig = Gpu(busy=0.5, owner=ours.labels, uuid=uuid, parent_uuid="GPU-mig")
        add_gpu(fleet, "mig", mig, index)
    theirs = {"job": "dcgm", "instance": "n:9400", "gpu": "0", "pod": "ours", "container": "main"}
    for name, uuid in ((ENGINE, "GPU-both-0"), (ENGINE, "GPU-mig"), (MEMORY, "GPU-old-0")):
        fleet.gauge(name, 0.9, **theirs, UUID=uuid)
    # It is not scraped for some minutes; then it is gone.
    away = {18, 19, 20}
    fleet.change(partial(_without, away), job="dcgm")
    for name, nodes in ((ENGINE, ("free", "old")), (MEMORY, ("both", "free", "mig"))):
        count = f'count by (instance) (group by (instance, name) ({name}{{uuid!=""}}))'
        for minute in (15, 21, MINUTES):
            fleet.expect(minute, count, {f'{{instance="{node}"}}': 1 for node in nodes})
    fleet.check(tmp_path)


def _without(minutes: set[int], one: Series) -> list[float | None]:
    return [None if at in minutes else value for at, value in enumerate(one.values)]


def test_beside_the_rules_for_dcgm_exporter(tmp_path: Path) -> None:
    """What is recorded here is no GPU of dcgm-exporter there."""
    fleet = fleet_of(DCGM_FILES, DCGM_GROUPS)
    add_gpu(fleet, "ours", Gpu(busy=0.5, owner=pod("a").labels))
    for name in ("helper:dcgm_up:bool", "helper:dcgm:value", "helper:dcgm_labels:info"):
        fleet.expect(MINUTES, name, {})
    fleet.expect(MINUTES, f"count({ENGINE})", {"{}": 1})
    fleet.expect(MINUTES, "count(gpu:busy:ratio_rate5m)", {"{}": 1})
    fleet.check(tmp_path)
