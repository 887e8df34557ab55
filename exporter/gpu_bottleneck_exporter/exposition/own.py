"""The exporter's own metrics: which GPUs answer, what works, and what it costs."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

from gpu_bottleneck_exporter import __version__
from gpu_bottleneck_exporter.driver.readings import (
    Activity,
    Power,
    Processes,
    Throttle,
    Utilization,
)
from gpu_bottleneck_exporter.sampling.collector import Sample, counter, each, gauge, optional
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.opened import Outcome
from gpu_bottleneck_exporter.sampling.sampler import SamplerState

GPU_FAMILIES = (
    gauge(
        "gpu_up",
        "Whether the GPU answered within the deadline, 0 or 1. At 0 only gpu_up, gpu_info and its "
        "XIDs remain; log and status page give the reason.",
    ),
)

FAMILIES = (
    gauge(
        "gpu_exporter_build_info",
        "Constant 1; versions of the exporter and of Python.",
        ("version", "python_version"),
    ),
    gauge(
        "gpu_exporter_simulated",
        "1 when the GPUs are simulated (virtual board), 0 when they are real.",
    ),
    gauge(
        "gpu_exporter_collector_success",
        "Whether the collector's last reading succeeded completely on every GPU that supports it, "
        "0 or 1. Absent if no GPU does.",
        ("collector",),
    ),
    gauge(
        "gpu_exporter_collector_duration_seconds",
        "Seconds that the collector's last reading took, summed over all GPUs. Readings run in "
        "the background, not in scrapes.",
        ("collector",),
    ),
    gauge(
        "gpu_exporter_collector_last_success_timestamp_seconds",
        "Unix time of the collector's last success, on the GPU where it is longest ago.",
        ("collector",),
    ),
    gauge(
        "gpu_exporter_signal_available",
        "Whether every GPU that is up, or the host, provides the signal, 0 or 1. At 0 the series "
        "built on it are absent or coarser somewhere. Absent if the collectors that read it are "
        "off, or if it is named in --without.",
        ("signal",),
    ),
    gauge(
        "gpu_exporter_feeder_processes",
        "Processes that feed GPUs, over all GPUs, by how they are watched: whole (counters read "
        "every 4 s or more often), sampled (read in turn: sums are exact but come later), or "
        "counted (beyond 8192 processes nothing else is known of them, and the worker counters of "
        "that GPU are absent).",
        ("watched",),
    ),
    counter(
        "gpu_exporter_lost_samples_seconds_total",
        "Seconds of utilization samples that the driver's ring dropped before they were read, "
        "over all GPUs. Part of gpu_unobserved_seconds_total.",
    ),
    counter(
        "gpu_exporter_implausible_values_total",
        "Impossible values from the driver, such as a utilization above 100 %. They are dropped: "
        "the series is absent, or the time counts as unobserved.",
        ("collector",),
    ),
    counter(
        "gpu_exporter_cpu_wait_seconds_total",
        "Seconds in which the exporter's own threads were runnable without a CPU, summed "
        "(schedstat; every 10 s). If one of them is starved for a quarter of the time, readings "
        "come too late and the signal own_cpu is 0.",
    ),
    counter("gpu_exporter_driver_calls_total", "Calls made into the GPU driver."),
    counter(
        "gpu_exporter_driver_seconds_total",
        "Seconds spent inside calls into the GPU driver, over all threads.",
    ),
)


def _has_rings(gpu: GpuSnapshot) -> bool:
    reading = gpu.reading(Utilization)
    return reading is not None and reading.gpu is not None


def _part(reading: object, name: str) -> bool:
    value = getattr(reading, name, None)
    return value is not None and value != {}


_OF_GPUS: dict[str, tuple[str, Callable[[GpuSnapshot], bool]]] = {
    "utilization_samples": ("utilization", _has_rings),
    "gpm": ("activity", lambda gpu: gpu.reading(Activity) is not None),
    "energy": ("power", lambda gpu: _part(gpu.reading(Power), "energy_joules")),
    "throttle_counters": ("throttle", lambda gpu: _part(gpu.reading(Throttle), "spent_ns")),
    "processes": ("processes", lambda gpu: gpu.reading(Processes) is not None),
}
"""By signal: the collector that reads it, and whether a GPU provides it."""
_OF_FEEDERS = frozenset({"stall", "feeders"})
_OF_THE_HOST: dict[str, frozenset[str]] = {
    "psi_host": frozenset({"host"}),
    "psi_cgroup": frozenset({"feeders"}),
    "schedstat": _OF_FEEDERS,
    "wait_channel": _OF_FEEDERS,
    "connections": frozenset({"stall"}),
    "all_threads": frozenset({"stall"}),
    "all_sockets": frozenset({"stall"}),
    "all_processes": _OF_FEEDERS,
    "process_io": _OF_FEEDERS | {"workload"},
    "host_pids": _OF_FEEDERS | {"workload", "host"},
    "cgroup_cpu": _OF_FEEDERS,
    "cgroup_memory": _OF_FEEDERS,
}
"""By signal: the collectors that read it."""


def gpu_samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    """Samples of every GPU, whether it answers or not."""
    yield Sample("gpu_up", float(gpu.up))


def samples(state: SamplerState) -> Iterator[Sample]:
    """Samples of the exporter as a whole."""
    yield Sample("gpu_exporter_build_info", 1.0, (__version__, platform.python_version()))
    yield Sample("gpu_exporter_simulated", float(state.about.simulated))
    yield from _collectors(state.outcomes)
    for signal, value in sorted(signals(state).items()):
        yield Sample("gpu_exporter_signal_available", float(value), (signal,))
    for watched, count in sorted(state.host.watched.items()) if state.host else ():
        yield Sample("gpu_exporter_feeder_processes", float(count), (watched,))
    lost = sum(gpu.totals.lost_ns for gpu in state.gpus)
    yield Sample("gpu_exporter_lost_samples_seconds_total", lost / 1e9)
    yield from each("gpu_exporter_implausible_values_total", state.implausible)
    yield from optional("gpu_exporter_cpu_wait_seconds_total", state.waited_for_cpu_seconds)
    yield Sample("gpu_exporter_driver_calls_total", float(state.driver_calls))
    yield Sample("gpu_exporter_driver_seconds_total", state.driver_seconds)


def signals(state: SamplerState) -> dict[str, bool]:
    """Whether each signal is available: from every board that is up, and from the host."""
    found = signals_of_the_host(state)
    if state.starved is not None:
        found["own_cpu"] = not state.starved
    if state.kubelet.given is not None:
        found["kubelet"] = state.kubelet.given
    whole = [gpu for gpu in state.gpus if gpu.up and gpu.identity.parent_uuid is None]
    for signal, given in _read_by(state.collectors).items() if whole else ():
        found[signal] = all(given(gpu) for gpu in whole)
    if whole and state.error_events is not None:
        found["xid_events"] = state.error_events
    return found


def signals_of_the_host(state: SamplerState) -> dict[str, bool]:
    """Whether the host provides each signal that an enabled collector reads."""
    found = state.host.signals if state.host else {}
    wanted = (name for name, readers in _OF_THE_HOST.items() if readers & state.collectors)
    return {signal: found[signal] for signal in wanted if signal in found}


def missing_signals(gpu: GpuSnapshot, collectors: frozenset[str]) -> list[str]:
    """The signals that `collectors` read and the board `gpu` does not provide."""
    return [signal for signal, given in _read_by(collectors).items() if not given(gpu)]


def reader_of(signal: str) -> str | None:
    """The collector that reads `signal` from a GPU; None for signals of driver and host."""
    return _OF_GPUS[signal][0] if signal in _OF_GPUS else None


def _read_by(collectors: frozenset[str]) -> dict[str, Callable[[GpuSnapshot], bool]]:
    """The signals of GPUs that are read at all: collectors may be disabled."""
    return {signal: given for signal, (reader, given) in _OF_GPUS.items() if reader in collectors}


def health(outcomes: tuple[tuple[str, Outcome], ...]) -> Iterator[tuple[str, Outcome]]:
    """Each collector and its outcome over all GPUs: seconds summed, the success longest ago."""
    by_name: dict[str, list[Outcome]] = {}
    for name, outcome in outcomes:
        by_name.setdefault(name, []).append(outcome)
    for name, found in sorted(by_name.items()):
        times = [outcome.last_success for outcome in found if outcome.last_success is not None]
        yield (
            name,
            Outcome(
                seconds=sum(outcome.seconds for outcome in found),
                last_success=min(times) if len(times) == len(found) else None,
                error=next((outcome.error for outcome in found if outcome.error), None),
            ),
        )


def _collectors(outcomes: tuple[tuple[str, Outcome], ...]) -> Iterator[Sample]:
    for name, found in health(outcomes):
        yield Sample("gpu_exporter_collector_success", float(found.success), (name,))
        yield Sample("gpu_exporter_collector_duration_seconds", found.seconds, (name,))
        family = "gpu_exporter_collector_last_success_timestamp_seconds"
        yield from optional(family, found.last_success, name)
