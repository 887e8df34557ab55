"""When something is prescribed, what counts as a change, and what becomes of predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpu_bottleneck_exporter.prescription import model
from gpu_bottleneck_exporter.prescription.keeper import Keeper, Setting
from gpu_bottleneck_exporter.prescription.model import Score
from gpu_bottleneck_exporter.prescription.observed import Observed
from support.rows import beside

SITUATIONS = beside(__file__, "situations.yml")
PART = 4.0
STARVED = Observed(PART, 0.2, {"network": 0.8}, workers=1, active=1.0, free_cores=8.0)
BETTER = replace(STARVED, busy=0.37, stalls={"network": 0.63})
ASLEEP = replace(STARVED, busy=0.0, stalls={"asleep": 1.0})
TRAINS = Setting("alice\0train.py", frozenset({(4711, 1)}), workers=1, limit_cores=None)
RESTARTED: dict[str, Any] = {"mains": frozenset({(5000, 2)})}


class Clock:
    """Feeds a keeper, part by part."""

    def __init__(self, idle_gpus: int = 1) -> None:
        self.keeper = Keeper()
        self.at = 0.0
        self.idle_gpus = idle_gpus

    def feed(
        self,
        seen: Observed = STARVED,
        seconds: float = 60,
        *others: float,
        **setting: Any,  # noqa: ANN401 - of TRAINS
    ) -> Keeper:
        """`setting`: what differs from `TRAINS`; `others`: when other ranks turned a knob."""
        end = self.at + seconds
        while self.at < end:
            self.at += PART
            self.keeper.add(self.at, seen, TRAINS._replace(**setting), self.idle_gpus, *others)
        return self.keeper

    def turn(self, workers: int, busy: float, seconds: float = 40, **setting: Any) -> Score | None:  # noqa: ANN401
        """Score after a change to this number of workers."""
        result = replace(STARVED, workers=workers, active=workers, busy=busy)
        return self.feed(result, seconds, workers=workers, **setting).outlook.score


def advice(keeper: Keeper) -> model.Prescription:
    result = keeper.outlook.advice
    assert isinstance(result, model.Prescription)
    return result


def test_a_starved_gpu_gets_a_prescription_within_half_a_minute_and_not_at_once() -> None:
    assert Clock().feed(seconds=8).outlook.advice is None
    (clock := Clock()).feed(replace(STARVED, worker_starts=1.0), PART)  # they have just come
    result = advice(clock.feed(seconds=20))
    assert (result.knob, result.current_value) == (model.NUM_WORKERS, 1)
    assert clock.feed(seconds=12, workers=2).outlook.advice is None, "of another setting"


@pytest.mark.parametrize(("idle_gpus", "least", "most"), [(1, 0, 60), (10, 150, 250)])
def test_many_idle_gpus_are_sampled_in_turn(idle_gpus: int, least: float, most: float) -> None:
    clock = Clock(idle_gpus)
    was = clock.feed(seconds=40).outlook
    since = clock.at
    while clock.feed(BETTER, PART).outlook == was:
        assert clock.at - since < most
    assert clock.at - since >= least


@pytest.mark.parametrize(
    ("seen", "setting", "said"),
    [
        (replace(STARVED, busy=0.97, stalls={"network": 0.03}), {}, None),
        (replace(STARVED, stalls={"peer": 0.8}), {}, model.Refusal("peer")),
        (ASLEEP, {}, model.Refusal("starting")),
        (ASLEEP, {"job": "", "mains": frozenset()}, None),
    ],
    ids=["busy", "refused", "starts", "unallocated"],
)
def test_advice_and_score_of_other_jobs(
    seen: Observed, setting: dict[str, Any], said: model.Refusal | None
) -> None:
    outlook = Clock().feed(seen, **setting).outlook
    assert (outlook.advice, outlook.score) == (said, None)


@pytest.mark.parametrize("situation", SITUATIONS["scored"], ids=str)
def test_a_change_of_one_knob_is_scored(situation: Mapping[str, Any]) -> None:
    result, clock = replace(STARVED, **situation.get("before", {})), Clock()
    before: dict[str, Any] = {"workers": round(result.workers), "limit_cores": result.limit_cores}
    after = {**before, **situation["turned"]}
    clock.feed(result, **before)
    clock.at += situation.get("late", 0)
    changed_at = clock.at
    keeper = clock.feed(BETTER, 40, *situation.get("others", ()), **after)
    score, predicted = keeper.outlook.score, situation["predicted"]
    assert keeper.last_change_at == pytest.approx(changed_at + 2 * PART, abs=PART)
    assert (score is None) == (predicted is None)
    if score:
        workers = before["workers"] != after["workers"]
        assert score.knob == (model.NUM_WORKERS if workers else model.CPU_LIMIT)
        # Without a limit it may use what the machine has left: its eight cores, and its own.
        values = (1, 2) if workers else (0.5, after["limit_cores"] or 8.0 + result.cores)
        assert (score.value_before, score.value_after) == pytest.approx(values)
        assert score.predicted_busy_ratio == pytest.approx(predicted, abs=0.01)
        assert score.predicted_low_ratio < predicted < score.predicted_high_ratio
        items = score.busy_ratio, score.error_ratio
        assert items == pytest.approx((0.37, 0.37 - predicted), abs=0.01)


def test_workers_that_are_replaced_between_two_epochs_are_no_change() -> None:
    clock = Clock()
    clock.feed()
    for workers in (0, 1, 0):
        assert advice(clock.feed(seconds=PART, workers=workers))
    assert clock.turn(1, 0.2, 20) is None
    assert advice(clock.keeper)


def test_a_score_stays_until_the_next_change() -> None:
    """Also beyond a restart with the same setting; what comes a minute later is no answer to it."""
    clock = Clock()
    clock.feed()
    before = clock.turn(2, 0.4, 100)
    assert before is not None
    assert clock.turn(2, 0.1, 100) == before
    assert clock.turn(2, 0.4, **RESTARTED) == before
    assert clock.turn(4, 0.7, **RESTARTED, limit_cores=2.0) is None


OTHERS: dict[str, Any] = {**RESTARTED, "job": "bob\0train.py"}
NOBODY: dict[str, Any] = {"mains": frozenset(), "job": "", "workers": 0}


@pytest.mark.parametrize("between", [0, PART, 60])
def test_findings_of_a_job_are_not_reported_for_the_next(between: float) -> None:
    clock = Clock()
    clock.feed()
    assert clock.turn(2, 0.4, 100) is not None
    assert advice(clock.keeper)
    clock.feed(ASLEEP, between, **NOBODY)
    for _ in range(30):
        outlook = clock.feed(seconds=PART, **OTHERS).outlook
        assert outlook.score is None
        assert outlook.mains == OTHERS["mains"]
    assert outlook.advice is not None
    assert clock.turn(2, 0.4, **OTHERS) is not None, "its own change"


def test_a_change_that_was_noticed_is_not_judged_by_the_next_job() -> None:
    clock = Clock()
    clock.feed()
    assert clock.turn(2, 0.4, 12) is None, "too little is known of it"
    assert clock.turn(2, 0.4, 100, **OTHERS) is None
    clock.feed(seconds=100, **{**OTHERS, "job": ""})
    assert clock.keeper.outlook.score is None


def test_a_value_with_negligible_gain_does_not_replace_the_reported_one() -> None:
    """One worker of sixty."""
    clock = Clock()
    first = advice(clock.feed(replace(STARVED, busy=0.0162, stalls={"network": 0.9838})))
    slower = replace(STARVED, busy=0.0161, stalls={"network": 0.9839})
    assert advice(Clock().feed(slower)).value > first.value
    assert advice(clock.feed(slower)).value == first.value


@pytest.mark.parametrize(
    ("first", "seconds"),
    [(ASLEEP, 60), (replace(STARVED, stalls={"unknown": 0.8}, active=0.0), 8)],
    ids=["its start", "an invisible cause"],
)
def test_observations_that_a_job_is_not_judged_by(first: Observed, seconds: float) -> None:
    clock = Clock()
    clock.feed(first, seconds)
    assert advice(clock.feed(seconds=30)) == advice(Clock().feed(seconds=30))
