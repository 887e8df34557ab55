"""Prescriptions in one line, as people read them. Unknown parts are left out."""

from __future__ import annotations

from gpu_bottleneck_exporter.nodeview.model import DASH, GpuView
from gpu_bottleneck_exporter.nodeview.outlook import Change, LastChange
from gpu_bottleneck_exporter.nodeview.text import gibibytes, percent
from gpu_bottleneck_exporter.prescription.model import REFUSALS, REMOVED

_MIB, _GIB = 2**20, 2**30
_LEAST_GIB = 0.05
"""Less than this would be 0.0 GiB."""
_LEAST_CORES = 0.05
_LEAST_SPEED = 1e6


def prescription(gpu: GpuView) -> str | None:
    """What to change, or `none:` and why not; None if there is nothing to say."""
    if gpu.prescription:
        return in_full(gpu.prescription)
    return f"none: {REFUSALS[gpu.refused]}" if gpu.refused else None


def in_full(change: Change) -> str:
    """`num_workers 2 → 6: busy 44 % → 93 % (88-95); uses 4 of 7 free cores; then …`."""
    now = "" if change.busy is None else f"{percent(change.busy)} "
    parts = [f"{_knob(change)}: busy {now}→ {_predicted(change)}"]
    uses = ", ".join(filter(None, (_cores(change), _memory(change), _data(change))))
    parts += [f"uses {uses}"] if uses else []
    parts += [f"then {change.then} limits"] if change.then else []
    return "; ".join(parts)


def in_brief(change: Change) -> str:
    """`num_workers 2 → 6: 93 %`."""
    return f"{_knob(change)}: {'up to ' if change.at_most else ''}{percent(change.predicted)}"


def outcome(change: LastChange) -> str:
    """`num_workers 2 → 6: predicted 93 % (88-95), now 91 %`."""
    knob = change.knob
    if change.before is not None and change.after is not None:
        knob = f"{knob} {_value(knob, change.before)} → {_value(knob, change.after)}"
    interval = _interval(change.low, change.high)
    return f"{knob}: predicted {percent(change.predicted)}{interval}, now {percent(change.outcome)}"


def _knob(change: Change) -> str:
    values = (_value(change.knob, value) for value in (change.current, change.value))
    return f"{change.knob} {' → '.join(values)}"


def _predicted(change: Change) -> str:
    if change.at_most:
        return f"up to {percent(change.predicted)}"
    return f"{percent(change.predicted)}{_interval(change.low, change.high)}"


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({100 * low:.0f}{DASH}{100 * high:.0f})"


def _value(knob: str, value: float) -> str:
    """Of a knob: a share of what can only be removed, else a number of processes or cores."""
    return percent(value) if knob in REMOVED and value else _amount(value)


def _amount(value: float) -> str:
    """With one decimal at most."""
    return f"{round(value, 1):.6g}"


def _cores(change: Change) -> str | None:
    if change.cores is None or change.cores < _LEAST_CORES:
        return None
    cores = _amount(change.cores)
    if change.free_cores is not None:
        return f"{cores} of {_amount(change.free_cores)} free cores"
    return f"{cores} core{'' if cores == '1' else 's'}"


def _data(change: Change) -> str | None:
    """A million bytes a second, as links and disks are sold."""
    speed = change.bytes_per_second
    return f"{speed / 1e6:.0f} MB/s" if speed is not None and speed >= _LEAST_SPEED else None


def _memory(change: Change) -> str | None:
    needed, free = change.memory_bytes, change.free_bytes
    if needed is None or needed < _MIB:
        return None
    small = needed < _LEAST_GIB * _GIB
    amount, unit = (f"{needed / _MIB:.0f}", "MiB") if small else (gibibytes(needed), "GiB")
    if free is None:
        return f"{amount} {unit}"
    return f"{amount}{' MiB' if small else ''} of {gibibytes(free)} GiB"
