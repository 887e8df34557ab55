"""The PCIe link."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import SLOWLY, Collector, Family, Sample, optional
from gpu_bottleneck_exporter.driver.readings import Link
from gpu_bottleneck_exporter.ledger import GpuSnapshot

FAMILIES = (
    Family(
        "gpu_pcie_replays_total",
        "counter",
        "PCIe packets that had to be sent again, since the driver was loaded "
        "(nvmlDeviceGetPcieReplayCounter).",
    ),
    Family(
        "gpu_pcie_link_generation",
        "gauge",
        "PCIe generation at which the link runs. Falls when the GPU is idle.",
    ),
    Family(
        "gpu_pcie_link_generation_max",
        "gauge",
        "PCIe generation that GPU and slot can both do.",
    ),
    Family("gpu_pcie_link_width", "gauge", "PCIe lanes in use."),
    Family("gpu_pcie_link_width_max", "gauge", "PCIe lanes that GPU and slot both have."),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    link = gpu.reading(Link)
    if link is None:
        return
    yield from optional("gpu_pcie_replays_total", link.replays)
    yield from optional("gpu_pcie_link_generation", link.generation)
    yield from optional("gpu_pcie_link_generation_max", link.generation_max)
    yield from optional("gpu_pcie_link_width", link.width)
    yield from optional("gpu_pcie_link_width_max", link.width_max)


COLLECTOR = Collector("link", FAMILIES, _samples, lambda device: device.link(), SLOWLY)
