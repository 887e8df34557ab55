"""What of the time a window covers: void samples, silences, jumps of the driver's clock."""

from __future__ import annotations

import pytest

from gpu_bottleneck_exporter.accounting.windows import Integrator
from gpu_bottleneck_exporter.driver.readings import Ring, RingSample

SECOND = 1_000_000_000
PERIOD_US = 200_000
PERIOD = PERIOD_US * 1000
EPOCH_US = 1_790_000_000_000_000


def ring(*samples: tuple[float, int | None]) -> Ring:
    """Samples by the number of periods since the start."""
    return tuple(RingSample(EPOCH_US + round(at * PERIOD_US), percent) for at, percent in samples)


@pytest.fixture
def started() -> Integrator:
    """One that has seen a full ring, whose last sample is of 10 s."""
    integrator = Integrator(SECOND)
    integrator.ring(10 * SECOND, ring(*((at, 50) for at in range(-9, 1))), None)
    return integrator


def booked(integrator: Integrator) -> tuple[float, float, float, float]:
    """Observed, busy, unobserved and lost, in periods."""
    totals = integrator.observed_ns, integrator.active_ns, integrator.unobserved_ns
    observed, active, unobserved = (ns / PERIOD for ns in totals)
    return observed, active, unobserved, integrator.lost_ns / PERIOD


def test_a_void_sample_covers_its_window_with_nothing_known(started: Integrator) -> None:
    started.ring(11 * SECOND, ring((1, None), (2, 100), (3, 0)), None)
    assert booked(started) == (2, 1, 1, 0)


@pytest.mark.parametrize(
    ("step", "observed", "lost"),
    [(1.5, 1.5, 0), (2, 2, 0), (3, 2, 1), (5, 2, 3), (8, 2, 3)],
    ids=["late", "two", "one was dropped", "three were", "the clock jumped"],
)
def test_a_sample_covers_two_periods_and_no_more_is_lost_than_has_passed(
    started: Integrator, step: float, observed: float, lost: float
) -> None:
    started.ring(11 * SECOND, ring((step, 100)), None)
    assert booked(started) == (observed, observed, lost, lost)


def test_what_is_lost_lies_before_the_newest_sample(started: Integrator) -> None:
    """A second has passed, of which the last three samples cover three fifths."""
    started.ring(11 * SECOND, ring((6, 100), (7, 100), (8, 100), (9, 100)), None)
    assert booked(started)[3] == 0
    assert booked(started)[0] == 5


def test_single_readings_stand_for_a_silence_of_more_than_three_periods(
    started: Integrator,
) -> None:
    assert started.ring(10 * SECOND + 3 * PERIOD, (), 100) == []
    (first, second) = started.ring(10 * SECOND + 4 * PERIOD, (), 50)
    assert (first.duration_ns, first.active_ns) == (3 * PERIOD, 3 * PERIOD)
    assert (second.duration_ns, second.active_ns) == (PERIOD, PERIOD // 2)
    assert (first.end_ns, second.end_ns) == (10 * SECOND + 3 * PERIOD, 10 * SECOND + 4 * PERIOD)


def test_samples_of_a_time_that_readings_stood_for_are_not_booked_again(
    started: Integrator,
) -> None:
    for periods in (2, 4):
        started.ring(10 * SECOND + periods * PERIOD, (), 0)
    assert booked(started)[:2] == (4, 0)
    started.ring(10 * SECOND + 6 * PERIOD, ring(*((at, 100) for at in range(1, 7))), None)
    assert booked(started)[:2] == (6, 2)


def test_a_silence_swallows_no_more_than_two_periods_later(started: Integrator) -> None:
    """The driver's clock stood still meanwhile, as in a machine that was suspended."""
    for periods in range(4, 40, 4):
        started.ring(10 * SECOND + periods * PERIOD, (), 0)
    started.ring(10 * SECOND + 37 * PERIOD, ring((5, 100)), None)
    assert booked(started)[1] == 0
    started.ring(10 * SECOND + 41 * PERIOD, ring(*((at, 100) for at in range(6, 10))), None)
    assert booked(started)[1] == 2


def test_a_mean_books_what_no_reading_has_booked() -> None:
    integrator = Integrator(SECOND)
    integrator.mean(2 * SECOND, SECOND, 0.25)
    integrator.mean(2 * SECOND + PERIOD, SECOND, 1.0)
    assert booked(integrator) == (6, 1.25 + 1, 0, 0)


def test_a_ring_that_comes_after_a_mean_begins_anew(started: Integrator) -> None:
    started.mean(11 * SECOND, SECOND, 0.5)
    assert started.ring(12 * SECOND, ring((9, 100), (10, 100)), None) == []
    assert booked(started) == (5, 2.5, 5, 0)


@pytest.mark.parametrize(
    ("late", "offset"),
    [(0.0, 0.0), (0.5, 0.0), (-0.25, -0.25), (2 * SECOND / PERIOD + 1, 2 * SECOND / PERIOD + 1)],
    ids=["as before", "read later", "read earlier", "a clock was set"],
)
def test_the_drivers_clock_is_mapped_by_the_smallest_lag_unless_a_clock_was_set(
    started: Integrator, late: float, offset: float
) -> None:
    now = 11 * SECOND + round(late * PERIOD)
    (*_, last) = started.ring(now, ring(*((at, 100) for at in range(1, 6))), None)
    assert last.end_ns == 11 * SECOND + round(offset * PERIOD)


def test_while_all_is_well_a_silent_ring_may_wait_for_four_periods_and_two_ticks(
    started: Integrator,
) -> None:
    assert started.longest_wait_ns() == 4 * PERIOD + 2 * SECOND
    assert Integrator(SECOND).longest_wait_ns() == 6 * SECOND, "until a period is known"


def test_readings_of_a_driver_that_lost_its_ring_are_not_booked_again_once_it_is_back(
    started: Integrator,
) -> None:
    started.ring(10 * SECOND + 4 * PERIOD, None, 0)
    assert booked(started)[:2] == (4, 0)
    started.ring(10 * SECOND + 6 * PERIOD, ring(*((at, 100) for at in range(1, 7))), None)
    assert booked(started)[:2] == (6, 2)


def test_of_samples_from_before_the_drivers_clock_was_set_back_only_the_newest_counts(
    started: Integrator,
) -> None:
    started.ring(11 * SECOND, ring((-5, 0), (-4, 0), (-3, 100)), None)
    assert booked(started) == (1, 1, 0, 0)


def test_no_more_is_booked_than_has_passed(started: Integrator) -> None:
    started.ring(10 * SECOND + 3 * PERIOD, ring(*((at, 100) for at in range(1, 9))), None)
    assert booked(started) == (3, 3, 0, 0)
    assert started.booked_at_ns == 10 * SECOND + 3 * PERIOD
    started.ring(10 * SECOND + 4 * PERIOD, ring((20, 50)), None)
    assert booked(started) == (4, 3.5, 0, 0)
    assert started.booked_at_ns == 10 * SECOND + 4 * PERIOD


def test_the_period_is_that_of_the_last_fifteen_samples(started: Integrator) -> None:
    stamps = [2 * at for at in range(1, 9)]
    started.ring(14 * SECOND, ring(*((at, 0) for at in stamps)), None)
    assert started.longest_wait_ns() == 4 * 2 * PERIOD + 2 * SECOND, "eight of fifteen are longer"
