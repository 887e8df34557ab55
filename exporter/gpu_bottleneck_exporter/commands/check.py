"""`check` reports gaps and remedies; `diagnose`, why each GPU idles, without Prometheus."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, NoReturn

import click

from gpu_bottleneck_exporter.accounting.stall import ASLEEP, HOST_CODE, PEER, REQUESTS, UNKNOWN
from gpu_bottleneck_exporter.commands.watch import sampled, wait, watched
from gpu_bottleneck_exporter.driver import about
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.driver.readings import Condition, ProcessUse
from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.host.process import command_line
from gpu_bottleneck_exporter.jsontext import Document, dumps
from gpu_bottleneck_exporter.nodeview.build import LocalNode, signal_remedies
from gpu_bottleneck_exporter.nodeview.model import GpuStatus, Node, named, parts_of
from gpu_bottleneck_exporter.nodeview.text import explained, label, verdict
from gpu_bottleneck_exporter.nodeview.wire import MAX_ITEMS, document
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.sampler import SamplerState
from gpu_bottleneck_exporter.sampling.signals import BUSY_TIME, GPU_SIGNALS, lacking, signals
from gpu_bottleneck_exporter.settings import Settings

COMPLETE, WITH_GAPS = 0, 1
"""Exit statuses; no usable GPU is a gap."""


_PROCESS_USE = Collector(
    "process_use", (), lambda _: None, lambda _: [], lambda device: device.process_use()
)
"""Usually of shared GPUs only."""


class Gap(NamedTuple):
    """A missing signal, collector or GPU, and its remedy."""

    subject: str
    """Signal, `collector NAME`, `gpu 0` or `GPU metrics`."""
    problem: str
    remedy: str
    where: tuple[str, ...] = ()
    """Sources without it: GPUs, the driver, the host."""

    @property
    def lines(self) -> tuple[str, str]:
        """The gap as text."""
        return f"gap             {self.subject}: {self.problem}", f"  remedy        {self.remedy}"


class Blamed(NamedTuple):
    """A process that a verdict blames."""

    pid: int
    command: str
    """Beginning of the command line; empty after its exit."""

    def __str__(self) -> str:
        return f"{self.pid:<7} {self.command}".rstrip()


class Report(NamedTuple):
    """The exit status, with the result as text and document."""

    status: int
    lines: Sequence[str]
    document: Document


def check(settings: Settings, open_driver: Callable[[], Driver], *, full: bool = False) -> Report:
    """Sample for a few ticks, then report gaps; `full`: also signals."""
    # Means take two readings; a sleeping GPU's first takes long.
    with sampled(settings, open_driver, 3, (_PROCESS_USE,)) as sampler:
        wait(lambda: not sampler.state().kubelet.pending)
        state, node = sampler.state(), LocalNode(sampler).read()
        missing = [*missing_signals(state, sampler.forbidden())]
    if not node.gpus:
        return _no_gpu(node)
    gaps = [*_down(node), *_conditions(state), *missing, *_failures(state)]
    off = sorted(settings.without)
    unseen = _untested(state)
    process_use = _process_use(state)
    lines = [*_lines(node, gaps, off), *(_details(state) if full else ())]
    if process_use and (full or not all(process_use.values())):
        lines.append(_process_use_line(process_use))
    if unseen:
        model = f"{', '.join(unseen)}, driver {state.system.driver_version}"
        lines.append(f"untested        {model}: no recording of it exists; `capture` helps")
    return _report(
        lines,
        node,
        gaps,
        driver=_driver(state),
        process_use=process_use,
        switched_off=off,
        not_yet_seen=unseen,
    )


def diagnose(
    settings: Settings, open_driver: Callable[[], Driver], seconds: float, *, stacks: bool = False
) -> Report:
    """Sample for `seconds`, then report; `stacks`: also lines of code."""
    if stacks:
        without = settings.disabled_collectors - {"stacks"}
        settings = replace(settings, disabled_collectors=without)
    node, state, took, interrupted = watched(settings, open_driver, seconds, _count_down)
    if sys.stderr.isatty():
        click.echo("\x1b[K", nl=False, err=True)
    if not node.gpus:
        return _no_gpu(node)
    blamed = [tuple(_blamed(gpu, state, settings.procfs)) for gpu in node.gpus]
    lines = [line for lines in map(lines_of, node.gpus, blamed) for line in lines]
    if interrupted:
        lines.insert(0, f"interrupted after {took:.0f} of {seconds:g} s")
    gpus = [
        document(gpu) | {"blamed": [process._asdict() for process in processes]}
        for gpu, processes in zip(node.gpus[:MAX_ITEMS], blamed, strict=False)
    ]
    return _report(lines, node, gpus=gpus, watched_seconds=round(took, 1))


def _count_down(left: float, read: Callable[[], Node]) -> None:
    if not sys.stderr.isatty():
        return
    verdicts = "; ".join(f"GPU {label(gpu)} {verdict(gpu)}" for gpu in read().gpus)
    line = f"{left:3.0f} s left  {verdicts}"[: shutil.get_terminal_size().columns - 1]
    click.echo(f"{line}\x1b[K\r", nl=False, err=True)  # the next line overwrites it


def finish(report: Report, web_config: str | None = None, *, as_json: bool) -> NoReturn:
    """Print `report` and exit with its status."""
    document = {**report.document, "web_config": web_config}
    click.echo(dumps(document) if as_json else "\n".join(report.lines))
    sys.exit(report.status)


def _no_gpu(node: Node) -> Report:
    gap = Gap("GPU metrics", f"none: {node.driver_status}", node.driver_remedy or about.NO_GPU)
    return _report((f"GPU metrics     {gap.problem}", gap.lines[1]), node, [gap], driver=None)


def _report(lines: Iterable[str], node: Node, gaps: Sequence[Gap] = (), **fields: object) -> Report:
    up = any(gpu.up for gpu in node.gpus)
    status = COMPLETE if up and not gaps else WITH_GAPS
    fields = {"status": status, **document(node), **fields, "gaps": [gap._asdict() for gap in gaps]}
    return Report(status, tuple(lines), fields)


def _lines(node: Node, gaps: Sequence[Gap], off: Sequence[str]) -> Iterator[str]:
    boards = sum(gpu.up and gpu.mig_profile is None for gpu in node.gpus)
    blind = next((len(gap.where) for gap in gaps if gap.subject == BUSY_TIME), 0)
    if not any(gpu.up for gpu in node.gpus):
        yield "no GPU is up"
    elif blind and blind == boards:
        yield "does not work: the driver reports no busy time for any GPU"
    elif gaps:
        yield f"works, with {len(gaps)} gap{'' if len(gaps) == 1 else 's'}"
    else:
        yield f"everything {'else ' if off else ''}is available"
    for gap in gaps:
        yield from gap.lines
    if off:
        yield f"switched off    {', '.join(off)} (--without)"


def _untested(state: SamplerState) -> list[str]:
    """Models without recorded findings for this driver, in the order of GPUs."""
    if state.about.simulated:
        return []
    boards = (gpu.identity for gpu in state.gpus if gpu.identity.parent_uuid is None)
    models = dict.fromkeys(board.name for board in boards)
    version = state.system.driver_version
    return [name or "unknown" for name in models if not state.about.seen(name, version)]


def _process_use(state: SamplerState) -> dict[str, bool]:
    """Availability by GPU without MIG."""
    if "processes" not in state.collectors:
        return {}
    divided = {gpu.identity.parent_uuid for gpu in state.gpus}
    return {
        f"gpu {gpu.identity.index}": gpu.reading(ProcessUse) is not None
        for gpu in state.gpus
        if gpu.up and gpu.identity.parent_uuid is None and gpu.identity.uuid not in divided
    }


def _process_use_line(process_use: Mapping[str, bool]) -> str:
    missing = ", ".join(gpu for gpu, available in process_use.items() if not available)
    lost = "time of shared GPUs is not attributed to tenants"
    return f"process use     {f'not available on {missing}: {lost}' if missing else 'available'}"


def _details(state: SamplerState) -> Iterator[str]:
    driver = _driver(state)
    cuda = f", CUDA up to {driver['cuda_version']}" if driver["cuda_version"] else ""
    yield f"driver          {driver['title']} {driver['version']}{cuda}"
    for signal, available in sorted(signals(state).items()):
        yield f"  {'yes' if available else 'no ':4}          {signal}"
    yield from map(_gpu_line, state.gpus)


def _driver(state: SamplerState) -> Document:
    return {
        "title": state.about.title,
        "simulated": state.about.simulated,
        "version": state.system.driver_version,
        "cuda_version": state.system.cuda_version,
    }


def _gpu_line(gpu: GpuSnapshot) -> str:
    identity = gpu.identity
    name = f"gpu {identity.index}" + (" (MIG)" if identity.parent_uuid else "")
    return f"{name:15} {'up  ' if gpu.up else 'DOWN'} {identity.name or 'unknown'}  {identity.uuid}"


def _down(node: Node) -> Iterator[Gap]:
    """A gap per board: MIG instances share its index."""
    for gpu in {gpu.gpu: gpu for gpu in node.gpus if not gpu.up}.values():
        name = f"gpu {gpu.gpu}"
        yield Gap(name, verdict(gpu), gpu.remedy or about.DOWN, (name,))


def _conditions(state: SamplerState) -> Iterator[Gap]:
    for gpu in state.gpus:
        name = f"gpu {gpu.identity.index}"
        condition = gpu.reading(Condition) or Condition()
        for problem, remedy in condition.problems.items():
            yield Gap(name, problem, remedy, (name,))


def missing_signals(
    state: SamplerState, forbidden: Mapping[int, Mapping[str, str]]
) -> Iterator[Gap]:
    """Unavailable signals; `forbidden`: permission errors by index and reader."""
    for signal, remedy in sorted(signal_remedies(state).items()):
        if signal == "own_cpu":
            yield Gap(signal, "the exporter itself is starved of CPU", remedy)
        elif signal in GPU_SIGNALS:
            without = [gpu.identity.index for gpu in lacking(state.gpus, signal)]
            reader, *_ = GPU_SIGNALS[signal]
            answers = (forbidden.get(index, {}).get(reader) for index in without)
            error = next(filter(None, answers), None)
            where = tuple(f"gpu {index}" for index in without)
            problem = f"not provided by {', '.join(where)}" + (f": {error}" if error else "")
            yield Gap(signal, problem, state.about.forbidden if error else remedy, where)
        elif signal != "kubelet":  # reported below
            where = ("driver" if signal == "xid_events" else "host",)
            yield Gap(signal, f"not provided by the {where[0]}", remedy, where)
    if (trouble := state.kubelet.trouble) is not None:
        yield Gap("kubelet", trouble.sentence, trouble.remedy)


def _failures(state: SamplerState) -> Iterator[Gap]:
    failed = [(name, outcome.error) for name, outcome in state.outcomes if not outcome.down]
    for name, error in dict.fromkeys(failed):
        if error:
            remedy = "if this lasts, report it with the output of check -v"
            yield Gap(f"collector {name}", error, remedy)


def lines_of(gpu: GpuStatus, blamed: Iterable[Blamed] = ()) -> Iterator[str]:
    """The text for a GPU, with at most two processes `blamed`."""
    yield f"GPU {label(gpu)}  {gpu.name or 'unknown'}  {_workload(gpu)}"
    first, *others = explained(gpu)
    named_blamed = zip(("most to blame", ""), map(str, blamed), strict=False)
    for name, text in (first, *named_blamed, *others):
        yield f"  {name:13} {printable(text)}"
    if gpu.busy_ratio is not None:
        cells = 30  # so that a line fits 80 columns
        for name, part in parts_of(gpu.busy_ratio, named(gpu.stall_ratios or {})).items():
            yield f"  {name:13} {'█' * round(part * cells):{cells}} {part:6.1%}"
    yield ""


def _blamed(gpu: GpuStatus, state: SamplerState, proc: Path) -> Iterator[Blamed]:
    """The two processes, or fewer, that the verdict blames most."""
    feedings = (other.feeding for other in state.gpus if other.identity.uuid == gpu.uuid)
    mains, others = next(
        (feeding.busiest for feeding in feedings if feeding and gpu.cause), ((), ())
    )
    # Causes in the processes that hold the GPU.
    of_mains = gpu.cause in (HOST_CODE, REQUESTS, PEER, ASLEEP, UNKNOWN)
    for pid, _ in (mains if of_mains else others or mains)[:2]:
        words = command_line(proc, pid).text.rstrip("\0").replace("\0", " ")
        yield Blamed(pid, printable(words, 100).rstrip())


def _workload(gpu: GpuStatus) -> str:
    if gpu.holder_pids is None:
        return "(holders unknown)"
    if gpu.holder_pids:
        return f"held by process {', '.join(map(str, gpu.holder_pids))}"
    # Processes of other PID namespaces are invisible.
    unseen = (gpu.stall_ratios or {}).get(UNKNOWN)
    return "held by no visible process" if unseen else "held by no process"
