"""When something is prescribed, what counts as a change, and what becomes of predictions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_bottleneck_exporter.accounting.stall import (
    ASLEEP,
    HOST_CODE,
    NETWORK,
    UNKNOWN,
    WORKER_CPU,
)
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
STARVED = Observed(
    seconds=PART,
    busy=0.2,
    stalls={NETWORK: 0.8},
    workers=1,
    active=1.0,
    free_cores=8.0,
)
TRAINS = Setting("alice\0train.py", frozenset({4711}), workers=1, limit_cores=None)


class Clock:
    """Feeds a keeper, part by part."""

    def __init__(self) -> None:
        self.keeper = Keeper()
        self.at = 0.0

    def feed(self, seen: Observed, setting: Setting, seconds: float) -> Keeper:
        end = self.at + seconds
        while self.at < end:
            self.at += PART
            self.keeper.add(self.at, seen, setting)
        return self.keeper


def with_workers(workers: int, busy: float) -> tuple[Observed, Setting]:
    seen = replace(
        STARVED, workers=workers, active=float(workers), busy=busy, stalls={NETWORK: 1 - busy}
    )
    return seen, TRAINS._replace(workers=workers)


def score(keeper: Keeper) -> Score:
    found = keeper.outlook.score
    assert found is not None
    return found


def test_a_starved_gpu_gets_a_prescription_within_half_a_minute() -> None:
    advice = Clock().feed(STARVED, TRAINS, 24).outlook.advice
    assert isinstance(advice, Prescription)
    assert (advice.knob, advice.current_value) == (NUM_WORKERS, 1)


def test_a_few_seconds_are_not_enough() -> None:
    keeper = Clock().feed(STARVED, TRAINS, 8)
    assert keeper.outlook.advice is None


def test_a_busy_gpu_gets_none() -> None:
    well = replace(STARVED, busy=0.97, stalls={NETWORK: 0.03})
    assert Clock().feed(well, TRAINS, 100).outlook.advice is None


def test_when_workers_come_the_prediction_for_their_number_is_scored() -> None:
    clock = Clock()
    clock.feed(STARVED, TRAINS, 60)
    predicted = predict(STARVED, NUM_WORKERS, 2)
    assert isinstance(predicted, Prescription)
    found = score(clock.feed(*with_workers(2, 0.37), 40))
    assert (found.knob, found.value_before, found.value_after) == (NUM_WORKERS, 1, 2)
    assert found.predicted_busy_ratio == pytest.approx(predicted.busy_ratio)
    assert found.predicted_busy_ratio == pytest.approx(0.4, abs=0.02)
    assert found.busy_ratio == pytest.approx(0.37)
    assert found.error_ratio == pytest.approx(0.37 - found.predicted_busy_ratio)


def test_a_job_that_is_restarted_with_more_workers_is_scored_too() -> None:
    clock = Clock()
    clock.feed(STARVED, TRAINS, 60)
    clock.at += 300
    seen, setting = with_workers(2, 0.39)
    assert score(clock.feed(seen, setting._replace(mains=frozenset({5000})), 40)).value_after == 2


@pytest.mark.parametrize("seconds", [0.0, REMEMBERED_SECONDS + 1])
def test_another_job_or_one_that_comes_too_late_is_not(seconds: float) -> None:
    clock = Clock()
    clock.feed(STARVED, TRAINS, 60)
    clock.at += seconds
    seen, setting = with_workers(2, 0.4)
    job = setting.job if seconds else "bob\0other.py"
    again = setting._replace(mains=frozenset({5000}), job=job)
    assert clock.feed(seen, again, 60).outlook.score is None


def test_workers_that_are_replaced_between_two_epochs_are_no_change() -> None:
    clock = Clock()
    clock.feed(STARVED, TRAINS, 60)
    clock.feed(STARVED, TRAINS._replace(workers=0), PART)
    keeper = clock.feed(STARVED, TRAINS, 20)
    assert keeper.outlook.score is None
    assert isinstance(keeper.outlook.advice, Prescription)


def test_two_knobs_at_once_prove_nothing() -> None:
    clock = Clock()
    clock.feed(STARVED, TRAINS, 60)
    seen, setting = with_workers(2, 0.4)
    keeper = clock.feed(seen, setting._replace(limit_cores=2.0), 60)
    assert keeper.outlook.score is None


def test_a_cpu_limit_that_is_raised_is_scored() -> None:
    held = replace(
        STARVED,
        stalls={"cpu_quota": 0.8},
        worker_cores=0.5,
        worker_queue=0.5,
        running=1.0,
        throttled=1.0,
        limit_cores=0.5,
    )
    clock = Clock()
    clock.feed(held, TRAINS._replace(limit_cores=0.5), 60)
    found = score(clock.feed(STARVED, TRAINS._replace(limit_cores=1.0), 40))
    assert (found.knob, found.value_before, found.value_after) == (CPU_LIMIT, 0.5, 1.0)
    assert found.predicted_busy_ratio == pytest.approx(0.4, abs=0.05)


def test_a_limit_is_scored_without_workers_too() -> None:
    held = replace(
        STARVED, stalls={"cpu_quota": 0.6, HOST_CODE: 0.2}, workers=0, active=0, main_queue=0.6
    )
    alone = TRAINS._replace(workers=0, limit_cores=0.25)
    clock = Clock()
    clock.feed(replace(held, main_cores=0.2, limit_cores=0.25, throttled=1.0), alone, 60)
    busier = replace(held, busy=0.5, stalls={HOST_CODE: 0.5}, main_queue=0.0)
    found = score(clock.feed(busier, alone._replace(limit_cores=1.0), 40))
    assert (found.knob, found.value_before, found.value_after) == (CPU_LIMIT, 0.25, 1.0)
    assert found.predicted_busy_ratio == pytest.approx(0.5, abs=0.02)


def test_what_comes_a_minute_after_the_change_is_no_answer_to_it() -> None:
    clock = Clock()
    clock.feed(STARVED, TRAINS, 60)
    clock.feed(*with_workers(2, 0.4), 100)
    before = score(clock.keeper)
    seen, setting = with_workers(2, 0.1)
    assert score(clock.feed(seen, setting, 100)) == before


def test_a_value_that_hardly_brings_more_does_not_replace_the_one_that_was_told() -> None:
    clock = Clock()
    first = clock.feed(STARVED, TRAINS, 60).outlook.advice
    assert isinstance(first, Prescription)
    slower = replace(STARVED, busy=0.197, stalls={NETWORK: 0.803})
    second = clock.feed(slower, TRAINS, 60).outlook.advice
    assert isinstance(second, Prescription)
    assert second.value == first.value


def test_the_start_of_a_job_is_not_what_it_is_judged_by() -> None:
    clock = Clock()
    starts = replace(STARVED, busy=0.0, stalls={ASLEEP: 1.0})
    clock.feed(starts, TRAINS, 60)
    advice = clock.feed(STARVED, TRAINS, 30).outlook.advice
    assert isinstance(advice, Prescription)
    assert advice.current_busy_ratio == pytest.approx(STARVED.busy)


def test_what_nobody_saw_is_left_out_once_enough_was_seen() -> None:
    clock = Clock()
    clock.feed(replace(STARVED, stalls={UNKNOWN: 0.8}, workers=1, active=0.0), TRAINS, 8)
    seen = clock.feed(STARVED, TRAINS, 24).outlook.advice
    assert seen == Clock().feed(STARVED, TRAINS, 24).outlook.advice


def test_nobody_on_the_gpu_is_told_nothing() -> None:
    free = Observed(PART, 0.0, {"unallocated": 1.0}, mains=0)
    keeper = Clock().feed(free, Setting("", frozenset(), 0, None), 60)
    assert keeper.outlook == Keeper().outlook


def test_refusals_are_told() -> None:
    mixed = replace(
        STARVED, stalls={HOST_CODE: 0.2, WORKER_CPU: 0.2, "peer": 0.2, "cpu_queue": 0.2}
    )
    assert Clock().feed(mixed, TRAINS, 60).outlook.advice == Refusal("mixed")


def test_a_change_that_nobody_could_predict_leaves_no_score_of_the_one_before() -> None:
    clock = Clock()
    clock.feed(STARVED, TRAINS, 60)
    clock.feed(*with_workers(2, 0.4), 40)
    score(clock.keeper)
    seen, setting = with_workers(4, 0.7)
    keeper = clock.feed(seen, setting._replace(limit_cores=2.0), 40)
    assert keeper.outlook.score is None


def test_a_restart_with_the_same_setting_keeps_the_score() -> None:
    clock = Clock()
    clock.feed(STARVED, TRAINS, 60)
    seen, setting = with_workers(2, 0.4)
    before = score(clock.feed(seen, setting, 100))
    assert score(clock.feed(seen, setting._replace(mains=frozenset({9})), 40)) == before
