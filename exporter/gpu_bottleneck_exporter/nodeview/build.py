"""The node document of this process's sampler."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from gpu_bottleneck_exporter import __version__, remedies
from gpu_bottleneck_exporter.accounting.stall import NETWORK
from gpu_bottleneck_exporter.accounting.tick import UNATTRIBUTED, R
from gpu_bottleneck_exporter.collectors import device, tenants, workload
from gpu_bottleneck_exporter.driver import readings
from gpu_bottleneck_exporter.driver.about import DOWN, NOT_REPORTED
from gpu_bottleneck_exporter.host.machine import Machine
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.loop import Loop
from gpu_bottleneck_exporter.nodeview import model
from gpu_bottleneck_exporter.nodeview.history import (
    TREND_STEPS,
    CounterHistory,
    GpuTime,
    Moment,
    RecentShares,
    Shares,
)
from gpu_bottleneck_exporter.nodeview.processes import ProcessLister
from gpu_bottleneck_exporter.nodeview.thresholds import MIN_OBSERVED_SECONDS
from gpu_bottleneck_exporter.prescription.model import (
    NOTHING_KNOWN,
    NUM_WORKERS,
    Outlook,
    Prescription,
    Refusal,
)
from gpu_bottleneck_exporter.sampling.collector import seconds, seconds_by
from gpu_bottleneck_exporter.sampling.ledger import OTHER_TENANTS, GpuSnapshot, TenantTotals
from gpu_bottleneck_exporter.sampling.sampler import Sampler, SamplerState
from gpu_bottleneck_exporter.sampling.signals import health, signals, substitutes

log = logging.getLogger(__name__)
_throttle = LogThrottle(log)
RECORD_INTERVAL_SECONDS = 5.0
"""Step of a trend in seconds."""


class LocalNode:
    """The node document of a sampler. Thread-safe."""

    def __init__(
        self,
        sampler: Sampler,
        window_seconds: float = 60.0,
        judged_seconds: float = MIN_OBSERVED_SECONDS,
    ) -> None:
        """Shares cover `window_seconds`; a verdict needs `judged_seconds` of observed time."""
        trend_seconds = TREND_STEPS * RECORD_INTERVAL_SECONDS
        self._sampler = sampler
        self._processes = ProcessLister(sampler.procfs)
        self._history = CounterHistory(window_seconds, max(window_seconds, trend_seconds))
        self._judged_seconds = judged_seconds

    def start(self) -> None:
        """Start a daemon thread that records every 5 s."""
        Loop("recorder", self.record, RECORD_INTERVAL_SECONDS, log=log).start()

    def record(self) -> None:
        """Add the current counters to the history."""
        self._history.add(time.monotonic(), moment_of(self._sampler.state()))

    def read(self) -> model.Node:
        """Refresh the sampler and return the document."""
        self._sampler.refresh()
        state = self._sampler.state()
        recent = self._history.recent(time.monotonic(), moment_of(state))
        node = node_of(self._sampler, state, recent)
        return replace(node, gpus=tuple(map(self._completed, node.gpus, state.gpus)))

    def settle(self) -> None:
        """Report `MEASURING` until the first window ends."""
        self._judged_seconds = MIN_OBSERVED_SECONDS

    def _completed(self, gpu: model.GpuStatus, snapshot: GpuSnapshot) -> model.GpuStatus:
        """`gpu` with its processes, and without a premature verdict."""
        with _isolated(gpu):
            workers = snapshot.feeding.worker_pids if snapshot.feeding else ()
            processes = self._processes.read(gpu.holder_pids or (), workers)
            advice = gpu.prescription
            if advice and advice.knob == NUM_WORKERS:
                advice = replace(advice, pytorch=self._processes.use_pytorch(processes))
            gpu = replace(gpu, process_list=processes, prescription=advice)
        if gpu.verdict and (gpu.observed_seconds or 0.0) < self._judged_seconds:
            gpu = replace(gpu, verdict=model.MEASURING, cause=None, meaning=None, remedy=None)
            return replace(gpu, runbook=None, evidence=None, prescription=None)
        return gpu


def moment_of(state: SamplerState) -> Moment:
    """The counters in `state`."""
    times = {_key(gpu): _time(gpu, state.collectors) for gpu in state.gpus}
    return Moment({key: time for key, time in times.items() if time}, _machine(state))


def _machine(state: SamplerState) -> Machine:
    return (state.host.machine if state.host else None) or Machine()


def node_of(sampler: Sampler, state: SamplerState, recent: RecentShares) -> model.Node:
    """The document of `state`, with the `recent` shares."""
    return model.Node(
        time_seconds=time.time(),
        window_seconds=recent.seconds,
        version=__version__,
        node=sampler.node,
        driver_version=state.system.driver_version,
        driver_status=sampler.status,
        driver_remedy=sampler.remedy if sampler.ready and not state.gpus else None,
        simulated=state.about.simulated,
        host=_host(_machine(state), recent),
        gpus=tuple(_gpu(gpu, sampler, state, recent) for gpu in state.gpus),
        signals=signals(state),
        signal_remedies=signal_remedies(state),
        collectors=tuple(
            model.CollectorHealth(name, result.success, result.seconds, result.error)
            for name, result in health(state)
        ),
    )


def signal_remedies(state: SamplerState) -> dict[str, str]:
    """Consequence and substitute, or remedy, by missing signal."""
    missing = (name for name, available in signals(state).items() if not available)
    host = remedies.SIGNAL_REMEDIES
    return {name: host.get(name) or _gpu_signal_remedy(name, state) for name in missing}


def _gpu_signal_remedy(signal: str, state: SamplerState) -> str:
    reason = state.about.signals.get(signal, NOT_REPORTED)
    return ": ".join(filter(None, (reason, "; ".join(substitutes(signal, state.gpus)))))


def _key(gpu: GpuSnapshot) -> model.Key:
    return model.Key(str(gpu.identity.index), gpu.identity.uuid)


def _time(gpu: GpuSnapshot, collectors: frozenset[str]) -> GpuTime | None:
    totals = gpu.totals
    if totals.observed_ns is None:
        return None
    stall_ns = (totals.stall_ns or {}) if "stall" in collectors else {}
    sm_active, engines = seconds(totals.active_ns.get("sm")), seconds_by(totals.engine_ns)
    observed, busy = totals.observed_ns / 1e9, totals.busy_ns / 1e9
    by_tenant = totals.tenants if "tenants" in collectors else {}
    return GpuTime(observed, busy, seconds_by(stall_ns), sm_active, engines, by_tenant)


def _gpu(
    gpu: GpuSnapshot, sampler: Sampler, state: SamplerState, recent: RecentShares
) -> model.GpuStatus:
    identity, key = gpu.identity, _key(gpu)
    shown = model.GpuStatus(
        gpu=key.gpu,
        uuid=key.uuid,
        name=identity.name,
        mig_profile=identity.mig_profile,
        counted_with=identity.counted_with,
        up=gpu.up,
    )
    with _isolated(shown):
        xids = {str(code): count for code, count in sorted(gpu.errors.items())}
        trouble = tuple(_trouble(gpu, state)) or None
        full = replace(_measured(shown, gpu), xid_errors=xids or None, trouble=trouble)
        full = _held(full, gpu, state.collectors)
        return _explained(full, gpu, recent, sampler) if gpu.up else _down(full, gpu, sampler)
    return shown


def _isolated(gpu: model.GpuStatus) -> AbstractContextManager[None]:
    """Log errors, so that other GPUs are unaffected."""
    return _throttle.guarded("describing a GPU", gpu=gpu.gpu, uuid=gpu.uuid)


def _down(shown: model.GpuStatus, gpu: GpuSnapshot, sampler: Sampler) -> model.GpuStatus:

    down, runbook = sampler.down().get(gpu.identity.index), remedies.RUNBOOK_OF_DOWN
    reason, remedy = (down.reason, down.remedy) if down else (None, DOWN)
    return replace(shown, down_reason=reason, remedy=remedy, runbook=runbook)


def _explained(
    shown: model.GpuStatus, gpu: GpuSnapshot, recent: RecentShares, sampler: Sampler
) -> model.GpuStatus:

    feeding = gpu.feeding
    outlook = feeding.outlook if feeding else NOTHING_KNOWN
    lines = sampler.lines.result(gpu.identity.uuid) if sampler.lines else None
    shown = replace(shown, last_change=outlook.score, idle_lines=lines)
    if shares := recent.gpus.get(shown.key):
        shown = replace(
            shown,
            observed_seconds=shares.observed_seconds,
            busy_ratio=shares.busy_ratio,
            stall_ratios=shares.stall_ratios,
            sm_active_ratio=shares.sm_active_ratio,
            engine_ratios=shares.engine_ratios,
            trend=shares.trend,
            verdict=shares.verdict,
            verdict_seconds=shares.verdict_seconds,
            tenants=tuple(_tenants(gpu, shares)) or None,
        )
    if shown.verdict == model.KEPT_BUSY:  # the advice may be older than the verdict
        return shown
    if cause := shown.verdict:
        findings = feeding.evidence if feeding else ()
        evidence = tuple(text for wait, text in findings if wait == cause) or None
        shown = replace(_caused(shown, cause, outlook), evidence=evidence)
    if isinstance(outlook.advice, Prescription):
        return replace(shown, prescription=outlook.advice)
    return replace(shown, prescription_refused=outlook.advice)


def _tenants(gpu: GpuSnapshot, shares: Shares) -> Iterator[model.TenantStatus]:
    owners, totals = tenants.owners(gpu), shares.tenants
    busy_ns = sum(total.busy_ns for total in totals.values())
    none_is_attributed = busy_ns == totals.get(UNATTRIBUTED, TenantTotals()).busy_ns

    def position(name: str) -> tuple[bool, float, str]:
        share = totals[name].busy_ns / (busy_ns or 1)
        # Rounded, as equal tenants would change places all the time.
        return name in (OTHER_TENANTS, UNATTRIBUTED), -round(share, 2), name

    for name in sorted(totals, key=position):
        total = totals[name]
        is_known = busy_ns and (name == UNATTRIBUTED or not none_is_attributed)
        stalls = sorted(total.stall_ns.items(), key=lambda wait: -wait[1])
        yield model.TenantStatus(
            tenant=name,
            owner=_labels(owners.get(name, ())) or None,
            busy_seconds=total.busy_ns / 1e9,
            busy_share_ratio=total.busy_ns / busy_ns if is_known else None,
            stall_seconds={wait: ns / 1e9 for wait, ns in stalls if ns},
        )


def _labels(texts: Sequence[str]) -> dict[str, str]:
    return {name: text for name, text in zip(workload.LABELS, texts, strict=False) if text}


def _caused(shown: model.GpuStatus, cause: str, outlook: Outlook) -> model.GpuStatus:

    reason = outlook.advice.reason if isinstance(outlook.advice, Refusal) else ""
    advice = remedies.MEANINGS[cause], remedies.REMEDIES[cause], remedies.RUNBOOKS.get(cause)
    if (shown.busy_ratio or 0.0) >= remedies.MIN_WORKING_RATIO:
        advice = remedies.AT_WORK.get(cause, advice)
    meaning, remedy, runbook = advice
    observation = outlook.seen
    if observation and observation.main_network > observation.waits(NETWORK) / 2:
        remedy = remedies.REMEDIES_OF_MAIN.get(cause, remedy)
    return replace(
        shown,
        cause=cause,
        meaning=meaning,
        remedy=remedies.REMEDIES_BY_REFUSAL.get(reason, remedy),
        runbook="GpuStarved-worker_churn" if reason == "churn" else runbook,
    )


def _reading(gpu: GpuSnapshot, kind: type[R]) -> R:

    return gpu.reading(kind) or kind()


def _measured(shown: model.GpuStatus, gpu: GpuSnapshot) -> model.GpuStatus:

    power, thermal = _reading(gpu, readings.Power), _reading(gpu, readings.Thermal)
    clocks, throttle = _reading(gpu, readings.Clocks), _reading(gpu, readings.Throttle)
    return replace(
        shown,
        power_watts=power.watts,
        power_limit_watts=power.limit_watts,
        temperature_celsius=thermal.sensors.get("gpu"),
        slowdown_temperature_celsius=thermal.limits.get("slowdown"),
        temperature_margin_celsius=thermal.margin,
        memory_used_bytes=device.used_bytes(gpu),
        memory_total_bytes=_reading(gpu, readings.Memory).total_bytes,
        sm_clock_hertz=clocks.now.get("sm"),
        sm_clock_max_hertz=clocks.maximum.get("sm"),
        throttle_reasons=tuple(name for name, on in throttle.active.items() if on) or None,
    )


def _held(shown: model.GpuStatus, gpu: GpuSnapshot, collectors: frozenset[str]) -> model.GpuStatus:

    holders = gpu.reading(readings.Processes)
    feeding = gpu.feeding if "feeders" in collectors else None
    return replace(
        shown,
        holder_pids=None if holders is None else tuple(p.pid for p in holders.processes),
        processes=holders.count if holders else None,
        workers=feeding.processes.get("worker") if feeding else None,
        serving=feeding.serving if feeding else None,
        owners=tuple(map(_labels, workload.owners(gpu))) or None,
    )


def _trouble(gpu: GpuSnapshot, state: SamplerState) -> Iterator[str]:
    sources = {readings.Utilization, readings.UnitActivity}
    # Under MIG, the instances have readings.
    readable = {
        other.identity.index for other in state.gpus if not sources.isdisjoint(other.readings)
    }
    enabled = "utilization" in state.collectors and gpu.readings
    if enabled and gpu.identity.index not in readable:
        yield "the driver reports no busy time; `check` names the reason"
    for problem, remedy in _reading(gpu, readings.Condition).problems.items():
        yield f"{problem}: {remedy}"
    yield from _memory_trouble(gpu)
    yield from _link_trouble(gpu, state.gpus)


def _memory_trouble(gpu: GpuSnapshot) -> Iterator[str]:
    if gpu.unlisted_pids is not None:
        pids = ", ".join(map(str, gpu.unlisted_pids)) or "no readable process"
        yield f"memory is in use, but the driver lists no process; open in: {pids}"
    health = _reading(gpu, readings.Health)
    if health.remap_failed:
        yield "a row remapping failed: replace the GPU"
    if health.remap_pending:
        yield "a row remapping is pending: reset the GPU"
    if uncorrected := health.ecc_errors.get("uncorrected"):
        yield f"uncorrected ECC errors: {uncorrected}"


def _link_trouble(gpu: GpuSnapshot, gpus: Iterable[GpuSnapshot]) -> Iterator[str]:
    """Fewer PCIe lanes than this GPU, or another of its model, has used."""
    width, name = _reading(gpu, readings.Link).width, gpu.identity.name
    if width is None:
        return
    if width < (most := gpu.most_lanes or 0):
        yield f"PCIe link runs on {width} of {most} lanes"
        return
    models = (peer.most_lanes or 0 for peer in gpus if name and peer.identity.name == name)
    if width < (most := max(models, default=0)):
        yield f"PCIe link runs on {width} lanes, but on {most} for another {name} here"


def _host(machine: Machine, recent: RecentShares) -> model.Host:
    shm = machine.shared_memory
    return model.Host(
        cpus=machine.cpus,
        cpu_busy_ratio=recent.cpu_busy,
        memory_total_bytes=machine.memory_total_bytes,
        memory_available_bytes=machine.memory_available_bytes,
        shm_size_bytes=shm.size_bytes if shm else None,
        shm_used_bytes=shm.used_bytes if shm else None,
        pressure_ratios=recent.pressure or None,
    )
