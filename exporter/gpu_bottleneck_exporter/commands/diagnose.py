"""`check --diagnose`: watch for a while and say, without any Prometheus, why each GPU idles."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.commands.check import none_found, sampled
from gpu_bottleneck_exporter.commands.report import COMPLETE, NO_GPU, Report
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.nodeview.local import LocalNode
from gpu_bottleneck_exporter.nodeview.model import Gpu, Node, named, parts_of
from gpu_bottleneck_exporter.nodeview.text import explained
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.settings import Settings

_BAR = 30
_WARM_UP_TICKS = 3
Progress = Callable[[float], None]


def diagnose(
    settings: Settings, open_driver: Callable[[], Driver], seconds: float, progress: Progress
) -> Report:
    """Watch for `seconds`; `progress` is told now and then how many seconds are left."""
    node = watched(settings, open_driver, seconds, progress)
    if not node.gpus:
        return none_found(node)
    lines = tuple(line for gpu in node.gpus for line in lines_of(gpu))
    return Report(lines, COMPLETE if any(gpu.up for gpu in node.gpus) else NO_GPU, document(node))


def watched(
    settings: Settings,
    open_driver: Callable[[], Driver],
    seconds: float,
    progress: Progress = lambda _: None,
) -> Node:
    """This machine after a few ticks and then `seconds`, which its shares cover."""
    sampler = sampled(settings, open_driver, _WARM_UP_TICKS)
    local = LocalNode(sampler, math.inf)
    local.record()
    end = time.monotonic() + (seconds if sampler.state().gpus else 0)
    while (left := end - time.monotonic()) > 0:
        progress(left)
        time.sleep(min(left, 1.0))
        local.record()  # a GPU that comes later is measured from there
    node = local.read()
    sampler.stop()
    return node


def lines_of(gpu: Gpu) -> Iterator[str]:
    """What people are told of one GPU, and an empty line."""
    mig = f" MIG {gpu.mig_profile}" if gpu.mig_profile else ""
    yield f"GPU {gpu.gpu}{mig}  {gpu.name or 'unknown'}  {_workload(gpu)}"
    if gpu.busy_ratio is not None:
        waits = named(gpu.stall_ratios or {})
        yield from (_line(*part) for part in parts_of(gpu.busy_ratio, waits).items())
    yield from (f"  {name:13} {text}" for name, text in explained(gpu))
    yield ""


def _workload(gpu: Gpu) -> str:
    if gpu.holder_pids is None:
        return "(holders unknown)"
    if gpu.holder_pids:
        return f"held by process {', '.join(map(str, gpu.holder_pids))}"
    # Processes of other PID namespaces are not told to us.
    unseen = (gpu.stall_ratios or {}).get(UNKNOWN)
    return "held by no process that can be seen" if unseen else "held by no process"


def _line(name: str, part: float) -> str:
    return f"  {name:13} {'█' * round(part * _BAR):{_BAR}} {part:6.1%}"
