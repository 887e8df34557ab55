"""What is prescribed for which loop, and what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.prescription import model
from gpu_bottleneck_exporter.prescription.advise import HEALTHY, advise, alone, parts_of, predict
from gpu_bottleneck_exporter.prescription.model import NUM_WORKERS, Prescription, Refusal
from gpu_bottleneck_exporter.prescription.observed import Observed, among, merged

GIB = 2.0**30
BURNS = Observed(
    seconds=30.0,
    busy=0.3,
    stalls={"worker_cpu": 0.7},
    workers=2,
    active=2.0,
    running=2.0,
    worker_cores=2.0,
    main_cores=0.1,
    free_cores=14.0,
    worker_bytes=0.5 * GIB,
    free_bytes=40 * GIB,
)
"""Two workers that burn a core each; with one more step per batch the GPU would be busier."""
Changes = Mapping[str, Any]
WAITS: Changes = {
    "stalls": {"network": 0.7},
    "running": 0.0,
    "worker_cores": 0.01,
    "main_cores": 0.01,
}
"""They only wait."""
SLEEPS = {**WAITS, "stalls": {"asleep": 0.66, "worker_cpu": 0.04}}
BURNT_OUT: Changes = {"worker_cores": 0.5, "worker_queue": 1.5, "main_cores": 0.0}
HELD = {**BURNT_OUT, "stalls": {"cpu_quota": 0.7}, "limit_cores": 0.5, "throttled": 1.0}
"""A CPU limit of half a core."""
CROWDED = {**BURNT_OUT, "stalls": {"cpu_queue": 0.7}}
ALONE: Changes = {
    "workers": 0,
    "active": 0.0,
    "running": 0.0,
    "worker_cores": 0.0,
    "worker_bytes": None,
}
READING: Changes = {
    "stalls": {"storage": 0.7, "host_code": 0.1},
    "main_disk": 0.7,
    "main_reads": True,
}
READS = {**ALONE, **READING, "busy": 0.2, "main_cores": 0.2}
"""The main reads its batches itself."""
CODE = {**ALONE, "busy": 0.2, "stalls": {"host_code": 0.8}, "main_cores": 0.2}
WRITING: Changes = {"stalls": {"storage": 0.5, "host_code": 0.2}, "main_disk": 0.5, "active": 0.0}
WRITES = {**WRITING, "main_writes": True}
TWO_READ = {**READS, "mains": 2, "busy": 0.4, "stalls": {"storage": 0.6}, "main_disk": 0.75}
TWO = {**TWO_READ, "main_cores": 0.0}
"""Two processes of one owner."""


def changed(changes: Changes, **more: Any) -> Observed:  # noqa: ANN401 - of Observed
    return replace(BURNS, **{**changes, **more})


def prescribed(changes: Changes) -> Prescription:
    found = advise(changed(changes))
    assert isinstance(found, Prescription), found
    return found


def predicted(changes: Changes, knob: str, value: float) -> Prescription:
    found = predict(changed(changes), knob, value)
    assert isinstance(found, Prescription), found
    return found


@pytest.mark.parametrize(
    ("changes", "knob", "current", "value", "busy", "then"),
    [
        # Workers that keep up with the GPU, as far as cores and memory reach.
        ({}, NUM_WORKERS, 2, 7, 1.0, None),
        ({"free_cores": 1.0}, NUM_WORKERS, 2, 3, 0.443, "cpu_queue"),
        ({"free_bytes": 1.2 * GIB}, NUM_WORKERS, 2, 4, 0.6, "worker_cpu"),
        # What only waits needs no cores.
        ({**WAITS, "free_cores": 1.0}, NUM_WORKERS, 2, 7, 1.0, None),
        (SLEEPS, NUM_WORKERS, 2, 7, 1.0, None),
        # The rest of the step limits.
        ({"stalls": {"worker_cpu": 0.4, "host_code": 0.3}}, NUM_WORKERS, 2, 4, 0.5, "host_code"),
        # Without the limit the workers burn 2 cores: four times the batches, more than it can take.
        (HELD, model.CPU_LIMIT, 0.5, 2.0, 1.0, None),
        (CROWDED, model.CPU_CORES, 0.5, 1.7, 1.0, None),
        # Of workers that wait for cores half of the time, there are enough.
        (
            {"worker_cores": 1.0, "worker_queue": 1.0, "free_cores": 0.0},
            *(model.CPU_CORES, 1.1, 2.2, 0.6, "worker_cpu"),
        ),
        (READS, NUM_WORKERS, 0, 4, 1.0, "host_code"),
        (CODE, model.HOST_CODE, 0.8, 0, 1.0, None),
        (WRITES, model.CHECKPOINTS, 0.5, 0, 0.3 / (1 - 1.2 * 0.5), "host_code"),
        # Both of two processes get as many.
        ({"mains": 2, "active": 1.9}, NUM_WORKERS, 2, 8, 1.0, None),
        (TWO, NUM_WORKERS, 0, 4, 1.0, None),
    ],
)
def test_what_is_prescribed(  # noqa: PLR0913, PLR0917 - a table
    changes: Changes, knob: str, current: float, value: float, busy: float, then: str | None
) -> None:
    found = prescribed(changes)
    assert (found.knob, found.then) == (knob, then)
    assert (found.current_value, found.value) == pytest.approx((current, value), abs=0.1)
    assert found.busy_ratio == pytest.approx(busy, abs=0.05)
    # What comes from outside, or can only be removed, may bring nothing.
    outside = {"network", "storage"} & changed(changes).stalls.keys() or knob in model.REMOVED
    assert found.at_most == bool(outside)
    assert (found.busy_low_ratio == found.current_busy_ratio) == found.at_most


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stalls": {"worker_cpu": 0.25, "host_code": 0.2, "cpu_queue": 0.25}}, "mixed"),
        ({"mains": 2, "owners": 2}, "shared"),
        ({"busy": 0.0, "stalls": {"asleep": 1.0}}, "no_work"),
        ({"stalls": {"peer": 0.7}}, "peer"),
        ({"stalls": {"peer": 0.3, "network": 0.4}, "active": 1.0}, "peer"),
        ({"stalls": {"unknown": 0.7}}, "unseen"),
        ({"free_cores": None}, "unseen"),
        ({"worker_starts": 0.2}, "churn"),
        ({"workers": 2.5}, "changing"),
        ({"stalls": {"storage": 0.7}, "saturated": True}, "saturated"),
        ({"free_cores": 0.1}, "no_cores"),
        ({**HELD, "free_cores": 0.0}, "no_cores"),
        ({"free_bytes": 0.4 * GIB}, "no_memory"),
        # Workers that rest although they are waited for, and those that wait for a task.
        ({"active": 0.6}, "inconsistent"),
        ({**SLEEPS, "active": 0.1}, "no_knob"),
        ({**CODE, "stalls": {"host_code": 0.04, "asleep": 0.76}}, "no_knob"),
        ({"busy": 0.84, "stalls": {"cpu_quota": 0.16}, "worker_queue": 0.0}, "unseen"),
    ],
)
def test_what_cannot_be_known_is_refused(changes: Changes, reason: str) -> None:
    assert advise(changed(changes)) == Refusal(reason)
    assert reason in model.REFUSALS


def test_a_gpu_that_nobody_has_needs_nothing() -> None:
    assert advise(changed({"busy": 0.0, "stalls": {"unallocated": 1.0}, "mains": 0})) is None


@pytest.mark.parametrize(
    ("changes", "knob", "value", "busy"),
    [
        *(({}, NUM_WORKERS, workers, 0.3 * workers / 2) for workers in (1, 3, 4, 5)),
        ({"stalls": {"worker_cpu": 0.4, "host_code": 0.3}}, NUM_WORKERS, 12, 0.3 / 0.6),
        # Batches differ and are taken in order: of two, 1.8 are at work at a time, of four 3.24.
        ({"active": 1.8}, NUM_WORKERS, 4, 0.3 * 3.24 / 1.8),
        (HELD, model.CPU_LIMIT, 1.0, 0.6),
        # The worker takes what the main took, 0.7 to 0.8 of a step, and the GPU works meanwhile.
        (READS, NUM_WORKERS, 1, 0.2 / 0.79),
        # Two mains load for three quarters of the time: a worker each does that beside them.
        (TWO, NUM_WORKERS, 2, 0.4 / 0.75),
    ],
)
def test_what_a_value_brings(changes: Changes, knob: str, value: float, busy: float) -> None:
    assert predicted(changes, knob, value).busy_ratio == pytest.approx(busy, abs=0.02)


def test_what_it_takes() -> None:
    found = prescribed({"data_bytes": 50e6})
    more = found.busy_ratio / found.current_busy_ratio - 1
    assert found.needs_bytes_per_second == pytest.approx(50e6 * more, rel=0.01)
    assert found.needs_cores == pytest.approx(2.1 * (1 / 0.3 - 1), rel=0.05)
    assert found.needs_memory_bytes == 5 * 0.5 * GIB
    assert prescribed({}).needs_bytes_per_second is None
    assert prescribed({"free_cores": 1.0}).needs_cores == pytest.approx(1.0)


def test_where_workers_wait_for_each_other_it_takes_more_of_them() -> None:
    assert prescribed({"active": 1.8}).value > prescribed({}).value


def test_storage_is_the_mains_as_far_as_workers_do_not_wait_for_it() -> None:
    """States are samples, and a write is the kernel's CPU time as well."""
    writes = changed(WRITES, stalls={"storage": 0.5}, main_disk=0.2)
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
    ],
)
def test_a_rank_that_is_changed_alone_brings_what_the_next_slowest_can_spare(
    others: list[Observed], pace: float, job: float
) -> None:
    seen = among(BURNS, others)
    found = advise(seen)
    assert isinstance(found, Prescription)
    own = advise(BURNS)
    assert isinstance(own, Prescription)
    assert (found.value, found.busy_ratio) == (own.value, own.busy_ratio)
    assert found.job_gpus == 1 + len(others)
    assert found.job_busy_ratio == pytest.approx(job, abs=0.01)
    only = alone(found, seen)
    assert only.busy_ratio == pytest.approx(min(0.3 * pace, 1.0), abs=0.01)
    assert only.busy_low_ratio <= only.busy_ratio <= only.busy_high_ratio


