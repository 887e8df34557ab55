"""Recommends a setting for an idle GPU: knob, value and predicted busy share.

One cause must dominate. A step of the loop now takes one unit of time, of which the GPU works
`busy`. At `rate` steps in that time, it works `busy * rate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.prescription import model
from gpu_bottleneck_exporter.prescription.model import Prescription, Refusal
from gpu_bottleneck_exporter.prescription.observed import EXTERNAL_WAITS, WORKER_WAITS, Observed
from gpu_bottleneck_exporter.prescription.thresholds import ADVICE

Advice = Prescription | Refusal


class TrainingLoop(NamedTuple):
    """A training loop whose step now takes one unit of time.

    Batches are in order, two ahead per worker, as in PyTorch. `rate` was fitted to simulations
    (`tests/prescriptions/test_order.py`).
    """

    work: float
    """Time of a single worker per batch."""
    serial: float
    """Time of the main and its GPU per available batch."""
    cause: str
    spread: float = 0.0
    """Variance of the logarithm of the batch time; 0: constant."""

    @property
    def _power(self) -> float:
        """Exponent of the number of workers in their speed."""
        return 1 / (1 + self.spread / 2)

    @property
    def _sharpness(self) -> float:
        """Exponent for how close the loop comes to the lower of its two limits."""
        return 1.4 + 1.6 / self.spread if self.spread else math.inf

    def rate(self, workers: float) -> float:
        """Steps per unit of time, limited by `workers` and by the main."""
        limits = math.pow(workers, self._power) / self.work, 1 / self.serial
        sharpness, low = self._sharpness, min(limits)
        return low * math.pow(1 + math.pow(low / max(limits), sharpness), -1 / sharpness)

    def _worker_rate(self, rate: float) -> float:
        """The rate with a main that takes no time, in a loop of `rate`."""
        used = min(rate * self.serial, ADVICE.target_throughput)
        return rate * math.pow(1 - math.pow(used, self._sharpness), -1 / self._sharpness)

    def min_workers(self, rate: float) -> int:
        """Minimum number of workers for `rate`, at most 128."""
        workers = math.pow(self._worker_rate(rate) * self.work, 1 / self._power)
        return math.ceil(min(workers, 128) - 1e-6)

    def with_single_worker(self, spread: float) -> TrainingLoop:
        """The loop with a measured `spread`, and work for rate 1 with one worker."""
        loop = self._replace(spread=spread)
        return loop._replace(work=1 / loop._worker_rate(1.0))  # noqa: SLF001 - of the same class

    def with_spread(self, workers: int) -> TrainingLoop:
        """The loop with the spread for rate 1 with `workers`, to five decimals.

        Beyond 6, more workers gain next to nothing.
        """
        low, high = 0.0, 6.0
        for _ in range(20):
            middle = (low + high) / 2
            faster = self._replace(spread=middle).rate(workers) > 1
            low, high = (middle, high) if faster else (low, middle)
        return self._replace(spread=low)


def advise(observed: Observed) -> Advice | None:
    """The best prescription, a refusal, or None if none is needed."""
    if observed.busy >= ADVICE.healthy or observed.waits(stall.UNALLOCATED) > observed.idle / 2:
        return None
    refusal = _refusal(observed)
    if refusal:
        return refusal
    parts = parts_of(observed)
    dominant = max(parts, key=lambda name: parts[name])
    if parts[dominant] < ADVICE.min_cause_share * observed.idle:
        return Refusal("mixed")
    if observed.pinned and dominant in (model.NUM_WORKERS, model.CPU_CORES):
        return Refusal("pinned")
    advice = ADVISERS[dominant](observed)
    return advice if isinstance(advice, Refusal) or _gains(advice) else Refusal("no_gain")


def _gains(advice: Advice) -> bool:
    if isinstance(advice, Refusal):
        return False
    return advice.busy_ratio - advice.current_busy_ratio >= ADVICE.min_gain


def predict(observed: Observed, knob: str, value: float) -> Advice:
    """The prediction for `num_workers` or `cpu_limit` at `value`."""
    refusal = _refusal(observed)
    if refusal:
        return refusal
    if knob != model.NUM_WORKERS:
        return _with_cores(observed, knob, value)
    loop = _loop(observed)
    return loop if isinstance(loop, Refusal) else _with_workers(observed, loop, round(value))


def parts_of(observed: Observed) -> Mapping[str, float]:
    """Idle time as a share of time, by key of `ADVISERS`."""
    files = observed.waits(stall.STORAGE, stall.MEMORY)
    own_files = files * observed.main_disk / ((observed.main_disk + observed.reading) or 1.0)
    own_answers = min(observed.waits(stall.NETWORK), observed.main_network)
    loading = observed.waits(*WORKER_WAITS) - own_files - own_answers
    parts = dict.fromkeys(ADVISERS, 0.0)
    parts[model.CPU_LIMIT] = observed.waits(stall.CPU_QUOTA)
    parts[model.CPU_CORES] = observed.waits(stall.CPU_QUEUE)
    parts[model.HOST_CODE] = observed.waits(stall.HOST_CODE)
    parts[_PEER] = observed.waits(stall.PEER)
    if observed.workers >= ADVICE.min_count:
        parts[model.NUM_WORKERS] = loading
        # The main sleeps until a batch is ready.
        if observed.active >= observed.workers / 2 and _hands_over(observed):
            parts[model.NUM_WORKERS] += observed.waits(stall.ASLEEP)
        parts[model.CHECKPOINTS if observed.main_writes else _OTHER] += own_files
        parts[_OTHER] += own_answers
    elif observed.main_writes:
        parts[model.CHECKPOINTS] = own_files
        parts[_INLINE if not observed.threads else _OTHER] += own_answers
    else:
        inline = own_files + own_answers
        if observed.main_reads or inline > parts[model.HOST_CODE]:
            inline += parts[model.HOST_CODE]
            parts[model.HOST_CODE] = 0.0
        parts[_INLINE if observed.threads < ADVICE.min_count else _OTHER] += inline
    parts[_OTHER] += max(observed.idle - sum(parts.values()), 0.0)
    return parts


def _hands_over(observed: Observed) -> bool:
    """Whether the workers write often enough for batches."""
    return observed.handovers is None or observed.handovers >= 0.1  # noqa: PLR2004 per second


def _refusal(observed: Observed) -> Refusal | None:
    if observed.busy < ADVICE.min_busy:
        return Refusal("no_work")
    if observed.owners > 1:
        return Refusal("shared")
    if observed.is_unseen:
        return Refusal("unseen")
    # One start per worker may be a new epoch.
    if observed.worker_starts * observed.seconds > 1.5 * max(observed.workers, 1.0):
        return Refusal("churn")
    return None


# --- Workers -----------------------------------------------------------------------------------


def _more_workers(observed: Observed) -> Advice:
    """More workers; the first ones if the main loads data itself."""
    loop = _loop(observed)
    if isinstance(loop, Refusal):
        return loop
    if observed.saturated and loop.cause in EXTERNAL_WAITS:
        return Refusal("saturated")
    if (
        _free(observed) is None
        and observed.worker_cores > ADVICE.negligible_cores * observed.active
    ):
        return Refusal("unseen")
    now, room, each = round(observed.workers), _room(observed), _processes(observed)
    if room < 1.1 and (  # noqa: PLR2004 too few cores for one more worker
        now or observed.main_cores > ADVICE.min_count
    ):
        limited = observed.limit_cores is not None and observed.throttled > 0.5  # noqa: PLR2004
        advice = _more_cores(observed, model.CPU_LIMIT if limited else model.CPU_CORES)
        return advice if _gains(advice) else Refusal("no_cores")
    target = max(loop.min_workers(min(ADVICE.target_throughput / loop.serial, room)), now + 1)
    more = each * math.ceil((target - now) / each)
    if observed.worker_bytes and observed.free_bytes is not None:
        fitting = 0.9 * observed.free_bytes / observed.worker_bytes
        more = min(more, each * int(fitting / each))
    return _with_workers(observed, loop, now + more) if more > 0 else Refusal("no_memory")


def _loop(observed: Observed) -> TrainingLoop | Refusal:
    """The loop with its workers, or with hypothetical ones if it has none."""
    if observed.workers < ADVICE.min_count:
        return _inline(observed)
    if (
        observed.workers < 1
        or abs(observed.workers - round(observed.workers)) > 0.1 * observed.workers
    ):
        return Refusal("changing")
    now, waits = round(observed.workers), _batch_wait(observed)
    # Fewer active workers do not explain the wait. The exponent is for a coefficient of variation
    # of 2.
    least = min(0.6 * now, math.pow(now, 0.55))
    if waits > ADVICE.min_gain and observed.active < least:
        return Refusal("peer" if observed.waits(stall.PEER) > ADVICE.min_gain else "inconsistent")
    # Active workers are the work of a step (Little's law). Idle ones during a wait mean uneven,
    # ordered batches. A single worker is never idle then.
    work = min(max(observed.active, least), now) if now > 1 else 1.0
    cause = max((*WORKER_WAITS, stall.ASLEEP), key=observed.waits)
    loop = TrainingLoop(work, max(1 - waits, observed.busy), cause)
    if now > 1:
        return loop.with_spread(now)
    return loop if observed.spread is None else loop.with_single_worker(observed.spread)


def _batch_wait(observed: Observed) -> float:
    """Share of time in which the main waited for a batch."""
    causes = (*WORKER_WAITS, stall.ASLEEP, stall.CPU_QUEUE, stall.CPU_QUOTA)
    return max(
        observed.waits(*causes) - observed.main_disk - observed.main_network - observed.main_queue,
        0.0,
    )


def _inline(observed: Observed) -> TrainingLoop | Refusal:
    """The loop with the main's loading moved to workers.

    Loading takes the idle time, or the main's waits and run time.
    """
    # States, not idle time: waits during GPU work move, too.
    waits, mains = min(observed.main_disk + observed.main_network, 1.0), _processes(observed)
    code = observed.waits(stall.HOST_CODE, stall.CPU_QUEUE)
    if mains > 1:  # another main may keep the GPU busy meanwhile
        code = max(code, observed.main_cores / mains)
    code = min(code, 1 - waits)
    if observed.threads >= ADVICE.min_count or not (waits or code):
        return Refusal("no_knob")
    loading = max(waits + code, observed.idle)
    cause = max((*EXTERNAL_WAITS, stall.HOST_CODE), key=observed.waits)
    return TrainingLoop(loading * mains, max(1 - loading, observed.busy), cause)


def _with_workers(observed: Observed, loop: TrainingLoop, workers: int) -> Prescription:
    now, room = round(observed.workers), _room(observed)
    rate = min(loop.rate(workers), room)
    then: str | None
    if rate == room:
        then = stall.CPU_QUEUE if observed.limit_cores is None else stall.CPU_QUOTA
    else:
        stalls = _stalls_at(observed, rate, WORKER_WAITS)
        then = model.dominant({**stalls, loop.cause: 1 - loop.serial * rate})
    more = max(workers - now, 0)
    at_most = loop.cause in EXTERNAL_WAITS and workers > now
    # A single worker does not show the order of batches.
    unordered = loop._replace(spread=0.0).rate(workers) if at_most and now <= 1 else 0.0
    return _prescription(
        observed,
        rate,
        min(unordered, room),
        cause=loop.cause,
        knob=model.NUM_WORKERS,
        current_value=now,
        value=workers,
        at_most=at_most,
        needs_cores=max(rate - 1, 0.0) * observed.cores,
        free_cores=_free(observed),
        needs_memory_bytes=None if observed.worker_bytes is None else more * observed.worker_bytes,
        free_memory_bytes=observed.free_bytes,
        then=then,
    )


def _prescription(
    observed: Observed,
    rate: float,
    highest: float = 0.0,
    **change: Any,  # noqa: ANN401 - fields
) -> Prescription:
    """The prescription of `change` at predicted `rate`, `highest` at most."""
    predicted = min(observed.busy * rate, 1.0)
    bytes_now, job = observed.data_bytes, observed.job_busy
    low = (1 - ADVICE.prediction_error) * predicted
    return Prescription(
        current_busy_ratio=observed.busy,
        busy_ratio=predicted,
        busy_low_ratio=min(low, observed.busy) if change.get("at_most") else low,
        busy_high_ratio=min(
            (1 + ADVICE.prediction_error) * observed.busy * max(rate, highest), 1.0
        ),
        job_gpus=round(observed.job_gpus),
        job_current_busy_ratio=job,
        job_busy_ratio=(
            None
            if job is None or observed.slack is None
            else min(job * min(rate, observed.pace), 1.0)
        ),
        processes=_processes(observed),
        # Each step reads as many bytes as before.
        needs_bytes_per_second=None if bytes_now is None else max(rate - 1, 0.0) * bytes_now,
        **change,
    )


def alone(advice: Prescription, observed: Observed) -> Prescription:
    """`advice` as predicted if the job's other ranks do not change."""
    part = min(observed.busy * observed.pace / max(advice.busy_ratio, 1e-9), 1.0)
    ends = part * advice.busy_low_ratio, part * advice.busy_high_ratio
    return replace(
        advice, busy_ratio=part * advice.busy_ratio, busy_low_ratio=ends[0], busy_high_ratio=ends[1]
    )


