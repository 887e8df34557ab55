"""The exporter's own metrics: which GPUs answer, what works, and what it costs."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

from gpu_bottleneck_exporter import __version__
from gpu_bottleneck_exporter.collectors.base import Family, Sample, optional
from gpu_bottleneck_exporter.driver.readings import (
    Activity,
    Power,
    Processes,
    RingState,
    Throttle,
    Utilization,
)
from gpu_bottleneck_exporter.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampler import State
from gpu_bottleneck_exporter.worker import Outcome

GPU_FAMILIES = (
    Family(
        "gpu_up",
        "gauge",
        "Whether the GPU answered within the deadline, 0 or 1. At 0 its other series are absent; "
        "the reason is in the log and on the status page.",
    ),
)

FAMILIES = (
    Family(
        "gpu_exporter_build_info",
        "gauge",
        "Constant 1; version of the exporter and of its Python.",
        ("version", "python_version"),
    ),
    Family(
        "gpu_exporter_simulated",
        "gauge",
        "1 when the GPUs are those of the virtual board, 0 when they are real.",
    ),
    Family(
        "gpu_exporter_collector_success",
        "gauge",
        "Whether the collector's last reading succeeded completely on every GPU that supports it, "
        "0 or 1. Absent where no GPU does.",
        ("collector",),
    ),
    Family(
        "gpu_exporter_collector_duration_seconds",
        "gauge",
        "Seconds that the collector's last reading took, summed over all GPUs. Readings run in "
        "the background, not in scrapes.",
        ("collector",),
    ),
    Family(
        "gpu_exporter_collector_last_success_timestamp_seconds",
        "gauge",
        "Unix time of the collector's last success, of the GPU on which it is longest ago.",
        ("collector",),
    ),
    Family(
        "gpu_exporter_signal_available",
        "gauge",
        "Whether every GPU that is up, or the host, gives the signal, 0 or 1: 0 means that the "
        "series built on it are absent or coarser somewhere. Absent where the collectors that "
        "read it are switched off, and of signals in --without.",
        ("signal",),
    ),
    Family(
        "gpu_exporter_feeder_processes",
        "gauge",
        "Processes that feed GPUs, over all GPUs, by how they are watched: whole (counters every "
        "4 s or more often), sampled (in turn, which takes longer: sums are exact and come later), "
        "or counted (there are more than 8192: nothing else is known of these, and counters of "
        "that GPU's workers are absent).",
        ("watched",),
    ),
    Family(
        "gpu_exporter_lost_samples_seconds_total",
        "counter",
        "Seconds of utilization samples that the driver's ring dropped before they were read, "
        "over all GPUs. Part of gpu_unobserved_seconds_total.",
    ),
    Family(
        "gpu_exporter_implausible_values_total",
        "counter",
        "Values that the driver gave and that cannot be, such as a utilization above 100 %. They "
        "are dropped: absent, or unobserved time.",
        ("collector",),
    ),
    Family(
        "gpu_exporter_cpu_wait_seconds_total",
        "counter",
        "Seconds for which the exporter's own threads were ready to run and had no CPU, added up "
        "(schedstat; every 10 s). Where one of them lacks it for a quarter of the time, what is "
        "read comes too late, and the signal own_cpu is 0.",
    ),
    Family(
        "gpu_exporter_driver_calls_total",
        "counter",
        "Calls made into the GPU driver.",
    ),
    Family(
        "gpu_exporter_driver_seconds_total",
        "counter",
        "Seconds spent inside calls into the GPU driver, over all threads.",
    ),
)


def _has_rings(gpu: GpuSnapshot) -> bool:
    reading = gpu.reading(Utilization)
    return reading is not None and reading.gpu.state is not RingState.UNSUPPORTED


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
"""By signal: the collector that reads it, and whether a GPU gives it."""
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
"""By signal: the collectors of which any reads it."""


def gpu_samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    """What is said of every GPU, whether it answers or not."""
    yield Sample("gpu_up", float(gpu.up))


def samples(state: State) -> Iterator[Sample]:
    """What is said of the exporter as a whole."""
    yield Sample("gpu_exporter_build_info", 1.0, (__version__, platform.python_version()))
    yield Sample("gpu_exporter_simulated", float(state.simulated))
    yield from _collectors(state.outcomes)
    for signal, value in sorted(signals(state).items()):
        yield Sample("gpu_exporter_signal_available", float(value), (signal,))
    for watched, count in sorted(state.host.watched.items()) if state.host else ():
        yield Sample("gpu_exporter_feeder_processes", float(count), (watched,))
    lost = sum(gpu.totals.lost_ns for gpu in state.gpus)
    yield Sample("gpu_exporter_lost_samples_seconds_total", lost / 1e9)
    for name, count in state.implausible.items():
        yield Sample("gpu_exporter_implausible_values_total", float(count), (name,))
    yield from optional("gpu_exporter_cpu_wait_seconds_total", state.waited_for_cpu_seconds)
    yield Sample("gpu_exporter_driver_calls_total", float(state.driver_calls))
    yield Sample("gpu_exporter_driver_seconds_total", state.driver_seconds)


def signals(state: State) -> dict[str, bool]:
    """Whether each signal is given: by every whole GPU that is up, if any is, and by the host."""
    found = signals_of_the_host(state)
    if state.starved is not None:
        found["own_cpu"] = not state.starved
    if state.kubelet.given is not None:
        found["kubelet"] = state.kubelet.given
    whole = [gpu for gpu in state.gpus if gpu.up and gpu.identity.parent_uuid is None]
    if not whole:
        return found
    missing = {signal for gpu in whole for signal in missing_signals(gpu, state.collectors)}
    found |= {signal: signal not in missing for signal in _read_by(state.collectors)}
    if state.xid_events is not None:
        found["xid_events"] = state.xid_events
    return found


def signals_of_the_host(state: State) -> dict[str, bool]:
    """Whether the host gives each signal that a collector which is on reads."""
    found = state.host.signals if state.host else {}
    wanted = (name for name, readers in _OF_THE_HOST.items() if readers & state.collectors)
    return {signal: found[signal] for signal in wanted if signal in found}


def missing_signals(gpu: GpuSnapshot, collectors: frozenset[str]) -> list[str]:
    """The signals that `collectors` read and the whole GPU `gpu` does not give."""
    return [signal for signal, given in _read_by(collectors).items() if not given(gpu)]


def reader_of(signal: str) -> str | None:
    """The collector that reads `signal` of a GPU; None for those of driver and host."""
    return _OF_GPUS[signal][0] if signal in _OF_GPUS else None


def _read_by(collectors: frozenset[str]) -> dict[str, Callable[[GpuSnapshot], bool]]:
    """Of the signals of GPUs those that are read at all: a collector may be switched off."""
    return {signal: given for signal, (reader, given) in _OF_GPUS.items() if reader in collectors}


def _collectors(outcomes: tuple[tuple[str, Outcome], ...]) -> Iterator[Sample]:
    by_name: dict[str, list[Outcome]] = {}
    for name, outcome in outcomes:
        by_name.setdefault(name, []).append(outcome)
    for name, found in sorted(by_name.items()):
        success = all(outcome.success for outcome in found)
        seconds = sum(outcome.seconds for outcome in found)
        times = [outcome.last_success for outcome in found if outcome.last_success is not None]
        yield Sample("gpu_exporter_collector_success", float(success), (name,))
        yield Sample("gpu_exporter_collector_duration_seconds", seconds, (name,))
        if len(times) == len(found):
            family = "gpu_exporter_collector_last_success_timestamp_seconds"
            yield Sample(family, min(times), (name,))
