"""What is prescribed for which loop, and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.accounting.stall import (
    ASLEEP,
    CPU_QUEUE,
    CPU_QUOTA,
    HOST_CODE,
    NETWORK,
    PEER,
    STORAGE,
    UNALLOCATED,
    UNKNOWN,
    WAITING_ON,
    WORKER_CPU,
)
from gpu_bottleneck_exporter.prescription.advise import HEALTHY, advise, parts_of, predict
from gpu_bottleneck_exporter.prescription.model import (
    CHECKPOINTS,
    CPU_CORES,
    CPU_LIMIT,
    KNOBS,
    NUM_WORKERS,
    REFUSALS,
    Prescription,
    Refusal,
)
from gpu_bottleneck_exporter.prescription.model import (
    HOST_CODE as HOST_CODE_KNOB,
)
from gpu_bottleneck_exporter.prescription.observed import Observed, merged

GIB = 2.0**30
BURNS = Observed(
    seconds=30.0,
    busy=0.3,
    stalls={WORKER_CPU: 0.7},
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
HELD = replace(
    BURNS,
    stalls={CPU_QUOTA: 0.7},
    worker_cores=0.5,
    main_cores=0.0,
    worker_queue=1.5,
    limit_cores=0.5,
    throttled=1.0,
)
"""The same under a CPU limit of half a core."""
READS = Observed(
    seconds=30.0,
    busy=0.2,
    stalls={STORAGE: 0.7, HOST_CODE: 0.1},
    main_disk=0.7,
    main_cores=0.2,
    main_reads=True,
    free_cores=8.0,
)
"""The main reads its batches itself."""


def prescribed(seen: Observed) -> Prescription:
    found = advise(seen)
    assert isinstance(found, Prescription)
    return found


def changed(seen: Observed, **changes: Any) -> Observed:  # noqa: ANN401 - of Observed
    return replace(seen, **changes)


def test_workers_that_keep_up_with_the_gpu_are_prescribed() -> None:
    found = prescribed(BURNS)
    assert (found.knob, found.current_value, found.value) == (NUM_WORKERS, 2, 7)
    assert found.busy_ratio == pytest.approx(1.0, abs=0.01)
    assert found.busy_low_ratio < 0.97 < found.busy_high_ratio
    assert not found.at_most
    assert found.needs_cores == pytest.approx(2.1 * (1 / 0.3 - 1), rel=0.05)
    assert found.needs_memory_bytes == 5 * 0.5 * GIB


def test_starved_throughput_grows_with_the_workers() -> None:
    for workers in (1, 3, 4, 5):
        found = predict(BURNS, NUM_WORKERS, workers)
        assert isinstance(found, Prescription)
        assert found.busy_ratio == pytest.approx(0.3 * workers / 2, abs=0.02)
        assert found.busy_low_ratio <= found.busy_ratio <= found.busy_high_ratio


def test_the_mains_own_time_is_the_ceiling_and_is_named() -> None:
    slow = changed(BURNS, stalls={WORKER_CPU: 0.4, HOST_CODE: 0.3})
    assert prescribed(slow).then == HOST_CODE
    found = predict(slow, NUM_WORKERS, 12)
    assert isinstance(found, Prescription)
    assert found.busy_ratio == pytest.approx(0.3 / 0.6)


def test_free_cores_limit_how_many_workers_are_prescribed() -> None:
    found = prescribed(changed(BURNS, free_cores=1.0))
    assert found.value == 3
    assert found.needs_cores == pytest.approx(1.0)
    assert found.then == CPU_QUEUE


def test_a_machine_without_free_cores_gets_no_more_workers() -> None:
    assert advise(changed(BURNS, free_cores=0.1)) == Refusal("no_cores")
    assert advise(changed(BURNS, free_cores=None)) == Refusal("unseen")


def test_workers_that_only_wait_need_no_cores() -> None:
    waits = changed(BURNS, stalls={NETWORK: 0.7}, running=0.0, worker_cores=0.01, main_cores=0.01)
    found = prescribed(changed(waits, free_cores=1.0))
    assert found.value == 7
    assert found.at_most
    assert found.busy_low_ratio == found.current_busy_ratio


def test_workers_that_sleep_are_at_work_and_those_that_wait_for_a_task_are_not() -> None:
    stalls = {ASLEEP: 0.66, WORKER_CPU: 0.04}
    sleeps = changed(BURNS, stalls=stalls, running=0.0, worker_cores=0.01, main_cores=0.01)
    found = prescribed(sleeps)
    assert (found.knob, found.value) == (NUM_WORKERS, 7)
    assert advise(changed(sleeps, active=0.1)) == Refusal("no_knob")


def test_under_a_limit_that_is_used_up_the_limit_is_the_knob() -> None:
    crowded = changed(BURNS, limit_cores=2.1, throttled=0.9)
    found = advise(crowded)
    assert found is None or not isinstance(found, Prescription) or found.knob == CPU_LIMIT


def test_memory_limits_how_many_workers_are_prescribed() -> None:
    assert prescribed(changed(BURNS, free_bytes=1.2 * GIB)).value == 4
    assert advise(changed(BURNS, free_bytes=0.4 * GIB)) == Refusal("no_memory")


def test_where_workers_wait_for_each_other_more_of_them_bring_less() -> None:
    """Batches differ and are taken in order: of two, 1.8 are at work at a time, of four 3.24."""
    uneven = changed(BURNS, active=1.8)
    found = predict(uneven, NUM_WORKERS, 4)
    assert isinstance(found, Prescription)
    assert found.busy_ratio == pytest.approx(0.3 * 3.24 / 1.8)
    assert prescribed(uneven).value > prescribed(BURNS).value


def test_workers_that_rest_while_they_are_waited_for_are_no_reason_for_more() -> None:
    assert advise(changed(BURNS, active=0.6)) == Refusal("inconsistent")


def test_a_cpu_limit_is_raised_to_what_the_job_would_use() -> None:
    found = prescribed(HELD)
    assert (found.knob, found.current_value) == (CPU_LIMIT, 0.5)
    # Without the limit the two workers burn 2 cores: four times as many batches, which is more
    # than the GPU can take.
    assert found.value == 2.0
    assert found.busy_ratio == pytest.approx(1.0, abs=0.02)


def test_a_limit_that_is_only_doubled_brings_twice_as_much() -> None:
    found = predict(HELD, CPU_LIMIT, 1.0)
    assert isinstance(found, Prescription)
    assert found.busy_ratio == pytest.approx(0.6, abs=0.02)


def test_a_limit_that_the_machine_cannot_give_is_not_asked_for() -> None:
    assert advise(changed(HELD, free_cores=0.0)) == Refusal("no_cores")


def test_competition_for_cores_says_how_many_would_be_used() -> None:
    crowded = changed(HELD, stalls={CPU_QUEUE: 0.7}, limit_cores=None, throttled=0.0)
    found = prescribed(crowded)
    assert found.knob == CPU_CORES
    assert found.current_value == pytest.approx(0.5)
    assert found.value == pytest.approx(1.7, abs=0.1)


def test_workers_that_wait_for_cores_half_of_the_time_get_cores_rather_than_workers() -> None:
    crowded = changed(BURNS, worker_cores=1.0, worker_queue=1.0, free_cores=0.0)
    found = prescribed(crowded)
    assert found.knob == CPU_CORES
    assert found.busy_ratio == pytest.approx(0.6, abs=0.05)


def test_loading_in_the_main_process_moves_to_workers() -> None:
    found = prescribed(READS)
    assert (found.knob, found.current_value) == (NUM_WORKERS, 0)
    assert found.at_most
    one = predict(READS, NUM_WORKERS, 1)
    assert isinstance(one, Prescription)
    # The worker takes what the main took, 0.7 to 0.8 of a step, and the GPU works meanwhile.
    assert one.busy_ratio == pytest.approx(0.2 / 0.79, abs=0.02)


def test_host_code_of_a_main_that_reads_nothing_is_not_taken_for_loading() -> None:
    found = prescribed(changed(READS, stalls={HOST_CODE: 0.8}, main_reads=False, main_disk=0.0))
    assert (found.knob, found.value) == (HOST_CODE_KNOB, 0.0)
    assert found.at_most
    assert found.busy_low_ratio == found.current_busy_ratio
    assert found.busy_ratio == pytest.approx(1.0)


def test_checkpoints_bring_at_most_the_time_that_they_take() -> None:
    writes = changed(BURNS, stalls={STORAGE: 0.5, HOST_CODE: 0.2}, main_disk=0.5, main_writes=True)
    found = prescribed(changed(writes, active=0.0))
    assert (found.knob, found.then) == (CHECKPOINTS, HOST_CODE)
    assert found.busy_ratio == pytest.approx(0.3 / (1 - 1.2 * 0.5))


def test_storage_is_the_mains_as_far_as_workers_do_not_wait_for_it() -> None:
    """States are samples, and a write is the kernel's CPU time as well."""
    writes = changed(BURNS, stalls={STORAGE: 0.5}, main_disk=0.2, main_writes=True, active=0.0)
    assert parts_of(writes)[CHECKPOINTS] == pytest.approx(0.5)
    shared = parts_of(changed(writes, reading=0.6))
    assert shared[CHECKPOINTS] == pytest.approx(0.125)
    assert shared[NUM_WORKERS] == pytest.approx(0.375)


