"""Shared GPUs as the exporter counts them by tenant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rules.fleet import JOB, Fleet, Gpu, add_gpu
from rules.series import Labels, Signal, mapped

BUSY, STALL = "gpu_tenant_busy_seconds_total", "gpu_tenant_stall_seconds_total"
MEMORY = "gpu_tenant_memory_used_bytes"
END = math.nan


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant of a GPU: its labels, and what is counted for it per second."""

    labels: Labels
    busy: Signal = 0.0
    waits: Mapping[str, Signal] = field(default_factory=dict)
    memory: float = 2.0**30
    holds: Signal = 1
    """gpu_workload_info."""
    counted: bool = True

    @property
    def name(self) -> str:
        """Label `tenant`."""
        kinds = {"slurm_job_id": "slurm-", "workload_job": "", "pod_uid": "pod-"}
        kinds |= {"container_id": "container-", "user": "user-", "tenant": ""}
        return next(
            kind + self.labels[label] for label, kind in kinds.items() if label in self.labels
        )


def pod(name: str, busy: Signal = 0.0, space: str = "nlp", **fields: object) -> Tenant:
    """A tenant that is a pod."""
    labels = {"workload_namespace": space, "workload_pod": name, "pod_uid": f"uid-{name}"}
    return Tenant({**labels, "workload_container": "main"}, busy, **fields)  # type: ignore[arg-type]


OTHERS, UNATTRIBUTED = {"tenant": "others"}, {"tenant": "unattributed"}


def add_shared(fleet: Fleet, node: str, gpu: Gpu, tenants: Sequence[Tenant]) -> None:
    """A GPU of its own cluster, `node`, and its tenants."""
    add_gpu(fleet, node, Gpu(busy=gpu.busy, stalls=gpu.stalls, target={"cluster": node}))
    of_gpu = {"job": JOB, "instance": node, "cluster": node, "gpu": "0", "uuid": f"GPU-{node}-0"}
    for tenant in tenants:
        if "tenant" not in tenant.labels:
            fleet.gauge("gpu_workload_info", tenant.holds, **of_gpu, **tenant.labels)
        if not tenant.counted:
            continue
        labels = {**of_gpu, **tenant.labels, "tenant": tenant.name}
        fleet.counter(BUSY, tenant.busy, None, **labels)
        for waiting_on, share in tenant.waits.items():
            fleet.counter(STALL, share, None, **labels, waiting_on=waiting_on)
        if tenant.labels != UNATTRIBUTED:
            memory = mapped(tenant.holds, lambda there: there and tenant.memory)  # noqa: B023
            fleet.gauge(MEMORY, memory, **labels)
