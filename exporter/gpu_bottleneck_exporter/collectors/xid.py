"""XID events: what the driver reports as errors of the GPU or of its user."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import Collector, Family, Sample
from gpu_bottleneck_exporter.ledger import GpuSnapshot

FAMILIES = (
    Family(
        "gpu_xid_errors_total",
        "counter",
        "XID events since the exporter started, by code (NVML event set). Codes 13, 31, 43, 45, 68 "
        "and 109 come from the application, the others from the hardware or the driver. A code's "
        "series begins at 1 with its first event: an alert must catch the series' birth.",
        ("xid",),
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    for code, count in sorted(gpu.xids.items()):
        yield Sample("gpu_xid_errors_total", float(count), (str(code),))


COLLECTOR = Collector("xid", FAMILIES, _samples)
