"""How much batches differ, from the write calls of those that prepare them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from gpu_bottleneck_exporter.feeders.pace import Look, Pace

SECOND = 1_000_000_000


def looks(spread: float, mean: float, calls: int, seconds: float, seed: int) -> Iterator[Look]:
    """At one worker, once a second or so; batches are lognormal."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    sigma = math.sqrt(math.log1p(spread * spread))
    done, at, batches = 0.0, 0.0, 0
    ends = []
    while done < seconds + 2:
        done += mean * math.exp(draw.gauss(-sigma * sigma / 2, sigma))
        ends.append(done)
    while at < seconds:
        elapsed = draw.uniform(0.8, 1.2)
        at += elapsed
        now = sum(end <= at for end in ends)
        yield Look(seed, int(elapsed * SECOND), calls * (now - batches))
        batches = now


def found(spread: float, mean: float, calls: int = 1, workers: int = 2) -> float | None:
    pace = Pace()
    for worker in range(workers):
        for look in looks(spread, mean, calls, 60, worker):
            pace.add(look)
    return pace.spread()


@pytest.mark.parametrize("mean", [0.02, 0.15, 0.6])
@pytest.mark.parametrize("spread", [0.5, 1.0, 1.5])
def test_the_spread_is_found(spread: float, mean: float) -> None:
    assert found(spread, mean) == pytest.approx(spread, rel=0.35)


@pytest.mark.parametrize("mean", [0.02, 0.15, 0.6])
def test_batches_that_take_equally_long_have_none(mean: float) -> None:
    measured = found(0.0, mean)
    assert measured is not None
    assert measured < 0.2


@pytest.mark.parametrize("calls", [1, 3, 7])
def test_how_many_calls_a_batch_takes_does_not_matter(calls: int) -> None:
    assert found(1.0, 0.15, calls) == pytest.approx(found(1.0, 0.15), rel=0.01)


def test_without_permission_or_calls_nothing_is_known() -> None:
    pace = Pace()
    for worker in range(40):
        pace.add(Look(worker % 2, SECOND, 0))
    assert pace.spread() is None


def test_few_batches_tell_nothing() -> None:
    assert found(1.0, 12.0) is None


def test_the_first_look_at_a_worker_and_the_one_after_a_pause_only_begin() -> None:
    pace = Pace()
    for at in range(40):
        pace.note(1, at * SECOND, 5 if at else 10_000)
    pace.pause()
    pace.note(1, 1000 * SECOND, 10_000)
    assert pace.spread() == 0.0


def test_new_workers_begin_anew() -> None:
    pace = Pace()
    for look in looks(1.0, 0.15, 1, 60, 1):
        pace.add(look)
    pace.forget()
    assert pace.spread() is None


def test_who_hands_nothing_over_is_no_worker() -> None:
    pace = Pace()
    for look in looks(0.5, 0.15, 2, 60, 1):
        pace.add(look)
        pace.add(Look(2, look.elapsed_ns, 0))
        pace.add(Look(3, look.elapsed_ns, 12))
    assert pace.idlers() == 1


def test_nobody_is_judged_at_once_nor_without_permission() -> None:
    pace = Pace()
    pace.add(Look(1, SECOND, 50))
    pace.add(Look(2, SECOND, 0))
    assert pace.idlers() == 0
    blind = Pace()
    for _ in range(20):
        blind.add(Look(1, SECOND, 0))
        blind.add(Look(2, SECOND, 0))
    assert blind.idlers() == 0
