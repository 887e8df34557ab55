"""Memory errors and row remapping."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.driver.readings import Health
from gpu_bottleneck_exporter.sampling.collector import (
    SLOWLY,
    Collector,
    Sample,
    counter,
    each,
    gauge,
    optional,
)
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

FAMILIES = (
    counter(
        "gpu_ecc_errors_total",
        "ECC errors since the driver was loaded (nvmlDeviceGetTotalEccErrors, volatile). Absent "
        "with ECC off.",
        ("kind",),
    ),
    gauge(
        "gpu_remapped_rows",
        "Memory rows remapped since the GPU was made, by the kind of error "
        "(nvmlDeviceGetRemappedRows, Ampere and later).",
        ("kind",),
    ),
    gauge(
        "gpu_row_remap_pending",
        "Whether a row remapping is pending until the next GPU reset, 0 or 1.",
    ),
    gauge("gpu_row_remap_failed", "Whether a row remapping failed, 0 or 1: replace the GPU."),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    health = gpu.reading(Health) or Health()
    yield from each("gpu_ecc_errors_total", health.ecc_errors)
    yield from each("gpu_remapped_rows", health.remapped_rows)
    yield from optional("gpu_row_remap_pending", health.remap_pending)
    yield from optional("gpu_row_remap_failed", health.remap_failed)


COLLECTOR = Collector("health", FAMILIES, _samples, lambda device: device.health(), SLOWLY)
