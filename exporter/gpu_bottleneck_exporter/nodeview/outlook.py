"""What would help a GPU, and what came of its last change, as far as the source knows.

Another exporter's metrics lack what this machine's snapshot has: resources, what limits next, the
knob before and after the last change.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_bottleneck_exporter.prescription.model import Prescription, Refusal, Score


@dataclass(frozen=True, slots=True)
class Change:
    """A prescription. None: unknown, or nothing to name."""

    knob: str
    current: float
    value: float
    """Of the knob, now and then; its unit: see `KNOBS`."""
    predicted: float
    """The busy share, 0-1."""
    low: float | None = None
    high: float | None = None
    at_most: bool | None = None
    """Whether `predicted` is an upper bound."""
    cause: str | None = None
    busy: float | None = None
    """The busy share now."""
    cores: float | None = None
    free_cores: float | None = None
    memory_bytes: float | None = None
    free_bytes: float | None = None
    bytes_per_second: float | None = None
    """Data from storage or the network, beyond today's."""
    then: str | None = None
    """What limits next."""


@dataclass(frozen=True, slots=True)
class LastChange:
    """What came of the last change of a knob. None: unknown."""

    knob: str
    predicted: float
    outcome: float
    """Busy shares, 0-1: as predicted, and since the change."""
    before: float | None = None
    after: float | None = None
    low: float | None = None
    high: float | None = None


def change_of(advice: Prescription | Refusal | None) -> Change | None:
    """The prescription, if there is one."""
    if not isinstance(advice, Prescription):
        return None
    return Change(
        advice.knob,
        advice.current,
        advice.value,
        advice.predicted,
        advice.low,
        advice.high,
        advice.at_most,
        advice.cause,
        advice.busy,
        advice.cores or None,
        advice.free_cores,
        advice.memory_bytes,
        advice.free_bytes,
        advice.bytes_per_second,
        advice.then,
    )


def refused(advice: Prescription | Refusal | None) -> str | None:
    """Why nothing is prescribed: a key of `REFUSALS`."""
    return advice.reason if isinstance(advice, Refusal) else None


def last_change_of(score: Score | None) -> LastChange | None:
    """The last change, if one was noticed."""
    if score is None:
        return None
    return LastChange(
        score.knob,
        score.predicted,
        score.outcome,
        score.before,
        score.after,
        score.low,
        score.high,
    )