def test_more_steps_take_more_data() -> None:
    found = prescribed(changed(BURNS, data_bytes=50e6))
    more = found.busy_ratio / found.current_busy_ratio - 1
    assert found.needs_bytes_per_second == pytest.approx(50e6 * more, rel=0.01)
    assert prescribed(BURNS).needs_bytes_per_second is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stalls": {WORKER_CPU: 0.25, HOST_CODE: 0.2, CPU_QUEUE: 0.25}}, "mixed"),
        ({"mains": 2, "owners": 2}, "shared"),
        ({"busy": 0.0, "stalls": {ASLEEP: 1.0}}, "no_work"),
        ({"stalls": {PEER: 0.7}}, "peer"),
        ({"stalls": {UNKNOWN: 0.7}}, "unseen"),
        ({"worker_starts": 0.2}, "churn"),
        ({"workers": 2.5}, "changing"),
        ({"stalls": {STORAGE: 0.7}, "saturated": True}, "saturated"),
    ],
)
def test_what_cannot_be_known_is_refused(changes: dict[str, Any], reason: str) -> None:
    assert advise(changed(BURNS, **changes)) == Refusal(reason)
    assert reason in REFUSALS


def test_a_gpu_that_nobody_has_needs_nothing() -> None:
    assert advise(changed(BURNS, busy=0.0, stalls={UNALLOCATED: 1.0}, mains=0)) is None


