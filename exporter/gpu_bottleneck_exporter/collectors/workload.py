"""Whose each GPU is: pod, container, job and user of the processes that hold it."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import Collector, Family, Sample
from gpu_bottleneck_exporter.ledger import GpuSnapshot
from gpu_bottleneck_exporter.workload.identity import Owner

FAMILIES = (
    Family(
        "gpu_workload_info",
        "gauge",
        "Constant 1; whose the GPU is: one series for each owner of the main processes, 8 at most. "
        "Pod and container by their cgroup (their names and the namespace are not known yet), "
        "Slurm job by the cgroup or SLURM_JOB_ID of the environment, user by the real user id, "
        "which is told as a number where the host's names are not at hand. What does not apply or "
        "is unknown is left out. Absent while nobody holds the GPU; read every 10 s.",
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
    if gpu.feeding is not None:
        for owner in gpu.feeding.owners:
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
