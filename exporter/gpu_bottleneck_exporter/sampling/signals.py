"""Signals that a sampler has, what stands in for missing ones, and the health of collectors."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache

from gpu_bottleneck_exporter.driver import readings
from gpu_bottleneck_exporter.sampling.gpureader import Outcome
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.sampler import SamplerState

BUSY_TIME = "busy_time"
"""Signal of a GPU whose busy time is known, from whatever source."""
OF_GPUS: dict[str, tuple[str, type[readings.Reading], str | None]] = {
    BUSY_TIME: ("utilization", readings.Utilization, None),
    "utilization_samples": ("utilization", readings.Utilization, "gpu"),
    "gpm": ("activity", readings.Activity, None),
    "energy": ("power", readings.Power, "energy_joules"),
    "throttle_counters": ("throttle", readings.Throttle, "spent_ns"),
    "processes": ("processes", readings.Processes, None),
}
"""By signal: the collector that reads it, the reading, and the part of it that must be there."""
_INSTEAD: dict[str, tuple[tuple[type[readings.Reading], str, str], ...]] = {
    "utilization_samples": (
        (readings.Utilization, "gpu_percent", "one reading per tick counts, which is coarser"),
        (readings.Activity, "graphics", "busy time comes from GPM"),
    ),
    "energy": ((readings.Power, "watts", "use gpu_power_watts"),),
    "throttle_counters": ((readings.Throttle, "active", "only gpu_throttle_active is left"),),
}
"""Stand-ins by signal: reading and part, the first choice first, and the phrase that names it."""
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


def signals(state: SamplerState) -> dict[str, bool]:
    """Whether each signal that an enabled collector reads is available: from host and all GPUs."""
    of_host = state.host.signals if state.host else {}
    wanted = (name for name, readers in _OF_THE_HOST.items() if readers & state.collectors)
    found = {signal: of_host[signal] for signal in wanted if signal in of_host}
    if state.starved is not None:
        found["own_cpu"] = not state.starved
    if state.kubelet.given is not None:
        found["kubelet"] = state.kubelet.given
    whole = [gpu for gpu in state.gpus if _is_board(gpu)]
    for signal, (reader, _, _) in OF_GPUS.items():
        if whole and reader in state.collectors:
            found[signal] = not lacking(state.gpus, signal)
    if whole and state.error_events is not None:
        found["xid_events"] = state.error_events
    return found


def lacking(gpus: Iterable[GpuSnapshot], signal: str) -> list[GpuSnapshot]:
    """The boards that are up and do not provide `signal`, one of `OF_GPUS`.

    Under MIG, a board provides what any of its instances does, which have its index.
    """
    gpus = [gpu for gpu in gpus if gpu.up]
    given = {gpu.identity.index for gpu in gpus if _gives(gpu, signal)}
    return [gpu for gpu in gpus if _is_board(gpu) and gpu.identity.index not in given]


def _gives(gpu: GpuSnapshot, signal: str) -> bool:
    if signal == BUSY_TIME:
        return gpu.totals.observed_ns is not None
    _, kind, part = OF_GPUS[signal]
    return _has(gpu, kind, part)


def substitutes(signal: str, gpus: Collection[GpuSnapshot]) -> tuple[str, ...]:
    """What stands in for `signal` on those of the GPUs that are up and lack it, each once."""
    if signal not in _INSTEAD:
        return ()
    choices, phrases = _INSTEAD[signal], []
    for board in lacking(gpus, signal):
        parts = [gpu for gpu in gpus if gpu.up and gpu.identity.index == board.identity.index]
        usable = (text for kind, part, text in choices if any(_has(g, kind, part) for g in parts))
        phrases.append(next(usable, None))
    return tuple(dict.fromkeys(filter(None, phrases)))


def _is_board(gpu: GpuSnapshot) -> bool:
    """Whether a GPU is up, and no MIG instance."""
    return gpu.up and gpu.identity.parent_uuid is None


def _has(gpu: GpuSnapshot, kind: type[readings.Reading], part: str | None) -> bool:
    reading = gpu.reading(kind)
    value = getattr(reading, part, None) if part else reading
    return value is not None and value != {}


def health(state: SamplerState) -> tuple[tuple[str, Outcome], ...]:
    """Each collector and its outcome over all GPUs: seconds summed, the success longest ago."""
    return _health(state.outcomes)


@lru_cache(maxsize=1)
def _health(outcomes: tuple[tuple[str, Outcome], ...]) -> tuple[tuple[str, Outcome], ...]:
    """The same; a scrape asks three times for that of one state."""
    by_name: dict[str, list[Outcome]] = {}
    for name, outcome in outcomes:
        by_name.setdefault(name, []).append(outcome)
    overall = []
    for name, found in sorted(by_name.items()):
        times = [one.last_success for one in found if one.last_success is not None]
        longest_ago = min(times) if len(times) == len(found) else None
        error = next((one.error for one in found if one.error), None)
        overall.append((name, Outcome(sum(one.seconds for one in found), longest_ago, error)))
    return tuple(overall)
