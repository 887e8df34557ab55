"""Availability of signals, their substitutes, and health of collectors."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache

from gpu_bottleneck_exporter.driver import readings
from gpu_bottleneck_exporter.sampling.gpureader import Outcome
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.sampler import SamplerState

BUSY_TIME = "busy_time"
"""Signal: busy time is known from any source."""
GPU_SIGNALS: dict[str, tuple[str, type[readings.Reading], str | None]] = {
    BUSY_TIME: ("utilization", readings.Utilization, None),
    "utilization_samples": ("utilization", readings.Utilization, "gpu"),
    "gpm": ("activity", readings.UnitActivity, None),
    "energy": ("power", readings.Power, "energy_joules"),
    "throttle_counters": ("throttle", readings.Throttle, "spent_ns"),
    "processes": ("processes", readings.Processes, None),
}
"""Collector, reading and required field by signal."""
_SUBSTITUTES: dict[str, tuple[tuple[type[readings.Reading], str, str], ...]] = {
    "utilization_samples": (
        (readings.Utilization, "gpu_percent", "one reading per tick, which is coarser"),
        (readings.UnitActivity, "graphics", "busy time comes from GPM"),
    ),
    "energy": ((readings.Power, "watts", "use gpu_power_watts"),),
    "throttle_counters": ((readings.Throttle, "active", "only gpu_throttle_active is available"),),
}
"""Replacements by signal: reading, field and phrase for users."""
_HOST_SIGNALS: dict[str, set[str]] = {
    "psi_host": {"host"},
    "psi_cgroup": {"feeders"},
    "schedstat": {"stall", "feeders"},
    "wait_channel": {"stall", "feeders"},
    "connections": {"stall"},
    "all_threads": {"stall"},
    "all_sockets": {"stall"},
    "all_processes": {"stall", "feeders"},
    "process_io": {"stall", "feeders", "workload"},
    "host_pids": {"stall", "feeders", "workload", "host"},
    "cgroup_cpu": {"stall", "feeders"},
    "cgroup_memory": {"stall", "feeders"},
}
"""Collectors by signal."""


def signals(state: SamplerState) -> dict[str, bool]:
    """Availability of the signals that enabled collectors read."""
    of_host = state.host.signals if state.host else {}
    available = {
        signal: of_host[signal]
        for signal, readers in _HOST_SIGNALS.items()
        if signal in of_host and readers & state.collectors
    }
    if state.starved is not None:
        available["own_cpu"] = not state.starved
    if state.kubelet.given is not None:
        available["kubelet"] = state.kubelet.given
    has_boards = any(map(_is_board, state.gpus))
    for signal, (reader, _, _) in GPU_SIGNALS.items():
        if has_boards and reader in state.collectors:
            available[signal] = not lacking(state.gpus, signal)
    if has_boards and state.error_events is not None:
        available["xid_events"] = state.error_events
    return available


def lacking(gpus: Iterable[GpuSnapshot], signal: str) -> list[GpuSnapshot]:
    """Boards that are up without GPU signal `signal` on any MIG instance."""
    gpus = [gpu for gpu in gpus if gpu.up]
    providers = {gpu.identity.index for gpu in gpus if _provides(gpu, signal)}
    return [gpu for gpu in gpus if _is_board(gpu) and gpu.identity.index not in providers]


def _provides(gpu: GpuSnapshot, signal: str) -> bool:
    if signal == BUSY_TIME:
        return gpu.totals.observed_ns is not None
    _, kind, name = GPU_SIGNALS[signal]
    return _has(gpu, kind, name)


def substitutes(signal: str, gpus: Collection[GpuSnapshot]) -> tuple[str, ...]:
    """Distinct phrases on replacements for `signal` where it is missing."""
    if signal not in _SUBSTITUTES:
        return ()
    choices, phrases = _SUBSTITUTES[signal], []
    for board in lacking(gpus, signal):
        parts = [gpu for gpu in gpus if gpu.up and gpu.identity.index == board.identity.index]
        usable = (text for kind, name, text in choices if any(_has(g, kind, name) for g in parts))
        phrases.append(next(usable, None))
    return tuple(dict.fromkeys(filter(None, phrases)))


def _is_board(gpu: GpuSnapshot) -> bool:
    return gpu.up and gpu.identity.parent_uuid is None


def _has(gpu: GpuSnapshot, kind: type[readings.Reading], name: str | None) -> bool:
    reading = gpu.reading(kind)
    value = getattr(reading, name, None) if name else reading
    return value is not None and value != {}


def health(state: SamplerState) -> tuple[tuple[str, Outcome], ...]:
    """Outcomes by collector: total seconds, oldest success, first error."""
    return _health(state.outcomes)


@lru_cache(maxsize=1)
def _health(outcomes: tuple[tuple[str, Outcome], ...]) -> tuple[tuple[str, Outcome], ...]:
    """Cached, as a scrape needs it three times."""
    by_name: dict[str, list[Outcome]] = {}
    for name, outcome in outcomes:
        by_name.setdefault(name, []).append(outcome)
    overall = []
    for name, results in sorted(by_name.items()):
        times = [result.last_success for result in results if result.last_success is not None]
        oldest = min(times) if len(times) == len(results) else None
        error = next((result.error for result in results if result.error), None)
        overall.append((name, Outcome(sum(result.seconds for result in results), oldest, error)))
    return tuple(overall)
