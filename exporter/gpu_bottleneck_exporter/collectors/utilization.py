"""How long each GPU and its memory controller were busy."""

from gpu_bottleneck_exporter.sampling.collector import (
    Histogram,
    Table,
    Values,
    collector,
    counter,
    gauge,
    histogram,
    seconds,
)
from gpu_bottleneck_exporter.sampling.ledger import GpuTotals


def _if_observed(totals: GpuTotals, value: Values) -> Values:
    return None if totals.observed_ns is None else value


FAMILIES: Table[GpuTotals] = {
    counter(
        "gpu_observed_seconds_total",
        "Seconds for which it is known whether the GPU was busy: the time covered by the driver's "
        "utilization samples (nvmlDeviceGetSamples; under MIG the GPM interval).",
    ): lambda totals: seconds(totals.observed_ns),
    counter(
        "gpu_unobserved_seconds_total",
        "Seconds since the exporter first read the GPU that no utilization sample covers. They "
        "count as neither busy nor idle.",
    ): lambda totals: _if_observed(totals, totals.unobserved_ns / 1e9),
    counter(
        "gpu_busy_seconds_total",
        "Seconds in which at least one kernel ran (integral of the driver's utilization samples "
        "over their windows; under MIG of the GPM graphics activity). Busy does not say how much "
        "of the GPU worked: see gpu_sm_active_seconds_total.",
    ): lambda totals: _if_observed(totals, totals.busy_ns / 1e9),
    counter(
        "gpu_memory_controller_busy_seconds_total",
        "Seconds in which device memory was read or written (integral of the driver's memory "
        "utilization samples). Absent where the driver always reports 0, as on unified memory.",
    ): lambda totals: seconds(totals.memory_busy_ns),
    gauge(
        "gpu_utilization_ratio",
        "Share of the last tick in which a kernel ran, 0-1. For viewing only: alert on "
        "rate(gpu_busy_seconds_total).",
    ): lambda totals: totals.last_busy_ratio,
    gauge(
        "gpu_memory_controller_utilization_ratio",
        "Share of the last tick in which device memory was read or written, 0-1.",
    ): lambda totals: totals.last_memory_ratio,
    histogram(
        "gpu_window_utilization_ratio",
        "Busy share of each of the driver's sample windows (1/6 to 1 s long), 0-1. Distinguishes a "
        "steady half load from full load half of the time.",
    ): lambda totals: _if_observed(totals, Histogram(totals.window_counts, totals.window_sum)),
}

COLLECTOR = collector(
    "utilization", FAMILIES, lambda gpu: gpu.totals, lambda device: device.utilization()
)
