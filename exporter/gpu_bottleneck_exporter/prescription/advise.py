"""What would help a GPU that idles: the knob, its new value, and what that brings.

One cause must lead, or there is no telling what a change of its knob would bring. The model is
that of a loop of steps. Now a step takes one unit of time, of which the GPU works `busy`; a change
makes `rate` steps in that time, so the GPU works `busy * rate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.prescription import model
from gpu_bottleneck_exporter.prescription.model import Prescription, Refusal
from gpu_bottleneck_exporter.prescription.observed import OUTSIDE, WAITS_FOR_WORKERS, Observed

HEALTHY = 0.85
"""Busy share from which nothing is prescribed: what platform teams call well tuned."""
LEAST_GAIN = 0.05
"""Less is not worth a change, nor told from noise."""
ERROR = 0.12
"""Of a prediction, in parts of it: nine of ten outcomes lie within (`tests/prescriptions`)."""
_HARDLY_WORKS = 0.01
_LEADS = 0.4
"""Share of the idle time from which a cause counts (`gpu:threshold:evidence` of the rules)."""
_MOST_WORKERS = 128
_ENOUGH = 0.95
"""Share of what endless workers would bring that is aimed at: the rest takes many of them."""
_ROOM = 1.1
"""Less growth than this leaves no room for another worker."""
_CHURN = 1.5
"""Starts per worker within the window: once may be a new epoch."""
_THROTTLED = 0.5
_HEADROOM = 1.2
"""CPU limit per core used: a limit counts per tenth of a second, in which use comes in bursts."""
_HALF_A_CORE = 0.5
_EXPLAINS = 0.6
"""Share of the workers that must be at work while they are waited for: else something else holds
them up."""
_LEAST_POWER = 0.55
"""Power of the number of workers of which at least so many are at work, where they wait for each
other's slow batches: their times have a coefficient of variation of 2."""
_MIN_HANDOVERS = 0.1
"""Write calls of workers per second, below which they hand over no batches."""
_HARDLY_BURNS = 0.1
"""Cores per worker: more of them need none to speak of."""
_ALWAYS_FOUND = 0.25
"""Cores that a job gets even on a busy machine if it mostly waits: the scheduler prefers it."""
_MOST_MEMORY = 0.9
_MAX_SPREAD = 6.0
"""Largest variance of the logarithm: more workers bring next to nothing from there."""
_HALVINGS = 20
"""Steps of the search for a spread: to the fifth decimal."""
_UNSURE = 1.2
"""What is removed may take so many times its share of the idle time: that is from samples."""

_MORE_OF = frozenset({model.NUM_WORKERS, model.CPU_CORES})
"""Knobs of which pinned workers need no more."""

Advice = Prescription | Refusal


class Loop(NamedTuple):
    """A training loop. The unit of time is the one in which it now takes one step.

    Batches are taken in order, two ahead per worker, as PyTorch's DataLoader does: workers wait for
    the slowest one. `rate` was fitted to simulations of that (`tests/prescriptions/test_order.py`).
    """

    work: float
    """Time of a lone worker for a batch."""
    serial: float
    """Time of the main and its GPU for a batch that is there."""
    cause: str
    spread: float = 0.0
    """Variance of the logarithm of a batch's time; 0: no worker ever waits for another."""

    @property
    def _power(self) -> float:
        """Power of the number of workers with which their speed grows."""
        return 1 / (1 + self.spread / 2)

    @property
    def _sharpness(self) -> float:
        """Exponent that says how close a loop comes to the lower one of its two limits."""
        return 1.4 + 1.6 / self.spread if self.spread else math.inf

    def rate(self, workers: float) -> float:
        """Steps per unit of time with `workers`: limited by them and by what the main can take."""
        limits = math.pow(workers, self._power) / self.work, 1 / self.serial
        sharpness, low = self._sharpness, min(limits)
        return low * math.pow(1 + math.pow(low / max(limits), sharpness), -1 / sharpness)

    def _alone(self, rate: float) -> float:
        """Rate of the workers, if the main took no time, where the loop makes `rate` steps."""
        used = min(rate * self.serial, _ENOUGH)
        return rate * math.pow(1 - math.pow(used, self._sharpness), -1 / self._sharpness)

    def fewest(self, rate: float) -> int:
        """The fewest workers that make `rate` steps."""
        workers = math.pow(self._alone(rate) * self.work, 1 / self._power)
        return math.ceil(min(workers, _MOST_WORKERS) - 1e-6)

    def with_lone_worker(self, spread: float) -> Loop:
        """The loop with a measured `spread` and the work with which one worker makes one step."""
        loop = self._replace(spread=spread)
        return loop._replace(work=1 / loop._alone(1.0))  # noqa: SLF001 - of the same class

    def with_spread(self, workers: int) -> Loop:
        """The loop with the spread that explains why `workers` make no more than one step."""
        low, high = 0.0, _MAX_SPREAD
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            faster = self._replace(spread=middle).rate(workers) > 1
            low, high = (middle, high) if faster else (low, middle)
        return self._replace(spread=low)


