"""Identity of each GPU."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import Collector, Family, Sample
from gpu_bottleneck_exporter.ledger import GpuSnapshot

FAMILIES = (
    Family(
        "gpu_info",
        "gauge",
        "Constant 1; who the GPU or MIG instance is (NVML name, architecture, PCI bus id, MIG "
        "profile and parent; driver and highest CUDA version of the driver). Unknown labels are "
        "left out.",
        (
            "name",
            "architecture",
            "pci_bus_id",
            "driver_version",
            "cuda_version",
            "mig_profile",
            "parent_uuid",
        ),
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    who = gpu.identity
    yield Sample(
        "gpu_info",
        1.0,
        (
            who.name or "",
            who.architecture or "",
            who.pci_bus_id or "",
            gpu.system.driver_version or "",
            gpu.system.cuda_version or "",
            who.mig_profile or "",
            who.parent_uuid or "",
        ),
    )


COLLECTOR = Collector("info", FAMILIES, _samples)
