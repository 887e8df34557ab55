"""`check`: what was found here, what is missing, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpu_bottleneck_exporter.collectors.exporter import (
    missing_signals,
    reader_of,
    signals,
    signals_of_the_host,
)
from gpu_bottleneck_exporter.driver.protocol import NO_PERMISSION, Driver
from gpu_bottleneck_exporter.ledger import GpuSnapshot
from gpu_bottleneck_exporter.remedies import OF_DOWN, OF_DRIVER, OF_SIGNALS, of_driver
from gpu_bottleneck_exporter.sampler import Sampler, State
from gpu_bottleneck_exporter.serve import enabled_collectors
from gpu_bottleneck_exporter.settings import Settings

COMPLETE, WITH_GAPS, NO_GPU = 0, 1, 2
"""Exit statuses."""

_PATIENCE_SECONDS = 20.0
_NOTHING: Mapping[int, Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Report:
    """Lines for people, and the exit status."""

    lines: tuple[str, ...]
    status: int


def check(settings: Settings, open_driver: Callable[[], Driver]) -> Report:
    """Sample for a few ticks and tell what came of it."""
    sampler = sampled(settings, open_driver, ticks=3)
    _wait_for_the_kubelet(sampler)
    state = sampler.state()
    causes = sampler.down_causes()
    down = {i: (reason, causes.get(i)) for i, reason in sampler.down_reasons().items()}
    status, cause = sampler.status, sampler.cause
    sampler.stop()
    if not state.gpus:
        return none_found(status, cause)
    gaps = list(_gaps(state, down, sampler.forbidden()))
    off = sorted(settings.without)
    wanted = (f"switched off    {', '.join(off)} (--without)",) if off else ()
    lines = (*_driver_lines(state), *map(_gpu_line, state.gpus), *wanted, *gaps)
    if gaps:
        return Report(lines, WITH_GAPS if any(gpu.up for gpu in state.gpus) else NO_GPU)
    return Report((*lines, f"everything {'else ' if off else ''}is available"), COMPLETE)


def none_found(status: str, cause: str | None) -> Report:
    """The report where there is no GPU to speak of, and what that comes from."""
    none = f"GPU metrics     none: {status}"
    return Report((none, f"  remedy        {of_driver(cause)}"), NO_GPU)


def sampled(settings: Settings, open_driver: Callable[[], Driver], ticks: int) -> Sampler:
    """A sampler that has run for `ticks` ticks, or has found out that it cannot."""
    sampler = Sampler(open_driver, enabled_collectors(settings), settings, lambda _: None)
    sampler.start()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not sampler.ready and time.monotonic() < deadline:
        time.sleep(0.02)
    if sampler.state().gpus:
        time.sleep(ticks * settings.interval_seconds)
    return sampler


def _wait_for_the_kubelet(sampler: Sampler) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while sampler.state().kubelet.pending and time.monotonic() < deadline:
        time.sleep(0.05)


def _driver_lines(state: State) -> Iterator[str]:
    kind = "virtual board" if state.simulated else "NVIDIA"
    system = state.system
    yield f"driver          {kind} {system.driver_version}, CUDA up to {system.cuda_version}"
    answers = signals(state)
    for signal, given in sorted(answers.items()):
        yield f"  {'yes' if given else 'no ':4}          {signal}"


def _gpu_line(gpu: GpuSnapshot) -> str:
    who = gpu.identity
    name = f"gpu {who.index}" + (" (MIG)" if who.parent_uuid else "")
    return f"{name:15} {'up  ' if gpu.up else 'DOWN'} {who.name or 'unknown'}  {who.uuid}"


def _missing(state: State) -> dict[str, list[int]]:
    """Signals that GPUs do not give, and which GPUs."""
    found: dict[str, list[int]] = {}
    for gpu in state.gpus:
        if gpu.up and gpu.identity.parent_uuid is None:
            for signal in missing_signals(gpu, state.collectors):
                found.setdefault(signal, []).append(gpu.identity.index)
    return found


def _missing_gaps(state: State, forbidden: Mapping[int, Mapping[str, str]]) -> Iterator[str]:
    for signal, gpus in _missing(state).items():
        answers = [forbidden.get(gpu, {}).get(reader_of(signal) or "") for gpu in gpus]
        said = next(filter(None, answers), None)
        where = ", ".join(f"gpu {gpu}" for gpu in gpus)
        yield f"gap             {signal}: not given by {where}" + (f": {said}" if said else "")
        yield f"  remedy        {OF_DRIVER[NO_PERMISSION] if said else OF_SIGNALS[signal]}"
    if state.starved:
        yield "gap             own_cpu: the exporter itself lacks it"
        yield f"  remedy        {OF_SIGNALS['own_cpu']}"
    elsewhere = {"xid_events": "the driver"} if state.xid_events is False else {}
    host = [signal for signal, given in signals_of_the_host(state).items() if not given]
    for signal, where in (elsewhere | dict.fromkeys(sorted(host), "the host")).items():
        yield f"gap             {signal}: not given by {where}"
        yield f"  remedy        {OF_SIGNALS[signal]}"


def _gaps(
    state: State,
    down: Mapping[int, tuple[str, str | None]],
    forbidden: Mapping[int, Mapping[str, str]] = _NOTHING,
) -> Iterator[str]:
    for index, (reason, cause) in sorted(down.items()):
        yield f"gap             gpu {index} is down: {reason}"
        yield f"  remedy        {of_driver(cause, OF_DOWN)}"
    yield from _missing_gaps(state, forbidden)
    if (trouble := state.kubelet.trouble) is not None:
        yield f"gap             kubelet: {trouble.sentence}"
        yield f"  remedy        {trouble.remedy}"
    failed = [(name, found.error) for name, found in state.outcomes if not found.down]
    for name, error in dict.fromkeys(failed):
        if error:
            yield f"gap             collector {name}: {error}"
            yield "  remedy        if it lasts, report it with the driver version above"
