"""`check --diagnose`: watch for a while and say, without any Prometheus, why each GPU idles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpu_bottleneck_exporter.check import COMPLETE, NO_GPU, Report, none_found, sampled
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.driver.readings import Processes
from gpu_bottleneck_exporter.ledger import GpuSnapshot, Totals
from gpu_bottleneck_exporter.remedies import REMEDIES
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.stall import UNKNOWN

_BAR = 30
_ENOUGH = 0.9
"""A GPU busy for so much of the time has no bottleneck to name."""
_WORTH_A_LINE = 0.005
_WARM_UP_TICKS = 3
Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Share:
    """What one GPU did between two snapshots, in shares of the observed time."""

    gpu: GpuSnapshot
    observed_seconds: float
    busy: float
    stalls: Mapping[str, float]

    @property
    def cause(self) -> str | None:
        """What it waited on most; None when it hardly waited."""
        if self.busy >= _ENOUGH or not self.stalls:
            return None
        return max(self.stalls, key=lambda name: self.stalls[name])


def diagnose(
    settings: Settings, open_driver: Callable[[], Driver], seconds: float, progress: Progress
) -> Report:
    """Watch for `seconds`; `progress` is told now and then how many seconds are left."""
    sampler = sampled(settings, open_driver, ticks=_WARM_UP_TICKS)
    before = {gpu.identity.uuid: gpu.totals for gpu in sampler.state().gpus}
    if before:
        _wait(seconds, progress)
    state, status, cause = sampler.state(), sampler.status, sampler.cause
    sampler.stop()
    if not state.gpus:
        return none_found(status, cause)
    lines = [line for gpu in state.gpus for line in _report(gpu, before.get(gpu.identity.uuid))]
    return Report(tuple(lines), COMPLETE if any(gpu.up for gpu in state.gpus) else NO_GPU)


def share(gpu: GpuSnapshot, before: Totals | None) -> Share | None:
    """What `gpu` did since `before`; None when nothing was observed."""
    now = gpu.totals
    if before is None or now.observed_ns is None:
        return None
    observed = now.observed_ns - (before.observed_ns or 0)
    if observed <= 0:
        return None
    old = before.stall_ns or {}
    stalls = {
        name: (value - old.get(name, 0)) / observed for name, value in (now.stall_ns or {}).items()
    }
    return Share(
        gpu,
        observed / 1e9,
        (now.busy_ns - before.busy_ns) / observed,
        {name: part for name, part in stalls.items() if part > 0},
    )


def _report(gpu: GpuSnapshot, before: Totals | None) -> Iterator[str]:
    who = gpu.identity
    mig = f" MIG {who.mig_profile}" if who.parent_uuid else ""
    yield f"GPU {who.index}{mig}  {who.name or 'unknown'}  {_workload(gpu)}"
    found = share(gpu, before)
    if found is None:
        yield "  nothing was observed" if gpu.up else "  down"
        yield ""
        return
    yield _line("busy", found.busy)
    for name, part in sorted(found.stalls.items(), key=lambda item: -item[1]):
        if part >= _WORTH_A_LINE:
            yield _line(name, part)
    yield from _verdict(found)
    yield ""


def _verdict(found: Share) -> Iterator[str]:
    cause = found.cause
    if cause is None:
        yield "  verdict       kept busy"
        return
    meaning, remedy = REMEDIES[cause]
    yield f"  likely cause  {cause}: {meaning}"
    yield f"  try first     {remedy}"
    feeding = found.gpu.feeding
    for number, seen in enumerate(feeding.evidence if feeding else ()):
        yield f"  {'' if number else 'seen':13} {seen}"


def _workload(gpu: GpuSnapshot) -> str:
    processes = gpu.reading(Processes)
    if processes is None:
        return "(holders unknown)"
    pids = ", ".join(str(process.pid) for process in processes.processes)
    if pids:
        return f"held by process {pids}"
    # Processes of other PID namespaces are not told to us.
    stalls = gpu.totals.stall_ns or {}
    return "held by nobody that can be seen" if stalls.get(UNKNOWN) else "held by nobody"


def _line(name: str, part: float) -> str:
    return f"  {name:13} {'█' * round(part * _BAR):{_BAR}} {part:6.1%}"


def _wait(seconds: float, progress: Progress) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        progress(left)
        time.sleep(min(left, 1.0))
