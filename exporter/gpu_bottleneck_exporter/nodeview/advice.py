"""What to do about a GPU, as people read it: prescriptions in one line, without unknown parts."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_bottleneck_exporter.nodeview.model import DASH, Gpu
from gpu_bottleneck_exporter.nodeview.text import memory, percent, verdict
from gpu_bottleneck_exporter.prescription.model import (
    REFUSALS,
    REMOVED,
    Prescription,
    Refusal,
    Score,
)

_LEAST_BYTES = 0.05 * 2**30
"""Less than this would be 0.0 GiB."""
_LEAST_CORES = 0.05
_LEAST_SPEED = 1e6


def in_full(change: Prescription) -> str:
    """`num_workers 2 → 6: busy 44 % → 93 % (88-95); uses 4 of 7 free cores; then …`."""
    interval = "" if change.at_most else _interval(change.busy_low_ratio, change.busy_high_ratio)
    then = f"{_up_to(change.busy_ratio, at_most=change.at_most)}{interval}"
    uses = ", ".join(filter(None, (_cores(change), _memory(change), _data(change))))
    knob = _turned(change.knob, change.current_value, change.value)
    parts = (
        f"{knob}: busy {percent(change.current_busy_ratio)} → {then}",
        f"uses {uses}" if uses else "",
        f"then {change.then} limits" if change.then else "",
    )
    return "; ".join(filter(None, parts))


def in_brief(change: Prescription) -> str:
    """`num_workers 2 → 6: 93 %`."""
    knob = _turned(change.knob, change.current_value, change.value)
    return f"{knob}: {_up_to(change.busy_ratio, at_most=change.at_most)}"


def outcome(change: Score) -> str:
    """`num_workers 2 → 6: predicted 93 % (88-95), now 91 %`."""
    knob = _turned(change.knob, change.value_before, change.value_after)
    interval = _interval(change.predicted_low_ratio, change.predicted_high_ratio)
    predicted = f"{percent(change.predicted_busy_ratio)}{interval}"
    return f"{knob}: predicted {predicted}, now {percent(change.busy_ratio)}"


def why(refusal: Refusal) -> str:
    """The reason in words; that of a newer exporter as it is."""
    return REFUSALS.get(refusal.reason, refusal.reason)


def prescription(gpu: Gpu) -> str | None:
    """What to change, or `none:` and why not; None if there is nothing to say."""
    if gpu.prescription:
        return in_full(gpu.prescription)
    return f"none: {why(gpu.prescription_refused)}" if gpu.prescription_refused else None


def explained(gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Names and texts: the verdict on a GPU, what to try and what was seen."""
    known = {
        "likely cause" if gpu.cause else "verdict": verdict(gpu),
        "try first": gpu.remedy,
        "prescription": prescription(gpu),
        "last change": gpu.last_change and outcome(gpu.last_change),
        "runbook": gpu.runbook and f"{gpu.runbook}.md",
    }
    yield from ((name, text) for name, text in known.items() if text)
    for number, seen in enumerate(gpu.evidence or ()):
        yield "" if number else "seen", seen


def _turned(knob: str, now: float, then: float) -> str:
    return f"{knob} {_value(knob, now)} → {_value(knob, then)}"


def _up_to(share: float, *, at_most: bool) -> str:
    return f"{'up to ' if at_most else ''}{percent(share)}"


def _interval(low: float, high: float) -> str:
    return f" ({100 * low:.0f}{DASH}{100 * high:.0f})"


def _value(knob: str, value: float) -> str:
    """The value of a knob: the share of what can only be removed, else processes or cores."""
    return percent(value) if knob in REMOVED and value else _amount(value)


def _amount(value: float) -> str:
    """A number with one decimal at most."""
    return f"{round(value, 1):.6g}"


def _cores(change: Prescription) -> str | None:
    if change.needs_cores < _LEAST_CORES:
        return None
    cores, free = _amount(change.needs_cores), change.free_cores
    if free is None:
        return f"{cores} core{'' if cores == '1' else 's'}"
    return f"{cores} of {_amount(free)} free cores"


def _data(change: Prescription) -> str | None:
    """A million bytes a second, as links and disks are sold."""
    speed = change.needs_bytes_per_second
    return f"{speed / 1e6:.0f} MB/s" if speed is not None and speed >= _LEAST_SPEED else None


def _memory(change: Prescription) -> str | None:
    needed = change.needs_memory_bytes
    known = needed is not None and needed >= _LEAST_BYTES
    return memory(needed, change.free_memory_bytes) if known else None
