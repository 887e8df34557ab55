"""`check`: what was found here, what is missing, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpu_bottleneck_exporter.collectors.exporter import (
    missing_signals,
    signals,
    signals_of_the_host,
)
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.ledger import GpuSnapshot
from gpu_bottleneck_exporter.remedies import OF_DOWN, OF_NO_DRIVER, OF_SIGNALS
from gpu_bottleneck_exporter.sampler import Sampler, State
from gpu_bottleneck_exporter.serve import enabled_collectors
from gpu_bottleneck_exporter.settings import Settings

COMPLETE, WITH_GAPS, NO_GPU = 0, 1, 2
"""Exit statuses."""

_PATIENCE_SECONDS = 20.0


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
    down = sampler.down_reasons()
    status = sampler.status
    sampler.stop()
    if not state.gpus:
        return none_found(status)
    gaps = list(_gaps(state, down))
    lines = (*_driver_lines(state), *map(_gpu_line, state.gpus), *gaps)
    if gaps:
        return Report(lines, WITH_GAPS if any(gpu.up for gpu in state.gpus) else NO_GPU)
    return Report((*lines, "everything is available"), COMPLETE)


def none_found(status: str) -> Report:
    """The report where there is no GPU to speak of."""
    none = f"GPU metrics     none: {status}"
    return Report((none, f"  remedy        {OF_NO_DRIVER}"), NO_GPU)


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


def _missing(state: State) -> dict[str, str]:
    """Signals that are missing somewhere, and where."""
    found: dict[str, list[str]] = {}
    for gpu in state.gpus:
        if gpu.up and gpu.identity.parent_uuid is None:
            for signal in missing_signals(gpu, state.collectors):
                found.setdefault(signal, []).append(f"gpu {gpu.identity.index}")
    if state.xid_events is False:
        found["xid_events"] = ["the driver"]
    host = [signal for signal, given in signals_of_the_host(state).items() if not given]
    found |= {signal: ["the host"] for signal in sorted(host)}
    return {signal: ", ".join(gpus) for signal, gpus in found.items()}


def _gaps(state: State, down: dict[int, str]) -> Iterator[str]:
    for index, reason in sorted(down.items()):
        yield f"gap             gpu {index} is down: {reason}"
        yield f"  remedy        {OF_DOWN}"
    for signal, gpus in _missing(state).items():
        yield f"gap             {signal}: not given by {gpus}"
        yield f"  remedy        {OF_SIGNALS[signal]}"
    if (trouble := state.kubelet.trouble) is not None:
        yield f"gap             kubelet: {trouble.sentence}"
        yield f"  remedy        {trouble.remedy}"
    for name, outcome in state.outcomes:
        if outcome.error and not down:
            yield f"gap             collector {name}: {outcome.error}"
            yield "  remedy        if it lasts, report it with the driver version above"