def advise(seen: Observed) -> Advice | None:
    """The best prescription for a GPU, why there is none, or None where there is no need."""
    if seen.busy >= HEALTHY or seen.waits(stall.UNALLOCATED) > seen.idle / 2:
        return None
    refusal = _hopeless(seen)
    if refusal:
        return refusal
    parts = parts_of(seen)
    leading = max(parts, key=lambda name: parts[name])
    if parts[leading] < _LEADS * seen.idle:
        return Refusal("mixed")
    if seen.pinned and leading in _MORE_OF:
        return Refusal("pinned")
    found = ADVISERS[leading](seen)
    return found if isinstance(found, Refusal) or _gains(found) else Refusal("no_gain")


def _gains(found: Advice) -> bool:
    if isinstance(found, Refusal):
        return False
    return found.busy_ratio - found.current_busy_ratio >= LEAST_GAIN


def predict(seen: Observed, knob: str, value: float) -> Advice:
    """What `num_workers` or `cpu_limit` at `value` would bring, as far as that can be predicted."""
    refusal = _hopeless(seen)
    if refusal:
        return refusal
    if knob != model.NUM_WORKERS:
        return _with_cores(seen, knob, value)
    loop = _loop(seen)
    return loop if isinstance(loop, Refusal) else _with_workers(seen, loop, round(value))


def parts_of(seen: Observed) -> Mapping[str, float]:
    """Shares of the time that the GPU idles, by what would change it."""
    files = seen.waits(stall.STORAGE, stall.MEMORY)
    own_files = files * seen.main_disk / ((seen.main_disk + seen.reading) or 1.0)
    own_answers = min(seen.waits(stall.NETWORK), seen.main_network)
    loading = seen.waits(*WAITS_FOR_WORKERS) - own_files - own_answers
    parts = dict.fromkeys(ADVISERS, 0.0)
    parts[model.CPU_LIMIT] = seen.waits(stall.CPU_QUOTA)
    parts[model.CPU_CORES] = seen.waits(stall.CPU_QUEUE)
    parts[model.HOST_CODE] = seen.waits(stall.HOST_CODE)
    parts[_PEER] = seen.waits(stall.PEER)
    if seen.workers >= _HALF_A_CORE:
        parts[model.NUM_WORKERS] = loading
        # It sleeps until they have a batch.
        if seen.active >= seen.workers / 2 and _hands_over(seen):
            parts[model.NUM_WORKERS] += seen.waits(stall.ASLEEP)
        parts[model.CHECKPOINTS if seen.main_writes else _OTHER] += own_files
        parts[_OTHER] += own_answers
    elif seen.main_writes:
        parts[model.CHECKPOINTS] = own_files
        parts[_INLINE if not seen.threads else _OTHER] += own_answers
    else:
        inline = own_files + own_answers
        if seen.main_reads or inline > parts[model.HOST_CODE]:
            inline += parts[model.HOST_CODE]
            parts[model.HOST_CODE] = 0.0
        parts[_INLINE if seen.threads < _HALF_A_CORE else _OTHER] += inline
    parts[_OTHER] += max(seen.idle - sum(parts.values()), 0.0)
    return parts


