"""`check --diagnose`: watch for a while and say, without any Prometheus, why each GPU idles."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.commands.check import COMPLETE, NO_GPU, Report, none_found, report
from gpu_bottleneck_exporter.commands.watch import watched
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.nodeview.model import Gpu, named, parts_of
from gpu_bottleneck_exporter.nodeview.text import explained
from gpu_bottleneck_exporter.settings import Settings

_BAR = 30


def diagnose(settings: Settings, open_driver: Callable[[], Driver], seconds: float) -> Report:
    """Watch for `seconds`."""
    node = watched(settings, open_driver, seconds)
    if not node.gpus:
        return none_found(node)
    lines = [line for gpu in node.gpus for line in lines_of(gpu)]
    return report(COMPLETE if any(gpu.up for gpu in node.gpus) else NO_GPU, lines, node)


def lines_of(gpu: Gpu) -> Iterator[str]:
    """What people are told of one GPU, and an empty line."""
    mig = f" MIG {gpu.mig_profile}" if gpu.mig_profile else ""
    yield f"GPU {gpu.gpu}{mig}  {gpu.name or 'unknown'}  {_workload(gpu)}"
    if gpu.busy_ratio is not None:
        for name, part in parts_of(gpu.busy_ratio, named(gpu.stall_ratios or {})).items():
            yield f"  {name:13} {'█' * round(part * _BAR):{_BAR}} {part:6.1%}"
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
