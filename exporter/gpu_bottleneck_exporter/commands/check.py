"""`check`: what was found here, what is missing, and what to do about it.

With `--diagnose`: why each GPU idles, without any Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.commands.watch import sampled, wait, watched
from gpu_bottleneck_exporter.driver import about
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.exposition import own
from gpu_bottleneck_exporter.jsontext import Document
from gpu_bottleneck_exporter.nodeview.build import LocalNode, signal_remedies
from gpu_bottleneck_exporter.nodeview.model import Gpu, Node, named, parts_of
from gpu_bottleneck_exporter.nodeview.text import explained, label, verdict
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.sampler import SamplerState
from gpu_bottleneck_exporter.settings import Settings

COMPLETE, WITH_GAPS, NO_GPU = 0, 1, 2
"""Exit statuses."""
_TICKS = 3
"""Means take two readings; the first one of a GPU that wakes up takes longer than a tick."""
_BAR = 30
"""Cells of a whole bar: the line fits 80 columns."""


class Gap(NamedTuple):
    """Something that is missing, and how to fix it."""

    subject: str
    """A signal, a collector, `gpu 0`, or `GPU metrics`."""
    problem: str
    remedy: str
    where: tuple[str, ...] = ()
    """What does not give it: GPUs, the driver, the host."""

    @property
    def lines(self) -> tuple[str, str]:
        """The report for people."""
        return f"gap             {self.subject}: {self.problem}", f"  remedy        {self.remedy}"


class Report(NamedTuple):
    """The exit status, lines for people, and the same as a document for programs."""

    status: int
    lines: Sequence[str]
    document: Document


def check(settings: Settings, open_driver: Callable[[], Driver]) -> Report:
    """Sample for a few ticks and report what came of it."""
    with sampled(settings, open_driver, _TICKS) as sampler:
        wait(lambda: not sampler.state().kubelet.pending)
        state, node = sampler.state(), LocalNode(sampler).read()
        missing = [*missing_signals(state, sampler.forbidden())]
    if not node.gpus:
        return _none_found(node)
    gaps = [*_down(node), *missing, *_failures(state)]
    off = sorted(settings.without)
    return _report(_lines(state, off, gaps), node, gaps, driver=_driver(state), switched_off=off)


def diagnose(settings: Settings, open_driver: Callable[[], Driver], seconds: float) -> Report:
    """Watch for `seconds`."""
    node = watched(settings, open_driver, seconds)
    if not node.gpus:
        return _none_found(node)
    return _report((line for gpu in node.gpus for line in lines_of(gpu)), node)


def _none_found(node: Node) -> Report:
    """The report where there is no usable GPU, and how to fix it."""
    gap = Gap("GPU metrics", f"none: {node.driver_status}", node.driver_remedy or about.NO_GPU)
    return _report((f"GPU metrics     {gap.problem}", gap.lines[1]), node, [gap], driver=None)


def _report(lines: Iterable[str], node: Node, gaps: Sequence[Gap] = (), **fields: object) -> Report:
    """The report whose document is that of `node`, with other fields beside."""
    up = any(gpu.up for gpu in node.gpus)
    status = (WITH_GAPS if gaps else COMPLETE) if up else NO_GPU
    told = {"status": status, **document(node), **fields, "gaps": [gap._asdict() for gap in gaps]}
    return Report(status, tuple(lines), told)


def _lines(state: SamplerState, off: Sequence[str], gaps: Sequence[Gap]) -> Iterator[str]:
    driver = _driver(state)
    cuda = f", CUDA up to {driver['cuda_version']}" if driver["cuda_version"] else ""
    yield f"driver          {driver['title']} {driver['version']}{cuda}"
    for signal, given in sorted(own.signals(state).items()):
        yield f"  {'yes' if given else 'no ':4}          {signal}"
    yield from map(_gpu_line, state.gpus)
    if off:
        yield f"switched off    {', '.join(off)} (--without)"
    for gap in gaps:
        yield from gap.lines
    if not gaps:
        yield f"everything {'else ' if off else ''}is available"


def _driver(state: SamplerState) -> Document:
    return {
        "title": state.about.title,
        "simulated": state.about.simulated,
        "version": state.system.driver_version,
        "cuda_version": state.system.cuda_version,
    }


def _gpu_line(gpu: GpuSnapshot) -> str:
    who = gpu.identity
    name = f"gpu {who.index}" + (" (MIG)" if who.parent_uuid else "")
    return f"{name:15} {'up  ' if gpu.up else 'DOWN'} {who.name or 'unknown'}  {who.uuid}"


def _down(node: Node) -> Iterator[Gap]:
    """A gap for each board: MIG instances have the index of theirs."""
    for gpu in {gpu.gpu: gpu for gpu in node.gpus if not gpu.up}.values():
        name = f"gpu {gpu.gpu}"
        yield Gap(name, verdict(gpu), gpu.remedy or about.DOWN, (name,))


def missing_signals(
    state: SamplerState, forbidden: Mapping[int, Mapping[str, str]]
) -> Iterator[Gap]:
    """Signals that are not available; `forbidden`: what GPUs refused, by index and reader."""
    boards = [gpu for gpu in state.gpus if gpu.up and gpu.identity.parent_uuid is None]
    for signal, remedy in sorted(signal_remedies(state).items()):
        if signal == "own_cpu":
            yield Gap(signal, "the exporter itself is starved of CPU", remedy)
        elif signal in own.OF_GPUS:
            lacking = [gpu.identity.index for gpu in boards if not own.gives(gpu, signal)]
            reader, *_ = own.OF_GPUS[signal]
            answers = (forbidden.get(index, {}).get(reader) for index in lacking)
            said = next(filter(None, answers), None)
            where = tuple(f"gpu {index}" for index in lacking)
            problem = f"not given by {', '.join(where)}" + (f": {said}" if said else "")
            yield Gap(signal, problem, state.about.forbidden if said else remedy, where)
        elif signal != "kubelet":  # its trouble says more
            where = ("driver" if signal == "xid_events" else "host",)
            yield Gap(signal, f"not given by the {where[0]}", remedy, where)
    if (trouble := state.kubelet.trouble) is not None:
        yield Gap("kubelet", trouble.sentence, trouble.remedy)


def _failures(state: SamplerState) -> Iterator[Gap]:
    failed = [(name, found.error) for name, found in state.outcomes if not found.down]
    for name, error in dict.fromkeys(failed):
        if error:
            remedy = "if this lasts, report it with the driver version above"
            yield Gap(f"collector {name}", error, remedy)


def lines_of(gpu: Gpu) -> Iterator[str]:
    """What people are told of one GPU, and an empty line."""
    yield f"GPU {label(gpu)}  {gpu.name or 'unknown'}  {_workload(gpu)}"
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
