"""Merges owners of processes with allocations of the kubelet or a prolog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.podresources import Allocation, ContainerName

MAX_HOLDERS_PER_GPU = 32
DeviceResolver = Callable[[str, str, Sequence[Identity]], Sequence[Identity]]


@dataclass(frozen=True, slots=True)
class Assigned:
    """Allocations of one GPU."""

    holders: tuple[ContainerName, ...] = ()
    """Containers to which the kubelet allocated it."""
    names: Mapping[str, ContainerName] = field(default_factory=dict)
    """Container names by container id."""
    jobs: tuple[Owner, ...] = ()
    """Slurm jobs to which a prolog allocated it."""


UNASSIGNED = Assigned()


def holders(
    devices: Iterable[Allocation], gpus: Sequence[Identity], resolve: DeviceResolver
) -> dict[str, tuple[ContainerName, ...]]:
    """Sorted containers by uuid of their GPU.

    A device of several GPUs is resolved by its device nodes, or ignored.
    """
    by_gpu: dict[str, set[ContainerName]] = {}
    for device in devices:
        uuids = {gpu.uuid for gpu in resolve(device.source, device.device, gpus)}
        if len(uuids) != 1:
            uuids = {
                gpu.uuid for node in device.nodes for gpu in resolve(device.source, node, gpus)
            }
        if len(uuids) == 1:
            by_gpu.setdefault(uuids.pop(), set()).add(device.container)
    return {uuid: tuple(sorted(names)[:MAX_HOLDERS_PER_GPU]) for uuid, names in by_gpu.items()}


def joined(owners: Iterable[Owner], assigned: Assigned) -> tuple[Owner, ...]:
    """The `owners` of processes with their names, and owners of unused allocations.

    Names match by container id only: a process can open a GPU that is not allocated to it. While a
    pod has no name, no holder is added, which may be that pod. A placeholder counts only while
    alone: its fraction's pod has not opened the GPU yet. Another container of a pod that uses the
    GPU is of the same tenant.
    """
    using = tuple(named(owner, assigned) for owner in owners)
    using += _unused(using, assigned.jobs)
    # Without a pod uid it is not the kubelet's.
    if any(owner.pod_uid and owner.pod is None for owner in using):
        return using
    names = {(owner.namespace, owner.pod, owner.container) for owner in using}
    # Namespaces of reserving pods of KAI and Run:ai.
    placeholders = ("kai-resource-reservation", "runai-reservation")
    tenants = tuple(name for name in assigned.holders if name.namespace not in placeholders)
    holders = tenants if using or tenants else assigned.holders
    return (*using, *(_holding(holder, using) for holder in holders if holder not in names))


def _holding(holder: ContainerName, owners: Iterable[Owner]) -> Owner:
    """`holder` as an owner, with uid and job of its pod if `owners` agree on these."""
    of_pod = [owner for owner in owners if (owner.namespace, owner.pod) == holder[:2]]
    uids = {owner.pod_uid for owner in of_pod}
    jobs = {(owner.slurm_job_id, owner.job) for owner in of_pod}
    uid = uids.pop() if len(uids) == 1 else None
    number, job = jobs.pop() if len(jobs) == 1 else (None, None)
    return Owner(*holder, pod_uid=uid, slurm_job_id=number, job=job, source="kubelet")


def _checked(owner: Owner, jobs: Sequence[Owner]) -> Owner:
    """`owner`, with a claimed job replaced by the prolog's for the same user.

    A claim that contradicts the prolog's `jobs` is dropped.
    """
    if owner.source != "claim" or not jobs:
        return owner
    of_user = {job.slurm_job_id for job in jobs if job.user == owner.user}
    number = owner.slurm_job_id
    if number not in (of_user or {job.slurm_job_id for job in jobs if job.user is None}):
        number = of_user.pop() if len(of_user) == 1 else None
    return replace(owner, slurm_job_id=number).with_source("prolog" if number else "cgroup")


def _unused(owners: Sequence[Owner], jobs: Iterable[Owner]) -> tuple[Owner, ...]:
    return tuple(job for job in jobs if not any(_may_belong_to(owner, job) for owner in owners))


def _may_belong_to(owner: Owner, job: Owner) -> bool:
    """Whether a process of `owner`, the user or root, may be of `job`."""
    if owner.slurm_job_id and owner.slurm_job_id.isdecimal():
        return owner.slurm_job_id == job.slurm_job_id
    return None in (owner.user, job.user) or owner.user in ("root", job.user)


def named(owner: Owner, assigned: Assigned) -> Owner:
    """The owner of a process with its names, and a checked job."""
    owner = _checked(owner, assigned.jobs)
    holder = assigned.names.get(owner.container_id or "")
    return replace(owner, **holder._asdict()) if holder else owner