def _processes(observed: Observed) -> int:
    return max(round(observed.mains), 1)


def _stalls_at(observed: Observed, rate: float, removed: Collection[str]) -> dict[str, float]:
    """Predicted stalls at `rate`, without those `removed`."""
    return {cause: part * rate for cause, part in observed.stalls.items() if cause not in removed}


def _free(observed: Observed) -> float | None:
    """Free cores within the job's limit; None if unknown."""
    left = [] if observed.limit_cores is None else [max(observed.limit_cores - observed.cores, 0.0)]
    left += [] if observed.free_cores is None else [observed.free_cores]
    # The scheduler prefers a job that sleeps.
    least = 0.25 if observed.worker_cores <= ADVICE.negligible_cores * observed.active else 0.0
    return max(min(left), least) if left else None


def _room(observed: Observed) -> float:
    """Rate at which the free cores are used up."""
    free = _free(observed)
    if free is None or observed.cores <= 0:
        return math.inf
    return 1 + free / observed.cores


# --- CPU ---------------------------------------------------------------------------------------


def _more_cores(observed: Observed, knob: str) -> Advice:
    if knob == model.CPU_LIMIT and observed.limit_cores is None:
        return Refusal("unseen")
    rate = _unqueued_rate(observed)
    if isinstance(rate, Refusal):
        return rate
    cores = observed.cores * rate
    if knob == model.CPU_CORES:
        return _with_cores(observed, knob, math.ceil(round(10 * cores, 3)) / 10)
    # Use comes in bursts: 20 % of headroom, rounded up to half a core.
    value = math.ceil(round(1.2 * cores / 0.5, 3)) * 0.5
    if observed.free_cores is not None:
        value = min(value, math.floor(10 * (observed.cores + observed.free_cores)) / 10)
    if value <= (observed.limit_cores or 0.0):
        return Refusal("no_cores")
    return _with_cores(observed, knob, value)


