"""The identity of each GPU."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.sampling.collector import Collector, Sample, gauge
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

FAMILIES = (
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
