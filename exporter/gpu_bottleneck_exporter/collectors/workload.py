"""The owners of each GPU: pod, container, job and user."""

from collections.abc import Iterable
from dataclasses import replace

from gpu_bottleneck_exporter.driver.readings import Processes
from gpu_bottleneck_exporter.sampling.collector import Table, collector, gauge
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.workload.join import joined


def owners(gpu: GpuSnapshot) -> Iterable[tuple[str, ...]]:
    """The owners of a GPU, each once: texts in the order of `LABELS`, empty if unknown.

    All get the rendezvous of the ranks on the GPU, as a rank's helper in the same pod may not have
    it in its environment; none if there are several.
    """
    found = joined(gpu.feeding.owners if gpu.feeding else (), gpu.assigned)
    holders = gpu.reading(Processes)
    if holders and holders.pod:
        found = tuple(replace(owner, **holders.pod._asdict()) for owner in found)
    places = {owner.rendezvous for owner in found if owner.rendezvous}
    place = places.pop() if len(places) == 1 else None
    return dict.fromkeys(replace(owner, rendezvous=place).texts for owner in found)


_INFO = gauge(
    "gpu_workload_info{workload_namespace, workload_pod, workload_container, pod_uid, "
    "container_id, slurm_job_id, user, rendezvous}",
    "Constant 1; the owners of the GPU: one series for each owner of the main processes, 8 at "
    "most, and for each container to which the kubelet gave the GPU and that has no process on "
    "it, 32 at most (polled every 30 s, and at once for a new pod); likewise each Slurm job "
    "to which a prolog gave it, by its files (read every 10 s). Pod uid and container id "
    "come from the processes' cgroups (read every 10 s, later every 30 s), names from the "
    "links to container logs, the Slurm job from the cgroup or SLURM_JOB_ID (its SLUID where "
    "its number is not visible), the user from the real user id (a number if the host's "
    "names are not available). rendezvous is a hash of "
    "MASTER_ADDR and MASTER_PORT, the same on all GPUs of a distributed job. Labels that do "
    "not apply or are unknown are omitted. While a pod on the GPU has no names, containers "
    "without a process are omitted too: any of them may be this pod's.",
)
LABELS = _INFO.labels
"""In the order of the fields of an owner."""
FAMILIES: Table[GpuSnapshot] = {_INFO: lambda gpu: dict.fromkeys(owners(gpu), 1.0)}

COLLECTOR = collector("workload", FAMILIES, lambda gpu: gpu)
