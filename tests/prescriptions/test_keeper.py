"""When something is prescribed, what counts as a change, and what becomes of predictions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_bottleneck_exporter.prescription.advise import predict
from gpu_bottleneck_exporter.prescription.keeper import Keeper, Setting
from gpu_bottleneck_exporter.prescription.model import (
    CPU_LIMIT,
    NUM_WORKERS,
    REMEMBERED_SECONDS,
    Prescription,
    Refusal,
    Score,
)
from gpu_bottleneck_exporter.prescription.observed import Observed

PART = 4.0
STARVED = Observed(PART, 0.2, {"network": 0.8}, workers=1, active=1.0, free_cores=8.0)
HELD = replace(STARVED, stalls={"cpu_quota": 0.8}, throttled=1.0)
TRAINS = Setting("alice\0train.py", frozenset({4711}), workers=1, limit_cores=None)
RESTARTED = frozenset({5000})


class Clock:
    """Feeds a keeper, part by part."""

    def __init__(self, seen: Observed = STARVED, seconds: float = 60, **setting: Any) -> None:  # noqa: ANN401
        self.keeper = Keeper()
        self.at = 0.0
        self.feed(seen, TRAINS._replace(**setting), seconds)

    def feed(self, seen: Observed, setting: Setting, seconds: float, *others: float) -> Keeper:
        """`others`: when a knob of other ranks was turned."""
        end = self.at + seconds
        while self.at < end:
            self.at += PART
            self.keeper.add(self.at, seen, setting, 1, *others)
        return self.keeper

    def turn(self, workers: int, busy: float, seconds: float = 40, **setting: Any) -> Score | None:  # noqa: ANN401
        """What is scored after a change to so many workers."""
        now = TRAINS._replace(workers=workers, **setting)
        return self.feed(with_workers(workers, busy), now, seconds).outlook.score


def with_workers(workers: int, busy: float) -> Observed:
    stalls = {"network": 1 - busy}
    return replace(STARVED, workers=workers, active=float(workers), busy=busy, stalls=stalls)


def advice(clock: Clock) -> Prescription:
    found = clock.keeper.outlook.advice
    assert isinstance(found, Prescription)
    return found


def test_a_starved_gpu_gets_a_prescription_within_half_a_minute_and_not_at_once() -> None:
    assert Clock(seconds=8).keeper.outlook.advice is None
    found = advice(Clock(seconds=24))
    assert (found.knob, found.current_value) == (NUM_WORKERS, 1)


@pytest.mark.parametrize(
    ("seen", "setting", "said"),
    [
        (replace(STARVED, busy=0.97, stalls={"network": 0.03}), TRAINS, None),
        (
            Observed(PART, 0.0, {"unallocated": 1.0}, mains=0),
            Setting("", frozenset(), 0, None),
            None,
        ),
        (
            replace(STARVED, stalls=dict.fromkeys(["host_code", "worker_cpu", "cpu_queue"], 0.26)),
            *(TRAINS, Refusal("mixed")),
        ),
        (replace(STARVED, busy=0.0, stalls={"asleep": 1.0}), TRAINS, Refusal("starting")),
    ],
    ids=["busy", "nobody", "refused", "starts"],
)
def test_what_is_said_of_others(seen: Observed, setting: Setting, said: Refusal | None) -> None:
    outlook = Clock(seen, **setting._asdict()).keeper.outlook
    assert (outlook.advice, outlook.score) == (said, None)


@pytest.mark.parametrize("restarted", [{}, {"mains": RESTARTED}])
def test_when_workers_come_the_prediction_for_their_number_is_scored(
    restarted: dict[str, Any],
) -> None:
    clock = Clock()
    clock.at += 300 if restarted else 0
    told = predict(STARVED, NUM_WORKERS, 2)
    assert isinstance(told, Prescription)
    found = clock.turn(2, 0.37, **restarted)
    ends = told.busy_low_ratio, told.busy_high_ratio
    assert found is not None
    assert found == Score(NUM_WORKERS, 1, 2, told.busy_ratio, *ends, found.busy_ratio)
    assert (found.busy_ratio, found.error_ratio) == pytest.approx((0.37, -0.03))


@pytest.mark.parametrize(
    ("before", "of_before", "after", "limit", "busy"),
    [
        ({"worker_cores": 0.5, "worker_queue": 0.5, "running": 1.0}, {}, {}, (0.5, 1.0), 0.4),
        (
            {"stalls": {"cpu_quota": 0.6, "host_code": 0.2}, "main_queue": 0.6, "main_cores": 0.2},
            {"workers": 0, "active": 0.0},
            {"busy": 0.5, "stalls": {"host_code": 0.5}, "workers": 0, "active": 0.0},
            *((0.25, 1.0), 0.5),
        ),
    ],
    ids=["workers", "without workers"],
)
def test_a_cpu_limit_that_is_raised_is_scored(
    before: dict[str, Any],
    of_before: dict[str, Any],
    after: dict[str, Any],
    limit: tuple[float, float],
    busy: float,
) -> None:
    seen = replace(HELD, **before, **of_before, limit_cores=limit[0])
    workers = round(seen.workers)
    clock = Clock(seen, workers=workers, limit_cores=limit[0])
    raised = TRAINS._replace(workers=workers, limit_cores=limit[1])
    found = clock.feed(replace(STARVED, **after), raised, 40).outlook.score
    assert found is not None
    assert (found.knob, found.value_before, found.value_after) == (CPU_LIMIT, *limit)
    assert found.predicted_busy_ratio == pytest.approx(busy, abs=0.05)


def test_a_rank_that_is_changed_alone_has_no_score_if_it_is_unknown_what_others_can_spare() -> None:
    now = TRAINS._replace(workers=2)
    alone, together = (Clock(replace(STARVED, job_gpus=2)) for _ in range(2))
    assert alone.feed(with_workers(2, 0.3), now, 40).outlook.score is None
    assert together.feed(with_workers(2, 0.3), now, 40, 50.0).outlook.score is not None


@pytest.mark.parametrize(("turned", "predicted"), [(50.0, 0.4), (-50.0, 0.3), (None, 0.3)])
def test_a_rank_that_is_changed_without_the_others_is_scored_by_what_they_can_spare(
    turned: float | None, predicted: float
) -> None:
    """The others changed a minute or more before it, or never: the job gains half as much again."""
    clock = Clock(replace(STARVED, slack=1 / 3))
    others = [] if turned is None else [turned]
    now = TRAINS._replace(workers=2)
    found = clock.feed(with_workers(2, 0.3), now, 40, *others).outlook.score
    assert found is not None
    assert found.predicted_busy_ratio == pytest.approx(predicted)
    assert found.predicted_low_ratio < found.predicted_busy_ratio < found.predicted_high_ratio
    assert clock.keeper.turned == pytest.approx(68, abs=PART)


@pytest.mark.parametrize(
    ("late", "setting"),
    [
        (0.0, {"mains": RESTARTED, "job": "bob\0other.py"}),
        (REMEMBERED_SECONDS + 1, {"mains": RESTARTED}),
        (0.0, {"limit_cores": 2.0}),
    ],
    ids=["another job", "too late", "two knobs at once"],
)
def test_what_proves_nothing_is_not_scored(late: float, setting: dict[str, Any]) -> None:
    clock = Clock()
    clock.at += late
    assert clock.turn(2, 0.4, 60, **setting) is None


def test_workers_that_are_replaced_between_two_epochs_are_no_change() -> None:
    clock = Clock()
    clock.feed(STARVED, TRAINS._replace(workers=0), PART)
    assert clock.turn(1, 0.2, 20) is None
    assert advice(clock)


def test_a_score_stays_until_the_next_change() -> None:
    """Also beyond a restart with the same setting; what comes a minute later is no answer to it."""
    clock = Clock()
    before = clock.turn(2, 0.4, 100)
    assert before is not None
    assert clock.turn(2, 0.1, 100) == before
    assert clock.turn(2, 0.4, mains=RESTARTED) == before
    assert clock.turn(4, 0.7, mains=RESTARTED, limit_cores=2.0) is None


def test_a_value_that_hardly_brings_more_does_not_replace_the_one_that_was_told() -> None:
    clock = Clock()
    first = advice(clock)
    clock.feed(replace(STARVED, busy=0.197, stalls={"network": 0.803}), TRAINS, 60)
    assert advice(clock).value == first.value


@pytest.mark.parametrize(
    ("first", "seconds"),
    [
        (replace(STARVED, busy=0.0, stalls={"asleep": 1.0}), 60),
        (replace(STARVED, stalls={"unknown": 0.8}, active=0.0), 8),
    ],
    ids=["its start", "what nobody saw"],
)
def test_what_a_job_is_not_judged_by(first: Observed, seconds: float) -> None:
    clock = Clock(first, seconds)
    clock.feed(STARVED, TRAINS, 30)
    assert advice(clock) == advice(Clock(seconds=30))