def _hands_over(seen: Observed) -> bool:
    """Whether workers hand batches over: a child that holds a lock, say, does not."""
    return seen.handovers is None or seen.handovers >= _MIN_HANDOVERS


def _hopeless(seen: Observed) -> Refusal | None:
    if seen.busy < _HARDLY_WORKS:
        return Refusal("no_work")
    if seen.owners > 1:
        return Refusal("shared")
    if seen.is_unseen:
        return Refusal("unseen")
    if seen.worker_starts * seen.seconds > _CHURN * max(seen.workers, 1.0):
        return Refusal("churn")
    return None


# --- Workers -----------------------------------------------------------------------------------


def _more_workers(seen: Observed) -> Advice:
    """More workers, or the first ones if the main loads."""
    loop = _loop(seen)
    if isinstance(loop, Refusal):
        return loop
    if seen.saturated and loop.cause in OUTSIDE:
        return Refusal("saturated")
    if _free(seen) is None and seen.worker_cores > _HARDLY_BURNS * seen.active:
        return Refusal("unseen")
    now, room, each = round(seen.workers), _room(seen), _processes(seen)
    if room < _ROOM and (now or seen.main_cores > _HALF_A_CORE):
        limited = seen.limit_cores is not None and seen.throttled > _THROTTLED
        found = _more_cores(seen, model.CPU_LIMIT if limited else model.CPU_CORES)
        return found if _gains(found) else Refusal("no_cores")
    wanted = max(loop.fewest(min(_ENOUGH / loop.serial, room)), now + 1)
    more = each * math.ceil((wanted - now) / each)
    if seen.worker_bytes and seen.free_bytes is not None:
        held = _MOST_MEMORY * seen.free_bytes / seen.worker_bytes
        more = min(more, each * int(held / each))
    wanted = now + more
    return _with_workers(seen, loop, wanted) if wanted > now else Refusal("no_memory")


def _loop(seen: Observed) -> Loop | Refusal:
    """The loop with its workers; without any, as it would be with some."""
    if seen.workers < _HALF_A_CORE:
        return _inline(seen)
    if seen.workers < 1 or abs(seen.workers - round(seen.workers)) > 0.1 * seen.workers:
        return Refusal("changing")
    now, waits = round(seen.workers), _waits_for_workers(seen)
    least = min(_EXPLAINS * now, math.pow(now, _LEAST_POWER))
    if waits > LEAST_GAIN and seen.active < least:
        return Refusal("peer" if seen.waits(stall.PEER) > LEAST_GAIN else "inconsistent")
    # As many as are at work at a time is the work of a step (Little's law). Where the others rest
    # although they are waited for, batches differ and are taken in order. A lone worker never does:
    # its spread is measured.
    work = min(max(seen.active, least), now) if now > 1 else 1.0
    cause = max((*WAITS_FOR_WORKERS, stall.ASLEEP), key=seen.waits)
    loop = Loop(work, max(1 - waits, seen.busy), cause)
    if now > 1:
        return loop.with_spread(now)
    return loop if seen.spread is None else loop.with_lone_worker(seen.spread)


def _waits_for_workers(seen: Observed) -> float:
    """Share of the time in which the main had no batch."""
    causes = (*WAITS_FOR_WORKERS, stall.ASLEEP, stall.CPU_QUEUE, stall.CPU_QUOTA)
    return max(seen.waits(*causes) - seen.main_disk - seen.main_network - seen.main_queue, 0.0)


def _inline(seen: Observed) -> Loop | Refusal:
    """The loop as it would be if workers did what the main now does between two steps.

    That is the idle time if nothing overlaps, else what the main waited for and ran.
    """
    # As states, not as idle time: what the main waits for while the GPU works moves along.
    waits, mains = min(seen.main_disk + seen.main_network, 1.0), _processes(seen)
    code = seen.waits(stall.HOST_CODE, stall.CPU_QUEUE)
    if mains > 1:  # while one of them runs, another one may keep the GPU busy
        code = max(code, seen.main_cores / mains)
    code = min(code, 1 - waits)
    if seen.threads >= _HALF_A_CORE or not (waits or code):
        return Refusal("no_knob")
    loading = max(waits + code, seen.idle)
    cause = max((*OUTSIDE, stall.HOST_CODE), key=seen.waits)
    return Loop(loading * mains, max(1 - loading, seen.busy), cause)


