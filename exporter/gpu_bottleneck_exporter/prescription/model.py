"""What a prescription says. Shares and predictions are busy shares of the GPU's time, 0-1.

The node document has the same names.
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
"""What can be changed, and the unit of its value: worker processes of a loader; cores of the CPU
limit; cores that the job gets while others compete for them; and what can only be removed: the
share of the time, 0-1, that the GPU waits for host code or for checkpoints. Where several processes
share the GPU, of all of them together."""
REMOVED = frozenset({HOST_CODE, CHECKPOINTS})
"""Knobs that are removed rather than set."""

REFUSALS = {
    "mixed": "several causes share the idle time, and none of them leads",
    "shared": "several owners share this GPU",
    "peer": "it waits for a slower rank of its job",
    "no_work": "the GPU hardly works at all, so there is nothing to scale",
    "starting": "its job has not been seen to use the GPU",
    "changing": "its workers or limits have just changed",
    "churn": "its workers are restarted all the time",
    "unseen": "what its processes do cannot be seen",
    "no_knob": "no setting of the job is known to change this",
    "saturated": "the disk or the network link is busy all the time",
    "pinned": "its workers are pinned to few CPUs of the job",
    "no_cores": "the machine has no CPU cores left for it",
    "no_memory": "the memory does not hold more workers",
    "inconsistent": "what the workers did does not explain the wait",
    "no_gain": "what is known to change would bring too little",
}
"""Why nothing is prescribed, by the label of the metric."""
REMEMBERED_SECONDS = 3600.0
"""A job that is restarted later than this is another one."""
_NAMED = 0.02


@dataclass(frozen=True, slots=True)
class Prescription:
    """A change, and the busy share that it is predicted to bring."""

    cause: str
    """What the GPU waits on (`WAITING_ON`)."""
    knob: str
    current_value: float
    value: float
    """Of the knob, now and then; its unit: see `KNOBS`."""
    current_busy_ratio: float
    busy_ratio: float
    """Predicted."""
    busy_low_ratio: float
    busy_high_ratio: float
    """Nine of ten outcomes are meant to lie between them."""
    at_most: bool = False
    """Whether `busy_ratio` is an upper bound: it depends on what cannot be seen."""
    job_gpus: int = 1
    """How many GPUs of this machine its job has. `busy_ratio` is what comes if all of its ranks
    follow their own prescriptions."""
    job_current_busy_ratio: float | None = None
    job_busy_ratio: float | None = None
    """Their mean, now and if only this one follows: it brings what the next slowest rank can take.
    None for a job with one GPU, or if it is unknown what the others can take."""
    processes: int = 1
    """Of its owner, that share this GPU."""
    needs_cores: float = 0.0
    """CPU cores that it takes, beyond those in use."""
    free_cores: float | None = None
    needs_memory_bytes: float | None = None
    """Memory that it takes, beyond that in use; None if unknown or if it takes none."""
    free_memory_bytes: float | None = None
    needs_bytes_per_second: float | None = None
    """Data from storage or the network that it takes, beyond today's; None if unknown."""
    then: str | None = None
    """What the GPU waits on most afterwards (`WAITING_ON`); None: nothing worth naming."""
    pytorch: bool = False
    """Whether the job's loader is known to be PyTorch's."""

    @property
    def of_own_requests(self) -> bool:
        """Whether the main process waits for the network itself, as it has no workers.

        Whether its requests bring data or report something, they need not hold it up.
        """
        return self.knob == NUM_WORKERS and self.cause == stall.NETWORK and not self.current_value


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing is prescribed for a GPU that idles."""

    reason: str
    """A key of `REFUSALS`."""


@dataclass(frozen=True, slots=True)
class Score:
    """What came of the last change of a knob that was noticed."""

    knob: str
    value_before: float
    value_after: float
    predicted_busy_ratio: float
    predicted_low_ratio: float
    predicted_high_ratio: float
    busy_ratio: float
    """Since then."""

    @property
    def error_ratio(self) -> float:
        """Outcome less prediction, as shares of the GPU's time: positive if it is busier."""
        return self.busy_ratio - self.predicted_busy_ratio


class Outlook(NamedTuple):
    """What is known of one GPU."""

    advice: Prescription | Refusal | None = None
    """None for a GPU that is busy, or while too little is known."""
    score: Score | None = None
    seen: Observed | None = None
    """What the advice rests on."""
    mains: frozenset[Started] = frozenset()
    """The processes that it is about: all that have the GPU."""


NOTHING_KNOWN = Outlook()


def leading(stalls: Mapping[str, float]) -> str | None:
    """The largest of these shares of the time, by cause; None if none is worth naming."""
    cause = max(stalls, key=stalls.__getitem__, default=None)
    return cause if cause and stalls[cause] >= _NAMED else None
