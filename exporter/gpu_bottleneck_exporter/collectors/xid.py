"""XID events: errors of the GPU or of the application, reported by the driver."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.sampling.collector import Collector, Sample, counter
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

FAMILIES = (
    counter(
        "gpu_xid_errors_total",
        "XID events since the exporter started, by code (NVML event set). Codes 13, 31, 43, 45, 68 "
        "and 109 come from the application, the others from the hardware or the driver. The series "
        "of a code first appears at 1: an alert must also catch new series.",
        ("xid",),
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    for code, count in sorted(gpu.errors.items()):
        yield Sample("gpu_xid_errors_total", float(count), (str(code),))


COLLECTOR = Collector("xid", FAMILIES, _samples)
