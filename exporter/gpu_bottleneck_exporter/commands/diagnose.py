"""`check --diagnose`: watch for a while and say, without any Prometheus, why each GPU idles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.commands.check import none_found, sampled
from gpu_bottleneck_exporter.commands.report import COMPLETE, NO_GPU, Report
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.nodeview.advice import outcome, prescription
from gpu_bottleneck_exporter.nodeview.document import diagnosis
from gpu_bottleneck_exporter.nodeview.history import since
from gpu_bottleneck_exporter.nodeview.local import counted
from gpu_bottleneck_exporter.nodeview.model import KEPT_BUSY, GpuReading, GpuView
from gpu_bottleneck_exporter.remedies import REMEDIES
from gpu_bottleneck_exporter.settings import Settings

_BAR = 30
_WARM_UP_TICKS = 3
Progress = Callable[[float], None]


def diagnose(
    settings: Settings, open_driver: Callable[[], Driver], seconds: float, progress: Progress
) -> Report:
    """Watch for `seconds`; `progress` is told now and then how many seconds are left."""
    sampler = sampled(settings, open_driver, ticks=_WARM_UP_TICKS)
    before = counted(sampler.state())
    if before.gpus:
        _wait(seconds, progress)
    now, sentence, remedy = counted(sampler.state()), sampler.status, sampler.remedy
    sampler.stop()
    if not now.gpus:
        return none_found(sentence, remedy)
    gpus = since(before, now)
    lines = tuple(line for gpu in gpus for line in lines_of(gpu))
    status = COMPLETE if any(gpu.now.up for gpu in gpus) else NO_GPU
    return Report(lines, status, {"gpus": [diagnosis(gpu) for gpu in gpus]})


def lines_of(gpu: GpuView) -> Iterator[str]:
    """What people are told of one GPU, and an empty line."""
    now, shares = gpu.now, gpu.shares
    mig = f" MIG {now.mig_profile}" if now.mig_profile else ""
    yield f"GPU {now.key.gpu}{mig}  {now.name or 'unknown'}  {_workload(now)}"
    if shares is None:
        yield "  nothing was observed" if now.up else "  down"
    else:
        yield from (_line(*part) for part in ((KEPT_BUSY, shares.busy), *shares.named.items()))
        yield from _verdict(gpu)
    yield ""


def _verdict(gpu: GpuView) -> Iterator[str]:
    if gpu.cause is None:
        known = gpu.shares and gpu.shares.verdict
        yield f"  verdict       {'kept busy' if known else 'what it waits for is unknown'}"
    else:
        meaning, remedy = REMEDIES[gpu.cause]
        yield f"  likely cause  {gpu.cause}: {meaning}"
        yield f"  try first     {remedy}"
    if (advice := prescription(gpu)) is not None:
        yield f"  prescription  {advice}"
    if gpu.now.last_change:
        yield f"  last change   {outcome(gpu.now.last_change)}"
    for number, seen in enumerate(gpu.now.evidence if gpu.cause else ()):
        yield f"  {'' if number else 'seen':13} {seen}"


def _workload(gpu: GpuReading) -> str:
    if gpu.pids is None:
        return "(holders unknown)"
    if gpu.pids:
        return f"held by process {', '.join(map(str, gpu.pids))}"
    # Processes of other PID namespaces are not told to us.
    unseen = gpu.counters and gpu.counters.stalls.get(UNKNOWN)
    return "held by no process that can be seen" if unseen else "held by no process"


def _line(name: str, part: float) -> str:
    return f"  {name:13} {'█' * round(part * _BAR):{_BAR}} {part:6.1%}"


def _wait(seconds: float, progress: Progress) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        progress(left)
        time.sleep(min(left, 1.0))
