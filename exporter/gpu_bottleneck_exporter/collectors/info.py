"""The identity of each GPU."""

from gpu_bottleneck_exporter.sampling.collector import Table, collector, gauge
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

FAMILIES: Table[GpuSnapshot] = {
    gauge(
        "gpu_info",
        "Constant 1; identifies the GPU or MIG instance (NVML name, architecture, PCI bus id, MIG "
        "profile and parent; driver version and the highest CUDA version that it supports). "
        "Unknown labels are omitted.",
        (
            "name",
            "architecture",
            "pci_bus_id",
            "driver_version",
            "cuda_version",
            "mig_profile",
            "parent_uuid",
        ),
    ): lambda gpu: {_identity(gpu): 1.0},
}


def _identity(gpu: GpuSnapshot) -> tuple[str, ...]:
    who, system = gpu.identity, gpu.system
    known = (
        *(who.name, who.architecture, who.pci_bus_id),
        *(system.driver_version, system.cuda_version),
        *(who.mig_profile, who.parent_uuid),
    )
    return tuple(text or "" for text in known)


COLLECTOR = collector("info", FAMILIES, lambda gpu: gpu)
