"""The integrator: exact sums, nothing invented, nothing lost without being booked."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_bottleneck_exporter.accounting.windows import Integrator, Window, WindowHistogram
from gpu_bottleneck_exporter.driver.readings import (
    Ring,
    RingSample,
)

SECOND = 1_000_000_000
PERIOD_US = 170_000
EPOCH_US = 1_790_000_000_000_000


def ring(*samples: tuple[int, int]) -> Ring:
    return tuple(RingSample(EPOCH_US + t, p) for t, p in samples)


def windows_at(first: int, count: int, percent: int = 50) -> list[tuple[int, int]]:
    return [((first + i) * PERIOD_US, percent) for i in range(count)]


def started(now_ns: int = 10 * SECOND) -> Integrator:
    """An integrator that has drained a full ring ending now."""
    integrator = Integrator(SECOND)
    integrator.ring(now_ns, ring(*windows_at(0, 10)), None)
    return integrator


def totals(integrator: Integrator) -> tuple[int, int, int]:
    return integrator.observed_ns, integrator.active_ns, integrator.unobserved_ns


def test_what_the_ring_remembers_from_before_the_start_does_not_count() -> None:
    assert totals(started()) == (0, 0, 0)


def test_samples_are_weighted_by_their_windows() -> None:
    integrator = started()
    integrator.ring(11 * SECOND, ring((10 * PERIOD_US, 100), (12 * PERIOD_US, 25)), None)
    assert integrator.observed_ns == 3 * PERIOD_US * 1000
    assert integrator.active_ns == PERIOD_US * 1000 * 100 // 100 + 2 * PERIOD_US * 1000 * 25 // 100
    assert integrator.unobserved_ns == 0


def test_a_gap_in_the_ring_is_unobserved_beyond_two_periods() -> None:
    integrator = started()
    integrator.ring(55 * SECOND, ring(((9 + 200) * PERIOD_US, 100)), None)
    assert integrator.observed_ns == 2 * PERIOD_US * 1000
    assert integrator.unobserved_ns == integrator.lost_ns == 198 * PERIOD_US * 1000


def test_a_driver_clock_set_forward_invents_no_time() -> None:
    integrator = started()
    integrator.ring(11 * SECOND, ring((3600 * 10**6, 100)), None)
    assert integrator.observed_ns == 2 * PERIOD_US * 1000
    assert integrator.unobserved_ns <= SECOND


def test_a_driver_clock_set_back_costs_one_window_at_most() -> None:
    integrator = started()
    integrator.ring(11 * SECOND, ring((-3600 * 10**6, 100)), None)
    assert integrator.observed_ns == PERIOD_US * 1000
    integrator.ring(12 * SECOND, ring((-3600 * 10**6 + PERIOD_US, 100)), None)
    assert integrator.observed_ns == 2 * PERIOD_US * 1000


def test_samples_seen_before_are_not_counted_again() -> None:
    integrator = started()
    integrator.ring(11 * SECOND, ring(*windows_at(0, 13)), None)
    assert integrator.observed_ns == 3 * PERIOD_US * 1000


def test_one_empty_drain_is_no_silence() -> None:
    integrator = started()
    assert integrator.ring(10 * SECOND + 200_000_000, (), 80) == []
    integrator.ring(10 * SECOND + 400_000_000, ring(*windows_at(10, 2, 30)), None)
    assert integrator.observed_ns == 2 * PERIOD_US * 1000
    assert integrator.active_ns == integrator.observed_ns * 30 // 100


def test_a_silent_ring_is_replaced_by_single_readings() -> None:
    integrator = started()
    for second in range(11, 16):
        integrator.ring(second * SECOND, (), 40)
    assert integrator.observed_ns == 5 * SECOND
    assert integrator.active_ns == 2 * SECOND
    assert integrator.unobserved_ns == 0


def test_samples_after_a_silence_do_not_count_the_time_twice() -> None:
    integrator = started()
    for second in range(11, 16):
        integrator.ring(second * SECOND, (), 0)
    late = [(9 * PERIOD_US + us, 100) for us in range(PERIOD_US, 6_000_000, PERIOD_US)]
    integrator.ring(16 * SECOND, ring(*late), None)
    elapsed = 9 * PERIOD_US + (late[-1][0] - 9 * PERIOD_US)
    assert integrator.observed_ns == elapsed * 1000 - 9 * PERIOD_US * 1000
    assert integrator.active_ns == integrator.observed_ns - 5 * SECOND


def test_without_a_ring_each_reading_stands_for_its_tick() -> None:
    integrator = Integrator(SECOND)
    for second, percent in ((1, 10), (2, 100), (3, 0)):
        integrator.ring(second * SECOND, None, percent)
    assert totals(integrator) == (2 * SECOND, SECOND, 0)


def test_one_reading_does_not_stand_for_a_long_gap() -> None:
    integrator = Integrator(SECOND)
    integrator.reading(SECOND, 100)
    integrator.reading(61 * SECOND, 100)
    assert totals(integrator) == (2 * SECOND, 2 * SECOND, 58 * SECOND)


def test_a_reading_that_failed_leaves_its_time_to_the_next() -> None:
    integrator = Integrator(SECOND)
    integrator.reading(SECOND, 0)
    integrator.reading(2 * SECOND, None)
    integrator.reading(3 * SECOND, 50)
    assert totals(integrator) == (2 * SECOND, SECOND, 0)


def test_means_cover_their_interval_and_gaps_are_booked() -> None:
    integrator = Integrator(SECOND)
    integrator.mean(2 * SECOND, SECOND, 0.25)
    integrator.mean(10 * SECOND, 2 * SECOND, 1.0)
    assert totals(integrator) == (3 * SECOND, 2 * SECOND + SECOND // 4, 6 * SECOND)


def test_windows_end_where_the_monotonic_clock_says() -> None:
    integrator = started(10 * SECOND)
    (window,) = integrator.ring(11 * SECOND, ring((10 * PERIOD_US, 100)), None)
    assert window == Window(10 * SECOND + PERIOD_US * 1000, PERIOD_US * 1000, PERIOD_US * 1000)


def test_histogram_counts_windows_by_how_busy_they_were() -> None:
    histogram = WindowHistogram()
    busy = [0, 5, 6, 50, 96, 100]
    histogram.observe([Window(0, 100, percent) for percent in busy])
    assert histogram.cumulative() == [2, 3, 4, 4, 4, 6]
    assert histogram.sum == sum(busy) / 100


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
def test_whatever_the_driver_says_the_books_balance(
    feeds: list[tuple[int, Ring, int | None]],
) -> None:
    integrator = Integrator(SECOND)
    observed = active = 0
    before = totals(integrator)
    for now, drained, percent in feeds:
        for window in integrator.ring(now, drained, percent):
            assert 0 <= window.active_ns <= window.duration_ns
            observed += window.duration_ns
            active += window.active_ns
        after = totals(integrator)
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
    one, many = started(), started()
    samples = [((10 + i) * PERIOD_US, percent) for i, percent in enumerate(percents)]
    for sample in samples:
        one.ring(10 * SECOND + sample[0] * 1000, ring(sample), None)
    for start in range(0, len(samples), batch):
        part = samples[start : start + batch]
        many.ring(10 * SECOND + part[-1][0] * 1000, ring(*part), None)
    assert totals(one) == totals(many)