def _with_cores(observed: Observed, knob: str, value: float) -> Advice:
    rate = _unqueued_rate(observed)
    if isinstance(rate, Refusal):
        return rate
    rate = min(rate, value / observed.cores if observed.cores else 1.0)
    limit = knob == model.CPU_LIMIT
    return _prescription(
        observed,
        rate,
        cause=stall.CPU_QUOTA if limit else stall.CPU_QUEUE,
        knob=knob,
        current_value=(observed.limit_cores if limit else None) or observed.cores,
        value=value,
        needs_cores=max(rate - 1, 0.0) * observed.cores,
        free_cores=observed.free_cores if limit else None,
        then=model.dominant(_stalls_at(observed, rate, (stall.CPU_QUOTA, stall.CPU_QUEUE))),
    )


def _unqueued_rate(observed: Observed) -> float | Refusal:
    if not observed.main_queue and not observed.worker_queue:
        return Refusal("unseen")
    own = min(observed.main_queue, observed.idle)
    if observed.workers < ADVICE.min_count:
        return 1 / max(1 - own, observed.busy)
    loop = _loop(observed)
    if isinstance(loop, Refusal):
        return loop
    queued = observed.worker_queue / max(observed.worker_queue + observed.worker_cores, 1e-9)
    part = min(queued * observed.running / max(observed.active, 1e-9), queued)
    faster = loop._replace(
        work=loop.work * (1 - part), serial=max(loop.serial - own, observed.busy)
    )
    return faster.rate(round(observed.workers)) if part < 1 else 1 / faster.serial