@pytest.mark.parametrize("other", [None, BURNS])
def test_of_ranks_that_are_not_seen_or_wait_for_nobody_nothing_is_said(
    other: Observed | None,
) -> None:
    found = advise(among(BURNS, [QUICK, other]))
    assert isinstance(found, Prescription)
    assert (found.job_gpus, found.job_busy_ratio) == (3, None)
    assert alone(found, among(BURNS, [])) == found


RANGES: Mapping[str, Sequence[float | None]] = {
    **dict.fromkeys(("busy", "main_queue", "main_disk", "main_network", "throttled"), (0, 1)),
    **dict.fromkeys(("active", "running", "worker_cores", "worker_queue"), (0, 64)),
    **dict.fromkeys(("threads", "main_cores"), (0, 4)),
    **dict.fromkeys(("job_busy", "slack"), (0, 1, None)),
    "limit_cores": (0.1, 64, None),
    "free_cores": (0, 64, None),
    **dict.fromkeys(("worker_bytes", "free_bytes"), (0, 100 * GIB, None)),
}
"""Of what may be seen; None: unknown is possible, too."""
OBSERVED = st.builds(
    Observed,
    seconds=st.just(30.0),
    stalls=st.dictionaries(st.sampled_from(stall.WAITING_ON), st.floats(0, 1), max_size=4),
    mains=st.integers(1, 3).map(float),
    workers=st.integers(0, 64).map(float),
    **dict.fromkeys(("main_writes", "main_reads", "saturated"), st.booleans()),
    **{
        name: st.floats(*ends[:2]) | (st.none() if None in ends else st.nothing())
        for name, ends in RANGES.items()
    },
)


