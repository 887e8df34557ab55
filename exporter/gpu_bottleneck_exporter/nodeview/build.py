"""From the sampler's state to the node document."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpu_bottleneck_exporter import __version__
from gpu_bottleneck_exporter.collectors import memory, workload
from gpu_bottleneck_exporter.driver.about import DOWN
from gpu_bottleneck_exporter.driver.readings import (
    Clocks,
    Health,
    Link,
    Memory,
    Power,
    Processes,
    Thermal,
    Throttle,
)
from gpu_bottleneck_exporter.exposition import own
from gpu_bottleneck_exporter.host.machine import Machine
from gpu_bottleneck_exporter.nodeview import advice
from gpu_bottleneck_exporter.nodeview.history import GpuTime, Lately, Moment
from gpu_bottleneck_exporter.nodeview.model import (
    KEPT_BUSY,
    Change,
    CollectorHealth,
    Gpu,
    Host,
    Key,
    LastChange,
    Node,
    Refused,
)
from gpu_bottleneck_exporter.prescription.model import (
    NOTHING_KNOWN,
    REFUSALS,
    Outlook,
    Prescription,
    Refusal,
    Score,
)
from gpu_bottleneck_exporter.remedies import OF_SIGNALS, REMEDIES, RUNBOOK_OF_DOWN, RUNBOOKS
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.sampler import Sampler, SamplerState


def moment_of(state: SamplerState) -> Moment:
    """The counters from which shares are made."""
    machine = state.host.machine if state.host else None
    times = {_key(gpu): _time(gpu, state.collectors) for gpu in state.gpus}
    return Moment({key: one for key, one in times.items() if one}, machine or Machine())


def node_of(sampler: Sampler, state: SamplerState, lately: Lately) -> Node:
    """The node in `state`, with what it did lately."""
    reasons, remedies = sampler.down_reasons(), sampler.down_remedies()
    gpus = (_gpu(gpu, state.collectors, lately) for gpu in state.gpus)
    return Node(
        time_seconds=time.time(),
        window_seconds=lately.seconds,
        version=__version__,
        driver_version=state.system.driver_version,
        driver_status=sampler.status,
        # Until the sampler is ready, nothing is known about the driver.
        driver_remedy=sampler.remedy if sampler.ready and not state.gpus else None,
        simulated=state.about.simulated,
        host=_host(moment_of(state).machine, lately),
        gpus=tuple(one if one.up else _down(one, reasons, remedies) for one in gpus),
        signals=own.signals(state),
        signal_remedies=signal_remedies(state),
        collectors=tuple(
            CollectorHealth(
                collector=name, success=one.success, duration_seconds=one.seconds, error=one.error
            )
            for name, one in own.health(state.outcomes)
        ),
    )


def signal_remedies(state: SamplerState) -> dict[str, str]:
    """For missing signals: what that costs, or the remedy."""
    missing = (name for name, given in own.signals(state).items() if not given)
    return {name: OF_SIGNALS.get(name) or state.about.of_signal(name) for name in missing}


def _key(gpu: GpuSnapshot) -> Key:
    return Key(str(gpu.identity.index), gpu.identity.uuid)


def _time(gpu: GpuSnapshot, collectors: frozenset[str]) -> GpuTime | None:
    totals = gpu.totals
    if totals.observed_ns is None:
        return None
    stall_ns = (totals.stall_ns or {}) if "stall" in collectors else {}
    sm_active_ns = totals.active_ns.get("sm")
    return GpuTime(
        observed=totals.observed_ns / 1e9,
        busy=totals.busy_ns / 1e9,
        stalls={cause: ns / 1e9 for cause, ns in stall_ns.items()},
        sm_active=None if sm_active_ns is None else sm_active_ns / 1e9,
    )


def _gpu(gpu: GpuSnapshot, collectors: frozenset[str], lately: Lately) -> Gpu:
    who, key = gpu.identity, _key(gpu)
    shares = lately.gpus.get(key)
    verdict = shares.verdict if shares else None
    fields: dict[str, Any] = {}
    if shares:
        fields |= {
            "observed_seconds": shares.seconds,
            "busy_ratio": shares.busy,
            "sm_active_ratio": shares.sm_active,
            "stall_ratios": shares.stalls,
            "verdict": verdict,
            "verdict_seconds": lately.verdict_seconds.get(key),
        }
    if verdict and verdict != KEPT_BUSY:
        meaning, remedy = REMEDIES[verdict]
        fields |= {"cause": verdict, "meaning": meaning, "remedy": remedy}
        fields["runbook"] = RUNBOOKS.get(verdict)
        fields["evidence"] = (gpu.feeding.evidence or None) if gpu.feeding else None
    outlook = gpu.feeding.outlook if gpu.feeding else NOTHING_KNOWN
    return Gpu(
        gpu=key.gpu,
        uuid=key.uuid,
        name=who.name,
        mig_profile=who.mig_profile,
        up=gpu.up,
        xid_errors={str(code): count for code, count in sorted(gpu.errors.items())} or None,
        **fields,
        **_outlook(outlook, kept_busy=verdict == KEPT_BUSY),
        **_figures(gpu),
        **_processes(gpu, collectors),
    )


def _down(gpu: Gpu, reasons: Mapping[int, str], remedies: Mapping[int, str]) -> Gpu:
    index = int(gpu.gpu)
    remedy = remedies.get(index, DOWN)
    return replace(gpu, down_reason=reasons.get(index), remedy=remedy, runbook=RUNBOOK_OF_DOWN)


def _figures(gpu: GpuSnapshot) -> dict[str, Any]:
    """What the driver reads now."""
    power, thermal = gpu.reading(Power) or Power(), gpu.reading(Thermal) or Thermal()
    clocks, throttle = gpu.reading(Clocks) or Clocks(), gpu.reading(Throttle) or Throttle()
    return {
        "power_watts": power.watts,
        "power_limit_watts": power.limit_watts,
        "temperature_celsius": thermal.sensors.get("gpu"),
        "slowdown_temperature_celsius": thermal.limits.get("slowdown"),
        "memory_used_bytes": memory.used_bytes(gpu),
        "memory_total_bytes": (gpu.reading(Memory) or Memory()).total_bytes,
        "sm_clock_hertz": clocks.now.get("sm"),
        "sm_clock_max_hertz": clocks.maximum.get("sm"),
        "throttle_reasons": tuple(name for name, on in throttle.active.items() if on) or None,
        "trouble": tuple(_trouble(gpu)) or None,
    }


def _processes(gpu: GpuSnapshot, collectors: frozenset[str]) -> dict[str, Any]:
    """Who holds it, and for whom."""
    holders = gpu.reading(Processes)
    feeding = gpu.feeding if "feeders" in collectors else None
    owners = (
        {name: text for name, text in zip(workload.LABELS, labels, strict=True) if text}
        for labels in workload.owners(gpu)
    )
    return {
        "holder_pids": None if holders is None else tuple(p.pid for p in holders.processes),
        "processes": holders.count if holders else None,
        "workers": feeding.processes.get("worker") if feeding else None,
        "owners": tuple(owners) or None,
    }


def _trouble(gpu: GpuSnapshot) -> Iterator[str]:
    health, link = gpu.reading(Health) or Health(), gpu.reading(Link) or Link()
    if health.remap_failed:
        yield "a row remapping failed: replace the GPU"
    if health.remap_pending:
        yield "a row remapping is pending: reset the GPU"
    if uncorrected := health.ecc_errors.get("uncorrected"):
        yield f"uncorrected ECC errors: {uncorrected}"
    if link.width and link.width_max and link.width < link.width_max:
        yield f"PCIe link runs on {link.width} of {link.width_max} lanes"


def _outlook(outlook: Outlook, *, kept_busy: bool) -> dict[str, Any]:
    """What would help it, unless it is kept busy: the advice may have been given before."""
    advised = None if kept_busy else outlook.advice
    return {
        "prescription": _change(advised) if isinstance(advised, Prescription) else None,
        "prescription_refused": _refused(advised) if isinstance(advised, Refusal) else None,
        "last_change": _last_change(outlook.score) if outlook.score else None,
    }


def _change(advised: Prescription) -> Change:
    return Change(
        text=advice.in_full(advised),
        cause=advised.cause,
        knob=advised.knob,
        current_value=advised.current,
        value=advised.value,
        current_busy_ratio=advised.busy,
        busy_ratio=advised.predicted,
        busy_low_ratio=advised.low,
        busy_high_ratio=advised.high,
        at_most=advised.at_most,
        needs_cores=advised.cores or None,
        free_cores=advised.free_cores,
        needs_memory_bytes=advised.memory_bytes,
        free_memory_bytes=advised.free_bytes,
        needs_bytes_per_second=advised.bytes_per_second,
        then=advised.then,
    )


def _refused(advised: Refusal) -> Refused:
    return Refused(text=REFUSALS[advised.reason], reason=advised.reason)


def _last_change(score: Score) -> LastChange:
    return LastChange(
        text=advice.outcome(score),
        knob=score.knob,
        value_before=score.before,
        value_after=score.after,
        predicted_busy_ratio=score.predicted,
        predicted_low_ratio=score.low,
        predicted_high_ratio=score.high,
        busy_ratio=score.outcome,
        error_ratio=score.error,
    )


def _host(machine: Machine, lately: Lately) -> Host:
    shm = machine.shared_memory
    return Host(
        cpus=machine.cpus,
        cpu_busy_ratio=lately.cpu_busy,
        memory_total_bytes=machine.memory_total_bytes,
        memory_available_bytes=machine.memory_available_bytes,
        shm_size_bytes=shm.size_bytes if shm else None,
        shm_used_bytes=shm.used_bytes if shm else None,
        pressure_ratios=lately.pressure or None,
    )
