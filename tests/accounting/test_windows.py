"""The integrator: exact sums, nothing invented, nothing lost without being booked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_bottleneck_exporter.accounting.windows import Integrator, Window, WindowHistogram
from gpu_bottleneck_exporter.driver.readings import Ring, RingSample
from support.rows import rows

SECOND = 1_000_000_000
PERIOD_US = 200_000
PERIOD = PERIOD_US * 1000
EPOCH_US = 1_790_000_000_000_000
START = 10 * SECOND
Booked = tuple[float, float, float, float]
"""Observed, busy, unobserved and lost, in periods."""


def ring(*samples: tuple[float, int | None]) -> Ring:
    """Samples by the number of periods since the start."""
    return tuple(RingSample(EPOCH_US + round(at * PERIOD_US), percent) for at, percent in samples)


def busy(first: int, last: int) -> Ring:
    """A sample in each of these periods."""
    return ring(*((at, 100) for at in range(first, last + 1)))


@pytest.fixture
def started() -> Integrator:
    """One that has seen a full ring, whose last sample is of 10 s."""
    integrator = Integrator(SECOND)
    integrator.ring(START, ring(*((at, 50) for at in range(-9, 1))), None)
    return integrator


def booked(integrator: Integrator) -> Booked:
    totals = integrator.observed_ns, integrator.active_ns, integrator.unobserved_ns
    observed, active, unobserved = (ns / PERIOD for ns in totals)
    return observed, active, unobserved, integrator.lost_ns / PERIOD


@rows(
    "samples, expected",
    {
        "none since the start": ((), (0, 0, 0, 0)),
        "seen before": (busy(-9, 2), (2, 2, 0, 0)),
        "weighted by their windows": (ring((1, 100), (3, 25)), (3, 1.5, 0, 0)),
        "a void one": (ring((1, None), (2, 100), (3, 0)), (2, 1, 1, 0)),
        "late": (ring((1.5, 100)), (1.5, 1.5, 0, 0)),
        "two periods": (ring((2, 100)), (2, 2, 0, 0)),
        "one was dropped": (ring((3, 100)), (2, 2, 1, 1)),
        "three were": (ring((5, 100)), (2, 2, 3, 3)),
        "the clock jumped": (ring((8, 100)), (2, 2, 3, 3)),
        "lost time lies before the newest window": (busy(6, 9), (5, 5, 0, 0)),
        "set back: only the newest counts": (ring((-5, 0), (-4, 0), (-3, 100)), (1, 1, 0, 0)),
    },
)
def test_coverage_of_a_ring_one_second_later(
    started: Integrator, samples: Ring, expected: Booked
) -> None:
    started.ring(START + SECOND, samples, None)
    assert booked(started) == expected


def test_booked_time_is_bounded_by_elapsed_time(started: Integrator) -> None:
    started.ring(START + 3 * PERIOD, busy(1, 8), None)
    assert booked(started) == (3, 3, 0, 0)
    assert started.booked_at_ns == START + 3 * PERIOD
    started.ring(START + 4 * PERIOD, ring((20, 50)), None)
    assert booked(started) == (4, 3.5, 0, 0)
    assert started.booked_at_ns == START + 4 * PERIOD


def test_single_readings_stand_for_a_silence_of_more_than_three_periods(
    started: Integrator,
) -> None:
    assert started.ring(START + 3 * PERIOD, (), 100) == []
    first, second = started.ring(START + 4 * PERIOD, (), 50)
    assert first == Window(START + 3 * PERIOD, 3 * PERIOD, 3 * PERIOD)
    assert second == Window(START + 4 * PERIOD, PERIOD, PERIOD // 2)


@rows("silent, at", {"a silence": ((), (2, 4)), "a ring that is lost": (None, (4,))})
def test_samples_of_a_time_that_readings_stood_for_are_not_booked_again(
    started: Integrator, silent: Ring | None, at: tuple[int, ...]
) -> None:
    for periods in at:
        started.ring(START + periods * PERIOD, silent, 0)
    assert booked(started)[:2] == (4, 0)
    started.ring(START + 6 * PERIOD, busy(1, 6), None)
    assert booked(started)[:2] == (6, 2)


def test_a_silence_swallows_at_most_two_periods_later(started: Integrator) -> None:
    """The driver's clock stood still meanwhile, as in a machine that was suspended."""
    for periods in range(4, 40, 4):
        started.ring(START + periods * PERIOD, (), 0)
    started.ring(START + 37 * PERIOD, busy(5, 5), None)
    assert booked(started)[1] == 0
    started.ring(START + 41 * PERIOD, busy(6, 9), None)
    assert booked(started)[1] == 2


@rows(
    "readings, expected",
    {
        "each stands for its tick": ({1: 10, 2: 100, 3: 0}, (2, 1, 0)),
        "not for a long gap": ({1: 100, 61: 100}, (2, 2, 58)),
        "one that failed leaves its time to the next": ({1: 0, 2: None, 3: 50}, (2, 1, 0)),
    },
)
def test_readings_of_a_driver_without_a_ring(
    readings: dict[int, int | None], expected: tuple[int, int, int]
) -> None:
    integrator = Integrator(SECOND)
    for second, percent in readings.items():
        integrator.ring(second * SECOND, None, percent)
    assert booked(integrator)[:3] == tuple(5 * seconds for seconds in expected)


