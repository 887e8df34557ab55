"""For every alert, a GPU at which it fires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rules.cases import alert, gpu_of, gpus, rows
from rules.fleet import Fleet, Gpu, add_gpu, changed
from rules.series import Labels

LASTS = 30
"""Minutes for which an alert is watched."""
HOST = 18
"""Minutes after which alerts of 10 minutes fire."""


@dataclass(frozen=True, slots=True)
class Firing:
    """GPUs of one job, the first of which is guilty; and after how many minutes that is told."""

    after: int
    gpu: Gpu
    siblings: Sequence[Gpu] = ()
    alike: bool = False
    """Whether the siblings are guilty, too."""
    lasts: int = LASTS
    """For so many minutes more; then another alert follows."""
    beside: Sequence[Gpu] = ()
    """GPUs that nobody has."""
    labels: Labels = field(default_factory=dict)
    """More that the alert has."""


def owner(node: str) -> dict[str, str]:
    """All labels that an owner can have."""
    names = ("workload_namespace", "workload_pod", "workload_container", "pod_uid")
    return {name: f"{node}-{name}" for name in (*names, "container_id", "slurm_job_id", "user")}


def host_of(guilty: Gpu) -> dict[str, Any]:
    """What a node tells of itself, which is written with its first GPU."""
    names = ("host_cpus", "host_busy_cores", "host_iowait_cores", "disk_busy")
    return {name: getattr(guilty, name) for name in names}


BESIDE_GPU = ("after", "siblings", "alike", "lasts", "beside", "labels")


def firing_of(row: Mapping[str, Any]) -> Firing:
    given = {name: row[name] for name in BESIDE_GPU if name in row}
    for others in ("siblings", "beside"):
        given[others] = [gpu_of(one) for one in row.get(others, ())]
    return Firing(gpu=gpu_of(row, *BESIDE_GPU), **given)


ALERTS = {
    **{name: firing_of(row) for name, row in rows("alerts").items()},
    **{alert(f"{cause}/warning"): Firing(HOST, gpu) for cause, gpu in gpus("starving").items()},
}


def stage(fleet: Fleet, name: str, case: Firing, **fields: object) -> tuple[str, range]:
    """A node with a healthy GPU of somebody else as its first; the numbers of the guilty ones."""
    node = name.replace("/", "-")
    seen = changed(gpu_of(rows("bases")["seen"]), owner=owner("healthy-" + node), **fields)
    add_gpu(fleet, node, replace(seen, target=case.gpu.target, **host_of(case.gpu)))
    whose, job = owner(node), (case.gpu, *case.siblings)
    for index, one in enumerate((*job, *case.beside), 1):
        owned = None if one.owners or index > len(job) else whose
        add_gpu(fleet, node, changed(one, owner=owned, **fields), index)
    return node, range(1, 1 + (len(job) if case.alike else 1))
