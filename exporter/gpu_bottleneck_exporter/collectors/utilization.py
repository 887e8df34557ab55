"""How long each GPU and its memory controller were busy."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.sampling.collector import (
    Collector,
    Histogram,
    Sample,
    counter,
    gauge,
    histogram,
    optional,
)
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

FAMILIES = (
    counter(
        "gpu_observed_seconds_total",
        "Seconds for which it is known whether the GPU was busy: the time covered by the driver's "
        "utilization samples (nvmlDeviceGetSamples; under MIG the GPM interval).",
    ),
    counter(
        "gpu_unobserved_seconds_total",
        "Seconds since the exporter first read the GPU that no utilization sample covers. They "
        "count as neither busy nor idle.",
    ),
    counter(
        "gpu_busy_seconds_total",
        "Seconds in which at least one kernel ran (integral of the driver's utilization samples "
        "over their windows; under MIG of the GPM graphics activity). Busy does not say how much "
        "of the GPU worked: see gpu_sm_active_seconds_total.",
    ),
    counter(
        "gpu_memory_controller_busy_seconds_total",
        "Seconds in which device memory was read or written (integral of the driver's memory "
        "utilization samples). Absent where the driver always reports 0, as on unified memory.",
    ),
    gauge(
        "gpu_utilization_ratio",
        "Share of the last tick in which a kernel ran, 0-1. For viewing only: alert on "
        "rate(gpu_busy_seconds_total).",
    ),
    gauge(
        "gpu_memory_controller_utilization_ratio",
        "Share of the last tick in which device memory was read or written, 0-1.",
    ),
    histogram(
        "gpu_window_utilization_ratio",
        "Busy share of each of the driver's sample windows (1/6 to 1 s long), 0-1. Distinguishes a "
        "steady half load from full load half of the time.",
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    totals = gpu.totals
    if totals.observed_ns is not None:
        yield Sample("gpu_observed_seconds_total", totals.observed_ns / 1e9)
        yield Sample("gpu_unobserved_seconds_total", totals.unobserved_ns / 1e9)
        yield Sample("gpu_busy_seconds_total", totals.busy_ns / 1e9)
        windows = Histogram(totals.window_counts, totals.window_sum)
        yield Sample("gpu_window_utilization_ratio", windows)
    if totals.memory_busy_ns is not None:
        yield Sample("gpu_memory_controller_busy_seconds_total", totals.memory_busy_ns / 1e9)
    yield from optional("gpu_utilization_ratio", totals.last_busy_ratio)
    yield from optional("gpu_memory_controller_utilization_ratio", totals.last_memory_ratio)


COLLECTOR = Collector("utilization", FAMILIES, _samples, lambda device: device.utilization())
