"""Whose each GPU is: pod, container, job and user."""

from collections.abc import Iterator

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
        "(read every 10 s), their names by the links to containers' logs, Slurm job by the cgroup "
        "or SLURM_JOB_ID of the environment, user by the real user id, which is told as a number "
        "where the host's names are not at hand. What does not apply or is unknown is left out: "
        "while a pod on the GPU has no names, so are all containers without a process, any of "
        "which may be this pod's.",
        (
            "workload_namespace",
            "workload_pod",
            "workload_container",
            "pod_uid",
            "container_id",
            "slurm_job_id",
            "user",
        ),
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    of_processes = gpu.feeding.owners if gpu.feeding is not None else ()
    for owner in joined(of_processes, gpu.assigned):
        yield Sample("gpu_workload_info", 1.0, _labels(owner))


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