def settled(seen: Observed) -> Observed:
    """With stalls that add up to the idle time."""
    whole = sum(seen.stalls.values())
    parts = (
        {cause: part / whole * seen.idle for cause, part in seen.stalls.items()} if whole else {}
    )
    return replace(seen, stalls=parts or {"unknown": seen.idle})


@given(OBSERVED.map(settled))
def test_whatever_is_seen_a_prescription_makes_sense(seen: Observed) -> None:
    found = advise(seen)
    if isinstance(found, Refusal):
        assert found.reason in model.REFUSALS
    if isinstance(found, Prescription):
        assert seen.busy < HEALTHY
        assert found.knob in model.KNOBS
        assert found.cause in stall.WAITING_ON
        assert 0 <= found.busy_low_ratio <= found.busy_ratio <= found.busy_high_ratio <= 1
        assert found.busy_ratio >= found.current_busy_ratio + 0.05
        assert found.value != found.current_value
        assert found.then is None or found.then in stall.WAITING_ON
        if found.free_cores is not None:
            assert found.needs_cores <= found.free_cores + 0.01
        if found.free_memory_bytes is not None and found.needs_memory_bytes is not None:
            assert found.needs_memory_bytes <= found.free_memory_bytes


@given(OBSERVED.map(settled), st.sampled_from([NUM_WORKERS, model.CPU_LIMIT]), st.integers(0, 64))
def test_whatever_is_asked_a_prediction_makes_sense(seen: Observed, knob: str, value: int) -> None:
    found = predict(seen, knob, value)
    if isinstance(found, Prescription):
        assert 0 <= found.busy_low_ratio <= found.busy_ratio <= found.busy_high_ratio <= 1
    else:
        assert found.reason in model.REFUSALS


def test_several_stretches_make_one_observation() -> None:
    first = changed({"seconds": 10.0, "busy": 0.2, "stalls": {"worker_cpu": 0.8}}, free_cores=None)
    second = changed({"busy": 0.4, "stalls": {"worker_cpu": 0.6}}, saturated=True, slack=0.2)
    found = merged([first, second])
    assert (found.seconds, found.free_cores, found.slack) == (40.0, second.free_cores, 0.2)
    assert found.busy == pytest.approx(0.35)
    assert found.stalls == pytest.approx({"worker_cpu": 0.65})
    assert not found.saturated
