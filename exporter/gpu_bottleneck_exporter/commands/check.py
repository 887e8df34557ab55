"""`check`: what was found here, what is missing, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from gpu_bottleneck_exporter.collectors import enabled
from gpu_bottleneck_exporter.commands.report import COMPLETE, NO_GPU, WITH_GAPS, Gap, Report
from gpu_bottleneck_exporter.driver import about
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.exposition import own
from gpu_bottleneck_exporter.jsontext import Document
from gpu_bottleneck_exporter.nodeview.local import LocalNode
from gpu_bottleneck_exporter.nodeview.model import Node
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.remedies import OF_SIGNALS
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.sampler import Sampler, SamplerState
from gpu_bottleneck_exporter.settings import Settings

_PATIENCE_SECONDS = 60.0
"""A driver opens slowly without its persistence daemon, and on a busy machine."""


def check(settings: Settings, open_driver: Callable[[], Driver]) -> Report:
    """Sample for a few ticks and report what came of it."""
    sampler = sampled(settings, open_driver, ticks=3)
    _wait(lambda: not sampler.state().kubelet.pending)
    state = sampler.state()
    remedies = sampler.down_remedies()
    down = {
        i: (reason, remedies.get(i, about.DOWN)) for i, reason in sampler.down_reasons().items()
    }
    node = LocalNode(sampler).read()
    sampler.stop()
    if not state.gpus:
        return none_found(node)
    gaps = tuple(_gaps(state, down, sampler.forbidden()))
    off = sorted(settings.without)
    lines = tuple(_lines(state, off, gaps))
    fields = {**document(node), "driver": _driver(state), "switched_off": off}
    incomplete = WITH_GAPS if any(gpu.up for gpu in state.gpus) else NO_GPU
    return Report(lines, incomplete if gaps else COMPLETE, fields, gaps)


def none_found(node: Node) -> Report:
    """The report where there is no usable GPU, and how to fix it."""
    gap = Gap("GPU metrics", f"none: {node.driver_status}", node.driver_remedy or about.NO_GPU)
    lines = (f"GPU metrics     {gap.problem}", gap.lines[1])
    return Report(lines, NO_GPU, {**document(node), "driver": None}, (gap,))


def sampled(settings: Settings, open_driver: Callable[[], Driver], ticks: int) -> Sampler:
    """A sampler that has run for `ticks` ticks, or has found that it cannot."""
    sampler = Sampler(open_driver, enabled(settings), settings, lambda _: None)
    sampler.start()
    _wait(lambda: sampler.ready)
    if sampler.state().gpus:
        began_ns = time.monotonic_ns()
        time.sleep(ticks * settings.interval_seconds)
        # On a busy machine readings come late, and a mean takes two.
        due_ns = began_ns + int((ticks - 0.5) * settings.interval_seconds * 1e9)
        _wait(lambda: all(gpu.at_ns > due_ns or not gpu.up for gpu in sampler.state().gpus))
    return sampler


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not until() and time.monotonic() < deadline:
        time.sleep(0.02)


def _lines(state: SamplerState, off: Sequence[str], gaps: Sequence[Gap]) -> Iterator[str]:
    yield from _driver_lines(state)
    yield from map(_gpu_line, state.gpus)
    if off:
        yield f"switched off    {', '.join(off)} (--without)"
    for gap in gaps:
        yield from gap.lines
    if not gaps:
        yield f"everything {'else ' if off else ''}is available"


def _driver_lines(state: SamplerState) -> Iterator[str]:
    system = state.system
    cuda = f", CUDA up to {system.cuda_version}" if system.cuda_version else ""
    yield f"driver          {state.about.title} {system.driver_version}{cuda}"
    for signal, given in sorted(own.signals(state).items()):
        yield f"  {'yes' if given else 'no ':4}          {signal}"


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


def _missing(state: SamplerState) -> dict[str, list[int]]:
    """Signals that GPUs do not give, and which GPUs."""
    found: dict[str, list[int]] = {}
    for gpu in state.gpus:
        if gpu.up and gpu.identity.parent_uuid is None:
            for signal in own.missing_signals(gpu, state.collectors):
                found.setdefault(signal, []).append(gpu.identity.index)
    return found


def _missing_gaps(state: SamplerState, forbidden: Mapping[int, Mapping[str, str]]) -> Iterator[Gap]:
    for signal, gpus in _missing(state).items():
        answers = [forbidden.get(gpu, {}).get(own.reader_of(signal) or "") for gpu in gpus]
        said = next(filter(None, answers), None)
        remedy = state.about.forbidden if said else state.about.of_signal(signal)
        yield _not_given(signal, [f"gpu {gpu}" for gpu in gpus], remedy, said)
    if state.starved:
        yield Gap("own_cpu", "the exporter itself is starved of CPU", OF_SIGNALS["own_cpu"])
    if state.error_events is False:
        yield _not_given("xid_events", ["the driver"], state.about.of_signal("xid_events"))
    for signal in sorted(
        name for name, given in own.signals_of_the_host(state).items() if not given
    ):
        yield _not_given(signal, ["the host"], OF_SIGNALS[signal])


def _not_given(signal: str, where: Sequence[str], remedy: str, said: str | None = None) -> Gap:
    problem = f"not given by {', '.join(where)}" + (f": {said}" if said else "")
    return Gap(signal, problem, remedy, tuple(place.removeprefix("the ") for place in where))


def _gaps(
    state: SamplerState,
    down: Mapping[int, tuple[str, str]],
    forbidden: Mapping[int, Mapping[str, str]],
) -> Iterator[Gap]:
    for index, (reason, remedy) in sorted(down.items()):
        name = f"gpu {index}"
        yield Gap(name, f"down: {reason}", remedy, (name,))
    yield from _missing_gaps(state, forbidden)
    if (trouble := state.kubelet.trouble) is not None:
        yield Gap("kubelet", trouble.sentence, trouble.remedy)
    failed = [(name, found.error) for name, found in state.outcomes if not found.down]
    for name, error in dict.fromkeys(failed):
        if error:
            remedy = "if this lasts, report it with the driver version above"
            yield Gap(f"collector {name}", error, remedy)