# --- Removable work ----------------------------------------------------------------------------


def _without(observed: Observed, knob: str) -> Prescription:
    """The prediction without this work: an upper bound, as some remains."""
    share = parts_of(observed)[knob]
    cause = stall.HOST_CODE if knob == model.HOST_CODE else stall.STORAGE
    # The factor covers sampling error.
    removed = 1.2 * share + min(observed.waits(stall.CPU_QUEUE), observed.main_queue)
    rate = 1 / max(1 - removed, observed.busy)
    return _prescription(
        observed,
        rate,
        cause=cause,
        knob=knob,
        current_value=share,
        value=0.0,
        at_most=True,
        then=model.dominant(_stalls_at(observed, rate, (cause,))),
    )


_INLINE, _PEER, _OTHER = "inline", "peer", "other"
ADVISERS: Mapping[str, Callable[[Observed], Advice]] = {
    model.NUM_WORKERS: _more_workers,
    _INLINE: _more_workers,
    model.CPU_LIMIT: lambda observed: _more_cores(observed, model.CPU_LIMIT),
    model.CPU_CORES: lambda observed: _more_cores(observed, model.CPU_CORES),
    model.HOST_CODE: lambda observed: _without(observed, model.HOST_CODE),
    model.CHECKPOINTS: lambda observed: _without(observed, model.CHECKPOINTS),
    _PEER: lambda _: Refusal("peer"),
    _OTHER: lambda _: Refusal("no_knob"),
}
