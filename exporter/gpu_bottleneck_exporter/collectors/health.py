"""Memory errors and row remapping."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import SLOWLY, Collector, Family, Sample, optional
from gpu_bottleneck_exporter.driver.readings import Health
from gpu_bottleneck_exporter.ledger import GpuSnapshot

FAMILIES = (
    Family(
        "gpu_ecc_errors_total",
        "counter",
        "ECC errors since the driver was loaded (nvmlDeviceGetTotalEccErrors, volatile). Absent "
        "with ECC off.",
        ("kind",),
    ),
    Family(
        "gpu_remapped_rows",
        "gauge",
        "Memory rows remapped in the life of the GPU, by the kind of error that caused it "
        "(nvmlDeviceGetRemappedRows, Ampere and later).",
        ("kind",),
    ),
    Family(
        "gpu_row_remap_pending",
        "gauge",
        "Whether a row remapping waits for the next GPU reset, 0 or 1.",
    ),
    Family(
        "gpu_row_remap_failed",
        "gauge",
        "Whether a row remapping failed, 0 or 1: the GPU wants replacing.",
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    health = gpu.reading(Health)
    if health is None:
        return
    for kind, count in health.ecc_errors.items():
        yield Sample("gpu_ecc_errors_total", float(count), (kind,))
    for kind, rows in health.remapped_rows.items():
        yield Sample("gpu_remapped_rows", float(rows), (kind,))
    yield from optional("gpu_row_remap_pending", health.remap_pending)
    yield from optional("gpu_row_remap_failed", health.remap_failed)


COLLECTOR = Collector("health", FAMILIES, _samples, lambda device: device.health(), SLOWLY)
