"""Whose each GPU is: pod, container, job and user."""

from collections.abc import Iterable, Iterator

from gpu_bottleneck_exporter.collectors.base import Collector, Family, Sample
from gpu_bottleneck_exporter.ledger import GpuSnapshot
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.join import joined

FAMILIES = (
    Family(
        "gpu_workload_info",
        "gauge",
        "Constant 1; whose the GPU is: one series for each owner of the main processes, 8 at most, "
        "and for each container, 32 at most, that the kubelet (asked every 30 s, and at once about "
        "a new pod) gave it to and that has no process on it. Uid and id by the processes' cgroups "
        "(read every 10 s, later every 30 s), their names by the links to containers' logs, Slurm "
        "job by the cgroup or SLURM_JOB_ID of the environment, user by the real user id, which is "
        "told as a number where the host's names are not at hand, rendezvous a hash of "
        "MASTER_ADDR and MASTER_PORT of its environment, the same on all GPUs of a distributed "
        "job. What does not apply or is unknown is left out: while a pod on the GPU has no names, "
        "so are all containers without a process, any of which may be this pod's.",
        (
            "workload_namespace",
            "workload_pod",
            "workload_container",
            "pod_uid",
            "container_id",
            "slurm_job_id",
            "user",
            "rendezvous",
        ),
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    of_processes = gpu.feeding.owners if gpu.feeding is not None else ()
    owners = joined(of_processes, gpu.assigned)
    job = _job(owners)
    for labels in dict.fromkeys((*_labels(owner), job) for owner in owners):
        yield Sample("gpu_workload_info", 1.0, labels)


def _job(owners: Iterable[Owner]) -> str:
    """Where the ranks meet that are on the GPU: a place, or empty for none and for several.

    It is told of all owners, as a helper of a rank, in its pod, has no such environment.
    """
    places = {owner.rendezvous for owner in owners if owner.rendezvous}
    return places.pop() if len(places) == 1 else ""


def _labels(owner: Owner) -> tuple[str, ...]:
    return (
        owner.namespace or "",
        owner.pod or "",
        owner.container or "",
        owner.pod_uid or "",
        owner.container_id or "",
        owner.slurm_job_id or "",
        owner.user or "",
    )


COLLECTOR = Collector("workload", FAMILIES, _samples)
