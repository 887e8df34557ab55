"""The owners of each GPU: pod, container, job and user."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from gpu_bottleneck_exporter.driver.readings import Pod, Processes
from gpu_bottleneck_exporter.sampling.collector import Table, collector, counter, gauge
from gpu_bottleneck_exporter.sampling.ledger import MIN_WORK_NS, GpuSnapshot
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.join import Assigned, joined


class Workload(NamedTuple):
    """The owners and starts of a GPU."""

    owners: tuple[Owner, ...]
    assigned: Assigned
    pod: Pod | None
    starts: int | None
    productive_starts: int | None


def _workload(gpu: GpuSnapshot) -> Workload:
    holders, totals = gpu.reading(Processes), gpu.totals
    return Workload(
        gpu.feeding.owners if gpu.feeding else (),
        gpu.assigned,
        holders.pod if holders else None,
        totals.starts,
        totals.productive_starts,
    )


def owners(gpu: GpuSnapshot) -> Iterable[tuple[str, ...]]:
    """The owners of a GPU, each once: texts of `LABELS`, empty if unknown."""
    return _texts(_workload(gpu))


def _texts(workload: Workload) -> Iterable[tuple[str, ...]]:
    """The texts of `owners`.

    All get the rendezvous of the ranks on the GPU, which a rank's helper may lack; none if there
    are several.
    """
    owners = joined(workload.owners, workload.assigned)
    if workload.pod:
        owners = tuple(replace(owner, **workload.pod._asdict()) for owner in owners)
    places = {owner.rendezvous for owner in owners if owner.rendezvous}
    place = places.pop() if len(places) == 1 else None
    return dict.fromkeys(replace(owner, rendezvous=place).texts for owner in owners)


_INFO = gauge(
    "gpu_workload_info{workload_namespace, workload_pod, workload_container, pod_uid, "
    "container_id, slurm_job_id, user, rendezvous, workload_job}",
    "Constant 1; one series for each owner of the GPU: those of its main processes, 8 at most, and "
    "containers and Slurm jobs to which the kubelet or a prolog gave it, 32 containers at most. "
    "slurm_job_id is a SLUID where the number is not visible, user a number if the host's names "
    "are not available; rendezvous is a hash of the place where the ranks of a distributed job "
    "meet, the same on all its GPUs; workload_job is another scheduler's job (pbs-1234.server) or "
    "a container manager's machine (lxc-101). Labels that do not apply or are unknown are omitted.",
)
LABELS = _INFO.labels
"""Labels in the order of the fields of an owner."""
FAMILIES: Table[Workload] = {
    _INFO: lambda workload: dict.fromkeys(_texts(workload), 1.0),
    counter(
        "gpu_workload_starts_total",
        "Jobs that started on the GPU while the exporter ran: new processes held it after the "
        "first ones of the previous job had left. Restarts of one container count, also "
        "between scrapes. Has no owner labels, so that the series continues without a process.",
    ): lambda workload: workload.starts,
    counter(
        "gpu_workload_productive_starts_total",
        f"Those of them that reached work: {MIN_WORK_NS // 10**9} s of busy time, or of a "
        "server's time without a request. The rest crashed, were ended, or are still starting. "
        "Absent where busy time is not measured.",
    ): lambda workload: workload.productive_starts,
}

COLLECTOR = collector("workload", FAMILIES, _workload)