def test_a_mean_books_the_time_without_readings() -> None:
    integrator = Integrator(SECOND)
    integrator.mean(2 * SECOND, SECOND, 0.25)
    integrator.mean(2 * SECOND + PERIOD, SECOND, 1.0)
    assert booked(integrator) == (6, 1.25 + 1, 0, 0)
    integrator.mean(START + PERIOD, 2 * SECOND, 1.0)
    assert booked(integrator) == (16, 1.25 + 11, 30, 0)


def test_a_ring_that_comes_after_a_mean_begins_anew(started: Integrator) -> None:
    started.mean(11 * SECOND, SECOND, 0.5)
    assert started.ring(12 * SECOND, busy(9, 10), None) == []
    assert booked(started) == (5, 2.5, 5, 0)


@rows(
    "late, offset",
    {
        "as before": (0.0, 0.0),
        "read later": (0.5, 0.0),
        "read earlier": (-0.25, -0.25),
        "a clock was set": (2 * SECOND / PERIOD + 1, 2 * SECOND / PERIOD + 1),
    },
)
def test_the_drivers_clock_is_mapped_by_the_smallest_lag_unless_a_clock_was_set(
    started: Integrator, late: float, offset: float
) -> None:
    now = 11 * SECOND + round(late * PERIOD)
    (*_, last) = started.ring(now, busy(1, 5), None)
    assert last.end_ns == 11 * SECOND + round(offset * PERIOD)


def test_while_all_is_well_a_silent_ring_may_wait_for_four_periods_and_two_ticks(
    started: Integrator,
) -> None:
    assert Integrator(SECOND).longest_wait_ns() == 6 * SECOND, "until a period is known"
    assert started.longest_wait_ns() == 4 * PERIOD + 2 * SECOND
    started.ring(14 * SECOND, ring(*((2 * at, 0) for at in range(1, 9))), None)
    assert started.longest_wait_ns() == 4 * 2 * PERIOD + 2 * SECOND, "eight of fifteen are longer"


def test_histogram_counts_windows_by_how_busy_they_were() -> None:
    histogram = WindowHistogram()
    percents = [0, 5, 6, 50, 96, 100]
    histogram.observe([Window(0, 100, percent) for percent in percents])
    assert histogram.cumulative() == [2, 3, 4, 4, 4, 6]
    assert histogram.sum == sum(percents) / 100


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, Ring, int | None]]:
    """Feeds as a driver may give them: jittery ticks, irregular windows, gaps, silence, steps."""
    feeds: list[tuple[int, Ring, int | None]] = []
    now, stamp = 100 * SECOND, EPOCH_US + 50 * 10**6
    for _ in range(draw(st.integers(1, 30))):
        tick = draw(st.integers(200_000_000, 12 * SECOND))
        now += tick
        kind = draw(st.sampled_from(["samples", "samples", "silent", "failed", "step"]))
        if kind == "step":
            stamp += draw(st.integers(-(10**10), 10**10))
        samples: list[RingSample] = []
        if kind in ("samples", "step"):
            step = draw(st.integers(100_000, 1_000_000))
            for _ in range(max(tick // 1000 // step, 1)):
                stamp += step
                samples.append(RingSample(stamp, draw(st.integers(0, 100))))
        percent = None if kind == "failed" else draw(st.integers(0, 100))
        feeds.append((now, tuple(samples), percent))
    return feeds


@given(histories())
@settings(max_examples=300)
def test_the_books_balance_for_any_answer_of_the_driver(
    feeds: list[tuple[int, Ring, int | None]],
) -> None:
    integrator = Integrator(SECOND)
    observed = active = 0
    before = booked(integrator)
    for now, drained, percent in feeds:
        for window in integrator.ring(now, drained, percent):
            assert 0 <= window.active_ns <= window.duration_ns
            observed += window.duration_ns
            active += window.active_ns
        after = booked(integrator)
        assert all(new >= old for new, old in zip(after, before, strict=True))
        before = after
    assert (integrator.observed_ns, integrator.active_ns) == (observed, active)


@given(st.lists(st.tuples(st.integers(200_000_000, 30 * SECOND), st.integers(0, 100)), min_size=2))
def test_without_a_ring_observed_and_unobserved_are_all_of_time(
    ticks: list[tuple[int, int]],
) -> None:
    integrator = Integrator(SECOND)
    now = 0
    for step, percent in ticks:
        now += step
        integrator.reading(now, percent)
    assert integrator.observed_ns + integrator.unobserved_ns == now - ticks[0][0]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=200), st.integers(1, 60))
def test_the_tick_does_not_change_the_sum(percents: list[int], batch: int) -> None:
    item, many = Integrator(SECOND), Integrator(SECOND)
    samples = [*enumerate(percents, start=1)]
    for integrator, count in ((item, 1), (many, batch)):
        integrator.ring(START, ring(*((at, 50) for at in range(-9, 1))), None)
        for start in range(0, len(samples), count):
            part = samples[start : start + count]
            integrator.ring(START + part[-1][0] * PERIOD, ring(*part), None)
    assert booked(item) == booked(many)