def _with_workers(seen: Observed, loop: Loop, workers: int) -> Prescription:
    now, room = round(seen.workers), _room(seen)
    rate = min(loop.rate(workers), room)
    then: str | None
    if rate == room:
        then = stall.CPU_QUEUE if seen.limit_cores is None else stall.CPU_QUOTA
    else:
        told = _afterwards(seen, rate, WAITS_FOR_WORKERS)
        then = model.leading({**told, loop.cause: 1 - loop.serial * rate})
    more = max(workers - now, 0)
    at_most = loop.cause in OUTSIDE and workers > now
    # A lone worker does not show whether batches are taken in order.
    unordered = loop._replace(spread=0.0).rate(workers) if at_most and now <= 1 else 0.0
    return _prescription(
        seen,
        rate,
        min(unordered, room),
        cause=loop.cause,
        knob=model.NUM_WORKERS,
        current_value=now,
        value=workers,
        at_most=at_most,
        needs_cores=max(rate - 1, 0.0) * seen.cores,
        free_cores=_free(seen),
        needs_memory_bytes=None if seen.worker_bytes is None else more * seen.worker_bytes,
        free_memory_bytes=seen.free_bytes,
        then=then,
    )


def _prescription(seen: Observed, rate: float, highest: float = 0.0, **change: Any) -> Prescription:  # noqa: ANN401 - fields
    """The prescription of `change`, which makes `rate` steps in the time of one, or `highest`."""
    predicted = min(seen.busy * rate, 1.0)
    bytes_now, job = seen.data_bytes, seen.job_busy
    low = (1 - ERROR) * predicted
    return Prescription(
        current_busy_ratio=seen.busy,
        busy_ratio=predicted,
        busy_low_ratio=min(low, seen.busy) if change.get("at_most") else low,
        busy_high_ratio=min((1 + ERROR) * seen.busy * max(rate, highest), 1.0),
        job_gpus=round(seen.job_gpus),
        job_current_busy_ratio=job,
        job_busy_ratio=(
            None if job is None or seen.slack is None else min(job * min(rate, seen.pace), 1.0)
        ),
        processes=_processes(seen),
        # A step takes as many as before.
        needs_bytes_per_second=None if bytes_now is None else max(rate - 1, 0.0) * bytes_now,
        **change,
    )


def alone(told: Prescription, seen: Observed) -> Prescription:
    """What `told`, from `seen`, brings if no other rank of the job is changed."""
    part = min(seen.busy * seen.pace / max(told.busy_ratio, 1e-9), 1.0)
    ends = part * told.busy_low_ratio, part * told.busy_high_ratio
    return replace(
        told, busy_ratio=part * told.busy_ratio, busy_low_ratio=ends[0], busy_high_ratio=ends[1]
    )


def _processes(seen: Observed) -> int:
    return max(round(seen.mains), 1)


def _afterwards(seen: Observed, rate: float, gone: Collection[str]) -> dict[str, float]:
    """Shares of the time in which the GPU waits at `rate`, by cause, without those `gone`."""
    return {cause: part * rate for cause, part in seen.stalls.items() if cause not in gone}


def _free(seen: Observed) -> float | None:
    """Cores that the job may use in addition."""
    left = [] if seen.limit_cores is None else [max(seen.limit_cores - seen.cores, 0.0)]
    left += [] if seen.free_cores is None else [seen.free_cores]
    least = _ALWAYS_FOUND if seen.worker_cores <= _HARDLY_BURNS * seen.active else 0.0
    return max(min(left), least) if left else None


def _room(seen: Observed) -> float:
    """Steps that the free cores hold, as a multiple of those taken now."""
    free = _free(seen)
    if free is None or seen.cores <= 0:
        return math.inf
    return 1 + free / seen.cores


