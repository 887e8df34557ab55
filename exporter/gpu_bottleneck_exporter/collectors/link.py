"""The PCIe link."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.driver.readings import Link
from gpu_bottleneck_exporter.sampling.collector import (
    SLOWLY,
    Collector,
    Sample,
    counter,
    gauge,
    optional,
)
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

FAMILIES = (
    counter(
        "gpu_pcie_replays_total",
        "PCIe packets sent again since the driver was loaded (nvmlDeviceGetPcieReplayCounter).",
    ),
    gauge(
        "gpu_pcie_link_generation",
        "PCIe generation at which the link runs. Falls when the GPU is idle. This and the three "
        "below are absent where NVML has a placeholder for a GPU on NVLink-C2C (GB10).",
    ),
    gauge(
        "gpu_pcie_link_generation_max", "Highest PCIe generation that GPU and slot both support."
    ),
    gauge("gpu_pcie_link_width", "PCIe lanes in use."),
    gauge("gpu_pcie_link_width_max", "Most PCIe lanes that GPU and slot both have."),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    link = gpu.reading(Link) or Link()
    yield from optional("gpu_pcie_replays_total", link.replays)
    yield from optional("gpu_pcie_link_generation", link.generation)
    yield from optional("gpu_pcie_link_generation_max", link.generation_max)
    yield from optional("gpu_pcie_link_width", link.width)
    yield from optional("gpu_pcie_link_width_max", link.width_max)


COLLECTOR = Collector("link", FAMILIES, _samples, lambda device: device.link(), SLOWLY)
