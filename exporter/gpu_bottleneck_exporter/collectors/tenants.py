"""The time and memory of each tenant of a shared GPU."""

from collections.abc import Mapping
from typing import NamedTuple

from gpu_bottleneck_exporter.collectors import workload
from gpu_bottleneck_exporter.driver.readings import Processes
from gpu_bottleneck_exporter.sampling.collector import Table, collector, counter, gauge
from gpu_bottleneck_exporter.sampling.ledger import (
    JOINT_TENANTS,
    MAX_TENANTS,
    OTHER_TENANTS,
    GpuSnapshot,
    TenantTotals,
)
from gpu_bottleneck_exporter.workload.identity import NO_OWNER
from gpu_bottleneck_exporter.workload.join import named
from gpu_bottleneck_exporter.workload.names import Tenant

_By = dict[tuple[str, ...], float]


class _Shared(NamedTuple):
    """The tenants of a shared GPU."""

    labels: Mapping[str, tuple[str, ...]]
    totals: Mapping[str, TenantTotals]
    used_bytes: Mapping[str, int]

    def of(self, name: str, *further: str) -> tuple[str, ...]:
        """The values of all labels."""
        return (name, *further, *self.labels.get(name, NO_OWNER.texts))


def owners(gpu: GpuSnapshot) -> Mapping[str, tuple[str, ...]]:
    """Texts of `workload.LABELS` by tenant; empty where its owners differ."""
    labels = {}
    for name, tenant in gpu.feeding.tenants.items() if gpu.feeding else ():
        texts = [named(owner, gpu.assigned).texts for owner in tenant.owners]
        columns = [{*column} for column in zip(*texts, strict=True)]
        labels[name] = tuple(column.pop() if len(column) == 1 else "" for column in columns)
    return labels


def _shared(gpu: GpuSnapshot) -> _Shared | None:
    if gpu.feeding is None or not gpu.feeding.tenants:
        return None
    tenants = gpu.feeding.tenants
    shown = {*tenants, *JOINT_TENANTS}  # others, which left, have no labels any longer
    totals = {name: total for name, total in gpu.totals.tenants.items() if name in shown}
    reading = gpu.reading(Processes)
    used = {process.pid: process.used_bytes for process in reading.processes} if reading else {}
    return _Shared(owners(gpu), totals, _used_bytes(tenants, totals, used))


def _used_bytes(
    tenants: Mapping[str, Tenant],
    totals: Mapping[str, TenantTotals],
    used: Mapping[int, int | None],
) -> dict[str, int]:
    """Bytes by name, without tenants of which a process is unknown."""
    sizes: dict[str, list[int | None]] = {}
    for name, tenant in tenants.items():
        if (shown := name if name in totals else OTHER_TENANTS) in totals:
            exited = tenant.pids - used.keys()
            sizes.setdefault(shown, []).extend(used[pid] for pid in tenant.pids - exited)
    return {
        name: sum(filter(None, bytes_))
        for name, bytes_ in sizes.items()
        if bytes_ and None not in bytes_
    }


def _stalls(shared: _Shared) -> _By:
    return {
        shared.of(name, wait): ns / 1e9
        for name, total in shared.totals.items()
        for wait, ns in total.stall_ns.items()
    }


_LABELS = ", ".join(workload.LABELS)
_WHO = (
    f"tenant is its job (slurm-4711, pod-<uid>), container or user, for {MAX_TENANTS} tenants at "
    "most, and others for the rest together; further labels as in gpu_workload_info, those on "
    "which its containers differ omitted. Only while several tenants hold the GPU, and for 5 "
    "minutes after."
)
_FAMILIES: Table[_Shared] = {
    counter(
        f"gpu_tenant_busy_seconds_total{{tenant, {_LABELS}}}",
        "Seconds in which the GPU worked for a tenant, by the driver's samples of processes. Over "
        "all tenants the rates add up to that of gpu_busy_seconds_total, exactly; tenant "
        f"unattributed is the time that no known process explains. {_WHO}",
    ): lambda shared: {shared.of(n): total.busy_ns / 1e9 for n, total in shared.totals.items()},
    counter(
        f"gpu_tenant_stall_seconds_total{{tenant, waiting_on, {_LABELS}}}",
        "A tenant's equal part of the seconds in which the GPU idled, by what its own processes "
        "waited for: see gpu_stall_seconds_total, to which the rates add up over all tenants and "
        f"waits. {_WHO}",
    ): _stalls,
    gauge(
        f"gpu_tenant_memory_used_bytes{{tenant, {_LABELS}}}",
        f"Device memory used by a tenant's processes, in bytes. Absent if unknown for one. {_WHO}",
    ): lambda shared: {shared.of(name): size for name, size in shared.used_bytes.items()},
}

COLLECTOR = collector("tenants", _FAMILIES, _shared, lambda device: device.process_use())