# --- CPU ---------------------------------------------------------------------------------------


def _more_cores(seen: Observed, knob: str) -> Advice:
    if knob == model.CPU_LIMIT and seen.limit_cores is None:
        return Refusal("unseen")
    rate = _unhindered(seen)
    if isinstance(rate, Refusal):
        return rate
    wanted = seen.cores * rate
    if knob == model.CPU_CORES:
        return _with_cores(seen, knob, math.ceil(round(10 * wanted, 3)) / 10)
    value = math.ceil(round(_HEADROOM * wanted / _HALF_A_CORE, 3)) * _HALF_A_CORE
    if seen.free_cores is not None:
        value = min(value, math.floor(10 * (seen.cores + seen.free_cores)) / 10)
    if value <= (seen.limit_cores or 0.0):
        return Refusal("no_cores")
    return _with_cores(seen, knob, value)


def _with_cores(seen: Observed, knob: str, value: float) -> Advice:
    rate = _unhindered(seen)
    if isinstance(rate, Refusal):
        return rate
    rate = min(rate, value / seen.cores if seen.cores else 1.0)
    limit = knob == model.CPU_LIMIT
    return _prescription(
        seen,
        rate,
        cause=stall.CPU_QUOTA if limit else stall.CPU_QUEUE,
        knob=knob,
        current_value=(seen.limit_cores if limit else None) or seen.cores,
        value=value,
        needs_cores=max(rate - 1, 0.0) * seen.cores,
        free_cores=seen.free_cores if limit else None,
        then=model.leading(_afterwards(seen, rate, (stall.CPU_QUOTA, stall.CPU_QUEUE))),
    )


def _unhindered(seen: Observed) -> float | Refusal:
    """Steps per unit of time if nobody ever waited for a CPU."""
    if not seen.main_queue and not seen.worker_queue:
        return Refusal("unseen")
    own = min(seen.main_queue, seen.idle)
    if seen.workers < _HALF_A_CORE:
        return 1 / max(1 - own, seen.busy)
    loop = _loop(seen)
    if isinstance(loop, Refusal):
        return loop
    queued = seen.worker_queue / max(seen.worker_queue + seen.worker_cores, 1e-9)
    part = min(queued * seen.running / max(seen.active, 1e-9), queued)
    faster = loop._replace(work=loop.work * (1 - part), serial=max(loop.serial - own, seen.busy))
    return faster.rate(round(seen.workers)) if part < 1 else 1 / faster.serial


# --- What can only be removed ------------------------------------------------------------------


def _without(seen: Observed, knob: str) -> Prescription:
    """What is left of a step without it: an upper bound, as nobody removes all of it."""
    share = parts_of(seen)[knob]
    cause = stall.HOST_CODE if knob == model.HOST_CODE else stall.STORAGE
    # What the main waits for a CPU is part of it; less of it is less of that.
    removed = _UNSURE * share + min(seen.waits(stall.CPU_QUEUE), seen.main_queue)
    rate = 1 / max(1 - removed, seen.busy)
    return _prescription(
        seen,
        rate,
        cause=cause,
        knob=knob,
        current_value=share,
        value=0.0,
        at_most=True,
        then=model.leading(_afterwards(seen, rate, (cause,))),
    )


_INLINE, _PEER, _OTHER = "inline", "peer", "other"
ADVISERS: Mapping[str, Callable[[Observed], Advice]] = {
    model.NUM_WORKERS: _more_workers,
    _INLINE: _more_workers,
    model.CPU_LIMIT: lambda seen: _more_cores(seen, model.CPU_LIMIT),
    model.CPU_CORES: lambda seen: _more_cores(seen, model.CPU_CORES),
    model.HOST_CODE: lambda seen: _without(seen, model.HOST_CODE),
    model.CHECKPOINTS: lambda seen: _without(seen, model.CHECKPOINTS),
    _PEER: lambda _: Refusal("peer"),
    _OTHER: lambda _: Refusal("no_knob"),
}