OBSERVED = st.builds(
    Observed,
    seconds=st.just(30.0),
    busy=st.floats(0, 1),
    stalls=st.dictionaries(st.sampled_from(WAITING_ON), st.floats(0, 1), max_size=4),
    workers=st.integers(0, 64).map(float),
    active=st.floats(0, 64),
    running=st.floats(0, 64),
    threads=st.floats(0, 2),
    worker_cores=st.floats(0, 64),
    worker_queue=st.floats(0, 64),
    main_cores=st.floats(0, 4),
    main_queue=st.floats(0, 1),
    main_disk=st.floats(0, 1),
    main_network=st.floats(0, 1),
    main_writes=st.booleans(),
    main_reads=st.booleans(),
    throttled=st.floats(0, 1),
    limit_cores=st.none() | st.floats(0.1, 64),
    free_cores=st.none() | st.floats(0, 64),
    worker_bytes=st.none() | st.floats(0, 100 * GIB),
    free_bytes=st.none() | st.floats(0, 100 * GIB),
    saturated=st.booleans(),
)


def settled(seen: Observed) -> Observed:
    """With stalls that add up to the idle time."""
    whole = sum(seen.stalls.values())
    parts = (
        {cause: part / whole * seen.idle for cause, part in seen.stalls.items()} if whole else {}
    )
    return replace(seen, stalls=parts or {UNKNOWN: seen.idle})


@given(OBSERVED.map(settled))
def test_whatever_is_seen_a_prescription_makes_sense(seen: Observed) -> None:
    found = advise(seen)
    if isinstance(found, Refusal):
        assert found.reason in REFUSALS
    if isinstance(found, Prescription):
        assert seen.busy < HEALTHY
        assert found.knob in KNOBS
        assert found.cause in WAITING_ON
        assert 0 <= found.busy_low_ratio <= found.busy_ratio <= found.busy_high_ratio <= 1
        assert found.busy_ratio >= found.current_busy_ratio + 0.05
        assert found.value != found.current_value
        assert found.then is None or found.then in WAITING_ON
        if found.free_cores is not None:
            assert found.needs_cores <= found.free_cores + 0.01
        if found.free_memory_bytes is not None and found.needs_memory_bytes is not None:
            assert found.needs_memory_bytes <= found.free_memory_bytes


@given(OBSERVED.map(settled), st.sampled_from([NUM_WORKERS, CPU_LIMIT]), st.integers(0, 64))
def test_whatever_is_asked_a_prediction_makes_sense(seen: Observed, knob: str, value: int) -> None:
    found = predict(seen, knob, value)
    if isinstance(found, Prescription):
        assert 0 <= found.busy_low_ratio <= found.busy_ratio <= found.busy_high_ratio <= 1
    else:
        assert found.reason in REFUSALS


def test_several_stretches_make_one_observation() -> None:
    first = changed(BURNS, seconds=10.0, busy=0.2, stalls={WORKER_CPU: 0.8}, free_cores=None)
    second = changed(BURNS, seconds=30.0, busy=0.4, stalls={WORKER_CPU: 0.6}, saturated=True)
    found = merged([first, second])
    assert found.seconds == 40.0
    assert found.busy == pytest.approx(0.35)
    assert found.stalls == pytest.approx({WORKER_CPU: 0.65})
    assert found.free_cores == second.free_cores
    assert not found.saturated
