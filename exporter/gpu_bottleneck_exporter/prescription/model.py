"""Schema of prescriptions. Ratios are busy shares of the GPU's time, 0-1.

The node document uses the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.host.process import Started
from gpu_bottleneck_exporter.prescription.observed import Observed

KNOBS = (
    NUM_WORKERS := "num_workers",
    CPU_LIMIT := "cpu_limit",
    CPU_CORES := "cpu_cores",
    HOST_CODE := "host_code",
    CHECKPOINTS := "checkpoints",
)
"""Settings and units, in total of a GPU's processes: loader workers; cores of the CPU limit; cores
won in competition; share of time, 0-1, that the GPU waits for host code or for checkpoints."""
REMOVED = frozenset({HOST_CODE, CHECKPOINTS})
"""Knobs to reduce rather than to set."""

REFUSALS = {
    "mixed": "several causes share the idle time, and none of them dominates",
    "shared": "several owners share this GPU",
    "peer": "it waits for a slower rank of its job",
    "no_work": "the GPU is almost never busy, so there is nothing to scale",
    "starting": "its job has not used the GPU yet",
    "changing": "its workers or limits have just changed",
    "churn": "its workers are restarted constantly",
    "unseen": "the state of its processes cannot be read",
    "no_knob": "no setting of the job is known to change this",
    "saturated": "the disk or the network link is saturated",
    "pinned": "its workers are pinned to few CPUs of the job",
    "no_cores": "the machine has no CPU cores to spare",
    "no_memory": "there is not enough memory for more workers",
    "inconsistent": "the activity of its workers does not explain the wait",
    "no_gain": "no known change would gain enough",
}
"""Reasons to prescribe nothing, by the label of the metric."""


@dataclass(frozen=True, slots=True)
class Prescription:
    """A change of a setting, and the predicted busy share."""

    cause: str
    """Cause of the wait (`WAITING_ON`)."""
    knob: str
    current_value: float
    value: float
    """New value of the knob, in the unit of `KNOBS`."""
    current_busy_ratio: float
    busy_ratio: float
    busy_low_ratio: float
    busy_high_ratio: float
    """Bounds of the prediction for nine of ten outcomes."""
    at_most: bool = False
    """Whether `busy_ratio` is an upper bound."""
    job_gpus: int = 1
    """GPUs of the job on this machine; for `busy_ratio`, all of them change."""
    job_current_busy_ratio: float | None = None
    job_busy_ratio: float | None = None
    """Mean of these GPUs if only this rank changes. None for one GPU, or if unknown."""
    processes: int = 1
    """Processes of the owner on this GPU."""
    needs_cores: float = 0.0
    free_cores: float | None = None
    needs_memory_bytes: float | None = None
    """Additional memory; None if unknown or none."""
    free_memory_bytes: float | None = None
    needs_bytes_per_second: float | None = None
    """Additional data read or received; None if unknown."""
    then: str | None = None
    """Dominant cause afterwards (`WAITING_ON`); None if all are small."""
    pytorch: bool = False
    """Whether the job's loader is known to be PyTorch's."""

    @property
    def of_own_requests(self) -> bool:
        """Whether a main without workers waits for its own network requests, maybe of reports."""
        return self.knob == NUM_WORKERS and self.cause == stall.NETWORK and not self.current_value


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason to prescribe nothing for an idle GPU."""

    reason: str
    """Key of `REFUSALS`."""


@dataclass(frozen=True, slots=True)
class Score:
    """The outcome of the last change of a knob."""

    knob: str
    value_before: float
    value_after: float
    predicted_busy_ratio: float
    predicted_low_ratio: float
    predicted_high_ratio: float
    busy_ratio: float
    """Busy share since the change."""

    @property
    def error_ratio(self) -> float:
        """Outcome minus prediction; positive if the GPU is busier."""
        return self.busy_ratio - self.predicted_busy_ratio


class Outlook(NamedTuple):
    """The advice for one GPU, and the last score."""

    advice: Prescription | Refusal | None = None
    """Advice; None for a busy GPU, or before enough observations."""
    score: Score | None = None
    seen: Observed | None = None
    """Observations behind the advice."""
    mains: frozenset[Started] = frozenset()
    """Holders of the GPU during the observations."""


NOTHING_KNOWN = Outlook()


def dominant(stalls: Mapping[str, float]) -> str | None:
    """The cause with the largest share of time; None if it is below 2 %."""
    cause = max(stalls, key=stalls.__getitem__, default=None)
    return cause if cause and stalls[cause] >= 0.02 else None  # noqa: PLR2004
