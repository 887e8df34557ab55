"""Errors: XID events of GPU or application, of the memory, and of the PCIe link."""

from gpu_bottleneck_exporter.driver.readings import Health, Link
from gpu_bottleneck_exporter.sampling.collector import (
    SLOWLY,
    Table,
    collector,
    counter,
    gauge,
    latest,
)
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

_XID: Table[GpuSnapshot] = {
    counter(
        "gpu_xid_errors_total",
        "XID events since the exporter started, by code (NVML event set). Codes 13, 31, 43, 45, 68 "
        "and 109 come from the application, the others from the hardware or the driver. The series "
        "of a code first appears at 1: an alert must also catch new series.",
        ("xid",),
    ): lambda gpu: {str(code): count for code, count in sorted(gpu.errors.items())},
}

_HEALTH: Table[Health] = {
    counter(
        "gpu_ecc_errors_total",
        "ECC errors since the driver was loaded (nvmlDeviceGetTotalEccErrors, volatile). Absent "
        "with ECC off.",
        ("kind",),
    ): lambda health: health.ecc_errors,
    gauge(
        "gpu_remapped_rows",
        "Memory rows remapped since the GPU was made, by the kind of error "
        "(nvmlDeviceGetRemappedRows, Ampere and later).",
        ("kind",),
    ): lambda health: health.remapped_rows,
    gauge(
        "gpu_row_remap_pending",
        "Whether a row remapping is pending until the next GPU reset, 0 or 1.",
    ): lambda health: health.remap_pending,
    gauge(
        "gpu_row_remap_failed", "Whether a row remapping failed, 0 or 1: replace the GPU."
    ): lambda health: health.remap_failed,
}

_LINK: Table[Link] = {
    counter(
        "gpu_pcie_replays_total",
        "PCIe packets sent again since the driver was loaded (nvmlDeviceGetPcieReplayCounter).",
    ): lambda link: link.replays,
    gauge(
        "gpu_pcie_link_generation",
        "PCIe generation at which the link runs. Falls when the GPU is idle. This and the three "
        "below are absent where NVML has a placeholder for a GPU on NVLink-C2C (GB10).",
    ): lambda link: link.generation,
    gauge(
        "gpu_pcie_link_generation_max", "Highest PCIe generation that GPU and slot both support."
    ): lambda link: link.generation_max,
    gauge("gpu_pcie_link_width", "PCIe lanes in use."): lambda link: link.width,
    gauge("gpu_pcie_link_width_max", "Most PCIe lanes that GPU and slot both have."): lambda link: (
        link.width_max
    ),
}

COLLECTORS = (
    collector("xid", _XID, lambda gpu: gpu),
    collector("health", _HEALTH, latest(Health), lambda device: device.health(), SLOWLY),
    collector("link", _LINK, latest(Link), lambda device: device.link(), SLOWLY),
)
