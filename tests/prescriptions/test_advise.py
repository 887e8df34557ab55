"""Prescriptions by loop, and reasons without one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.prescription import model
from gpu_bottleneck_exporter.prescription.advise import advise, alone, parts_of, predict
from gpu_bottleneck_exporter.prescription.model import NUM_WORKERS, Prescription, Refusal
from gpu_bottleneck_exporter.prescription.observed import Observed, among, merged
from gpu_bottleneck_exporter.prescription.thresholds import ADVICE
from support.rows import beside

SITUATIONS = beside(__file__, "situations.yml")
BURNS, WRITES, HELD = (Observed(**SITUATIONS["seen"][it]) for it in ("burns", "writes", "held"))


def prescribed(seen: Observed, asked: tuple[str, float] | None = None) -> Prescription:
    """`asked`: a knob and its value; the best one without."""
    result = predict(seen, *asked) if asked else advise(seen)
    assert isinstance(result, Prescription), result
    return result


@pytest.mark.parametrize("situation", SITUATIONS["said"], ids=str)
def test_advice_in_each_situation(situation: Mapping[str, Any]) -> None:
    observation = Observed(**situation["seen"])
    if "refusal" in situation:
        result = advise(observation)
        assert situation["refusal"] == (result and getattr(result, "reason", result))
        assert result is None or situation["refusal"] in model.REFUSALS
        return
    result = prescribed(observation, situation.get("asked"))
    assert result.busy_ratio == pytest.approx(situation["busy"], abs=0.02)
    if "knob" in situation:
        assert (result.knob, result.then) == (situation["knob"], situation["then"])
        values = situation["now"], situation["value"]
        assert (result.current_value, result.value) == pytest.approx(values, abs=0.05)
        # What comes from outside, or can only be removed, may bring nothing.
        outside = {"network", "storage"} & observation.stalls.keys() or result.knob in model.REMOVED
        assert result.at_most == bool(outside)
        assert (result.busy_low_ratio == result.current_busy_ratio) == result.at_most


def test_needs_of_a_recommendation() -> None:
    prescription = prescribed(replace(BURNS, data_bytes=50e6))
    more = prescription.busy_ratio / prescription.current_busy_ratio - 1
    assert prescription.needs_bytes_per_second == pytest.approx(50e6 * more, rel=0.01)
    assert prescription.needs_cores == pytest.approx(2.1 * (1 / 0.3 - 1), rel=0.05)
    assert prescription.needs_memory_bytes == 5 * 0.5e9
    assert prescribed(BURNS).needs_bytes_per_second is None
    assert prescribed(replace(BURNS, free_cores=1.0)).needs_cores == pytest.approx(1.0)
    assert prescribed(HELD, (model.CPU_LIMIT, 1.0)).needs_cores == pytest.approx(0.5)


def test_where_workers_wait_for_each_other_it_takes_more_of_them() -> None:
    assert prescribed(replace(BURNS, active=1.8)).value > prescribed(BURNS).value


def test_storage_is_the_mains_as_far_as_workers_do_not_wait_for_it() -> None:
    """States are samples, and a write is the kernel's CPU time as well."""
    writes = replace(WRITES, stalls={"storage": 0.5}, main_disk=0.2)
    assert parts_of(writes)[model.CHECKPOINTS] == pytest.approx(0.5)
    shared = parts_of(replace(writes, reading=0.6))
    assert shared[model.CHECKPOINTS] == pytest.approx(0.125)
    assert shared[NUM_WORKERS] == pytest.approx(0.375)


QUICK = replace(BURNS, workers=4, active=1.0, stalls={"network": 0.4, "peer": 0.3})
"""A rank that could be three times as fast: a quarter of its workers is enough."""


