"""The owners of a GPU from both sides: from its processes, and from the kubelet's allocations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.podresources import Given, Holder

MOST_HOLDERS = 32
"""Per GPU."""
PLACEHOLDERS = frozenset({"kai-resource-reservation", "runai-reservation"})
"""Namespaces of pods that hold a GPU for those to whom KAI and Run:ai give fractions of it."""
Named = Callable[[str, str, Sequence[Identity]], Sequence[Identity]]
"""The type of `Driver.gpus_of_device`."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """What is known of one GPU apart from its processes."""

    holders: tuple[Holder, ...] = ()
    """Containers to which the kubelet gave it."""
    names: Mapping[str, Holder] = field(default_factory=dict)
    """Container names by container id."""
    jobs: tuple[Owner, ...] = ()
    """Slurm jobs to which a prolog gave it."""


NOTHING = Assigned()


def holders(
    devices: Iterable[Given], gpus: Sequence[Identity], named: Named
) -> dict[str, tuple[Holder, ...]]:
    """Containers to which each of `gpus` was given, by uuid; sorted.

    A device whose name fits several GPUs is known by its device nodes, or counts for none.
    """
    found: dict[str, set[Holder]] = {}
    for device in devices:
        uuids = {gpu.uuid for gpu in named(device.source, device.device, gpus)}
        if len(uuids) != 1:
            matching = (named(device.source, node, gpus) for node in device.nodes)
            uuids = {gpu.uuid for one in matching for gpu in one}
        if len(uuids) == 1:
            found.setdefault(uuids.pop(), set()).add(device.holder)
    return {uuid: tuple(sorted(having)[:MOST_HOLDERS]) for uuid, having in found.items()}


def joined(owners: Iterable[Owner], assigned: Assigned) -> tuple[Owner, ...]:
    """The `owners` of processes, with names, and containers that were given it but do not use it.

    Names are matched by container id only. That a GPU has one pod and one holder does not make
    them the same, as a process can open a GPU that it was not given. While a pod has no name, any
    holder may be that pod, so none is added: it would count as a second tenant. A placeholder
    counts only while it is alone: then a fraction was given whose pod has not opened the GPU.
    A container of a pod that uses the GPU, such as the next one while an init container runs, is
    of the same tenant.
    """
    named = tuple(_named(_checked(owner, assigned.jobs), assigned.names) for owner in owners)
    named += _unused(named, assigned.jobs)
    # Only owners with a pod uid: a container outside of pods is not the kubelet's, so no holder.
    if any(owner.pod_uid and owner.pod is None for owner in named):
        return named
    seen = {(owner.namespace, owner.pod, owner.container) for owner in named}
    tenants = tuple(one for one in assigned.holders if one.namespace not in PLACEHOLDERS)
    holders = tenants if named or tenants else assigned.holders
    return (*named, *(_holding(holder, named) for holder in holders if holder not in seen))


def _holding(holder: Holder, owners: Iterable[Owner]) -> Owner:
    """The owner that `holder` is, with uid and job of its pod's `owners` if these agree."""
    of_pod = [owner for owner in owners if (owner.namespace, owner.pod) == holder[:2]]
    uids = {owner.pod_uid for owner in of_pod}
    jobs = {(owner.slurm_job_id, owner.job) for owner in of_pod}
    uid = uids.pop() if len(uids) == 1 else None
    number, job = jobs.pop() if len(jobs) == 1 else (None, None)
    return Owner(*holder, pod_uid=uid, slurm_job_id=number, job=job, source="kubelet")


def _checked(owner: Owner, jobs: Sequence[Owner]) -> Owner:
    """`owner`, whose job, if only claimed, is replaced by that of a prolog for the same user.

    A claim that the prolog's `jobs` contradict is dropped: the job is unknown.
    """
    if owner.source != "claim" or not jobs:
        return owner
    of_user = {job.slurm_job_id for job in jobs if job.user == owner.user}
    number = owner.slurm_job_id
    if number not in (of_user or {job.slurm_job_id for job in jobs if job.user is None}):
        number = of_user.pop() if len(of_user) == 1 else None
    return replace(owner, slurm_job_id=number).known_from("prolog" if number else "cgroup")


def _unused(owners: Sequence[Owner], jobs: Iterable[Owner]) -> tuple[Owner, ...]:
    """The `jobs` without a process among `owners`; none while any of these may be of such a job."""
    return tuple(job for job in jobs if not any(_may_be(owner, job) for owner in owners))


def _may_be(owner: Owner, job: Owner) -> bool:
    """Whether a process of `owner` may be of `job`: a user's, or root's for that user."""
    if owner.slurm_job_id and owner.slurm_job_id.isdecimal():
        return owner.slurm_job_id == job.slurm_job_id
    return None in (owner.user, job.user) or owner.user in ("root", job.user)


def _named(owner: Owner, names: Mapping[str, Holder]) -> Owner:
    holder = names.get(owner.container_id or "")
    return replace(owner, **holder._asdict()) if holder else owner
