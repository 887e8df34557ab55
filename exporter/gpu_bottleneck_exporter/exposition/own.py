"""The exporter's own metrics: responding GPUs, working collectors, cost."""

from __future__ import annotations

import platform

from gpu_bottleneck_exporter import __version__
from gpu_bottleneck_exporter.sampling.collector import Table, collector, counter, gauge
from gpu_bottleneck_exporter.sampling.sampler import SamplerState
from gpu_bottleneck_exporter.sampling.signals import health, signals

_UP: Table[bool] = {
    gauge(
        "gpu_up",
        "Whether the GPU answered within the deadline, 0 or 1. At 0 only gpu_up, gpu_info and XIDs "
        "remain; log and status page give the reason.",
    ): lambda up: up,
}
UP = collector("up", _UP, lambda gpu: gpu.up)
"""Comes first, whichever collectors are enabled."""

EXPORTER: Table[SamplerState] = {
    gauge(
        "gpu_exporter_build_info{version, python_version}",
        "Constant 1; versions of the exporter and of Python.",
    ): lambda _: {(__version__, platform.python_version()): 1.0},
    gauge(
        "gpu_exporter_simulated",
        "1 when the GPUs are simulated, 0 when they are real.",
    ): lambda state: state.about.simulated,
    gauge(
        "gpu_exporter_collector_success{collector}",
        "Whether the collector's last reading succeeded completely on every GPU that supports it, "
        "0 or 1. Absent if no GPU does.",
    ): lambda state: {name: one.success for name, one in health(state)},
    gauge(
        "gpu_exporter_collector_duration_seconds{collector}",
        "Seconds that the collector's last reading took, in the background, summed over all GPUs.",
    ): lambda state: {name: one.seconds for name, one in health(state)},
    gauge(
        "gpu_exporter_collector_last_success_timestamp_seconds{collector}",
        "Unix time of the collector's last success, on the GPU where it is longest ago.",
    ): lambda state: {name: one.last_success for name, one in health(state)},
    gauge(
        "gpu_exporter_signal_available{signal}",
        "Whether every GPU that is up, or the host, provides the signal, 0 or 1. At 0 the series "
        "built on it are absent or coarser. Absent if its collectors are off, or if --without "
        "names it.",
    ): lambda state: dict(sorted(signals(state).items())),
    gauge(
        "gpu_exporter_feeder_processes{watched}",
        "Processes that feed GPUs, over all GPUs, by how they are watched: whole (counters read at "
        "least every 4 s), sampled (in turn: sums come later), or counted (beyond 8192; that GPU "
        "has no worker counters).",
    ): lambda state: dict(sorted(state.host.watched.items())) if state.host else None,
    counter(
        "gpu_exporter_lost_samples_seconds_total",
        "Seconds of utilization samples that the driver's ring dropped before they were read, "
        "over all GPUs. Part of gpu_unobserved_seconds_total.",
    ): lambda state: sum(gpu.totals.lost_ns for gpu in state.gpus) / 1e9,
    counter(
        "gpu_exporter_implausible_values_total{collector}",
        "Impossible values from the driver, such as a utilization above 100 %; they are dropped.",
    ): lambda state: state.implausible,
    counter(
        "gpu_exporter_cpu_wait_seconds_total",
        "Seconds in which the exporter's own threads were runnable without a CPU, summed "
        "(schedstat). If one is starved for a quarter of the time, the signal own_cpu is 0.",
    ): lambda state: state.waited_for_cpu_seconds,
    counter("gpu_exporter_driver_calls_total", "Calls made into the GPU driver."): lambda state: (
        state.driver_calls
    ),
    counter(
        "gpu_exporter_driver_seconds_total",
        "Seconds spent inside calls into the GPU driver, over all threads.",
    ): lambda state: state.driver_seconds,
}
"""The exporter as a whole."""