@pytest.mark.parametrize(
    ("others", "pace", "job"),
    [
        ([QUICK], 1 / 0.3, 1.0),
        ([replace(BURNS, busy=0.5, stalls={"peer": 0.5}, workers=0)], 2.0, 0.8),
        ([replace(QUICK, active=2.0)], 2.0, 0.6),
        # Ranks that are not visible, or wait for no other, are not mentioned.
        ([QUICK, None], math.inf, None),
        ([QUICK, BURNS], math.inf, None),
    ],
)
def test_a_rank_changed_alone_gains_the_headroom_of_the_next_slowest(
    others: list[Observed | None], pace: float, job: float | None
) -> None:
    outcome = among(BURNS, others)
    result, own = prescribed(outcome), prescribed(BURNS)
    assert (result.value, result.busy_ratio) == (own.value, own.busy_ratio)
    assert result.job_gpus == 1 + len(others)
    assert result.job_busy_ratio == (None if job is None else pytest.approx(job, abs=0.01))
    only = alone(result, outcome)
    assert only.busy_ratio == pytest.approx(min(0.3 * pace, own.busy_ratio), abs=0.01)
    assert only.busy_low_ratio <= only.busy_ratio <= only.busy_high_ratio


def observed(busy: float, weights: Mapping[str, float], figures: Mapping[str, Any]) -> Observed:
    """Observation with stalls that add up to the idle time."""
    whole = sum(weights.values())
    parts = {cause: weight / whole * (1 - busy) for cause, weight in weights.items()}
    return Observed(30.0, busy, parts, **figures)


def known_or_not(least: float, most: float) -> st.SearchStrategy[float | None]:
    return st.none() | st.floats(least, most)


SHARES = ("main_queue", "main_disk", "main_network", "throttled")
NUMBERS = ("active", "running", "worker_cores", "worker_queue", "threads", "main_cores")
SEEN = st.builds(
    observed,
    st.floats(0, 1),
    st.dictionaries(st.sampled_from(stall.WAITING_ON), st.floats(0.01, 1), min_size=1, max_size=4),
    st.fixed_dictionaries(
        {
            **dict.fromkeys(SHARES, st.floats(0, 1)),
            **dict.fromkeys(NUMBERS, st.floats(0, 64)),
            **dict.fromkeys(("main_writes", "main_reads", "saturated"), st.booleans()),
            **dict.fromkeys(("job_busy", "slack"), known_or_not(0, 1)),
            **dict.fromkeys(("worker_bytes", "free_bytes"), known_or_not(0, 1e11)),
            "free_cores": known_or_not(0, 64),
            "limit_cores": known_or_not(0.1, 64),
            "mains": st.integers(1, 3),
            "workers": st.integers(0, 64),
        }
    ),
)


@given(SEEN, st.sampled_from([NUM_WORKERS, model.CPU_LIMIT]), st.integers(0, 64))
def test_advice_makes_sense_for_any_observation(seen: Observed, knob: str, value: int) -> None:
    advice = advise(seen)
    for result in (advice, predict(seen, knob, value)):
        if isinstance(result, Refusal):
            assert result.reason in model.REFUSALS
        elif result:
            assert 0 <= result.busy_low_ratio <= result.busy_ratio <= result.busy_high_ratio <= 1
            assert result.cause in stall.WAITING_ON
            assert result.then is None or result.then in stall.WAITING_ON
    if isinstance(advice, Prescription):
        assert seen.busy < ADVICE.healthy
        assert advice.knob in model.KNOBS
        assert advice.busy_ratio >= advice.current_busy_ratio + 0.05
        assert advice.value != advice.current_value
        assert advice.needs_cores <= (
            math.inf if advice.free_cores is None else advice.free_cores + 0.01
        )
        if advice.free_memory_bytes is not None:
            assert (advice.needs_memory_bytes or 0) <= advice.free_memory_bytes


def test_several_stretches_make_one_observation() -> None:
    first = replace(BURNS, seconds=10.0, busy=0.2, stalls={"worker_cpu": 0.8}, slack=0.2)
    second = replace(BURNS, busy=0.4, stalls={"worker_cpu": 0.6}, saturated=True, free_cores=None)
    result = merged([first, second])
    assert (result.seconds, result.free_cores, result.slack) == (40.0, first.free_cores, 0.2)
    assert result.busy == pytest.approx(0.35)
    assert result.stalls == pytest.approx({"worker_cpu": 0.65})
    assert (result.saturated, merged([second]).saturated) == (False, True)
