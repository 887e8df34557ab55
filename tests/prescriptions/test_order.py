"""Loaders that hand batches over in order wait for the slowest: predictions against simulations."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.prescription.advise import TrainingLoop, advise, predict
from gpu_bottleneck_exporter.prescription.model import NUM_WORKERS, Prescription
from gpu_bottleneck_exporter.prescription.observed import Observed

BATCHES = 20_000
_AHEAD = 2
"""Batches that a worker begins before those in front of them are taken."""
Times = Callable[[random.Random], float]


def lognormal(spread: float) -> Times:
    return lambda draw: draw.lognormvariate(-spread / 2, math.sqrt(spread))


@cache
def simulated(workers: int, serial: float, times: Times, work: float = 1.0) -> float:
    """Batches per unit of time of PyTorch's DataLoader: worker i makes each batch i mod n."""
    draw = random.Random(7)  # noqa: S311 - no secret
    made, taken = [0.0] * BATCHES, [0.0] * BATCHES
    ends = 0.0
    for batch in range(BATCHES):
        begins = made[batch - workers] if batch >= workers else 0.0
        if batch >= _AHEAD * workers:
            begins = max(begins, taken[batch - _AHEAD * workers])
        made[batch] = begins + work * times(draw)
        taken[batch] = max(made[batch], ends)
        ends = taken[batch] + serial
    return BATCHES / ends


def observed(workers: int, serial: float, times: Times, spread: float | None = None) -> Observed:
    """Observation of a simulated loop whose main only waits for workers and for the GPU."""
    rate = simulated(workers, serial, times)
    busy = serial * rate
    return Observed(
        seconds=60.0,
        busy=busy,
        stalls={stall.NETWORK: 1 - busy},
        workers=workers,
        active=rate,  # Little's law, as a batch takes one unit of time
        spread=spread,
        free_cores=8.0,
    )


def expected(seen: Observed, workers: int) -> float:
    prediction = predict(seen, NUM_WORKERS, workers)
    assert isinstance(prediction, Prescription), prediction
    return prediction.busy_ratio


EVEN: Times = lambda _: 1.0  # noqa: E731 - as the others are made
CV = {cv: lognormal(math.log1p(cv * cv)) for cv in (0.3, 0.5, 0.7, 1.0, 1.5)}


@pytest.mark.parametrize("cv", CV)
def test_the_rate_is_that_of_a_loader_in_order(cv: float) -> None:
    for workers, serial in product((1, 2, 3, 9, 32), (0.03, 0.1, 0.4)):
        loop = TrainingLoop(1.0, serial, stall.NETWORK, math.log1p(cv * cv))
        true = simulated(workers, serial, CV[cv])
        assert loop.rate(workers) == pytest.approx(true, rel=0.05), (workers, serial)


CHANGES = [(1, 3, 0.33), (1, 2, 0.1), (2, 9, 0.11), (2, 4, 0.15), (4, 8, 0.15), (8, 16, 0.08)]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("cv", [0.0, *CV])
def test_the_gain_of_workers_is_that_of_an_ordered_loader(
    cv: float, change: tuple[int, int, float]
) -> None:
    """The spread of a lone worker is measured; several are seen to wait for each other."""
    before, after, serial = change
    times = CV.get(cv, EVEN)
    observation = observed(before, serial, times, math.log1p(cv * cv) if before == 1 else None)
    true = serial * simulated(after, serial, times)
    assert expected(observation, after) == pytest.approx(true, abs=0.03)


def test_without_a_measured_spread_a_lone_worker_is_taken_to_be_even() -> None:
    observation = observed(1, 0.1, CV[1.0])
    assert expected(observation, 3) == pytest.approx(3 * observation.busy)
    assert expected(replace(observation, spread=0.0), 3) == pytest.approx(3 * observation.busy)


@pytest.mark.parametrize("cv", [0.0, *CV])
def test_the_prescribed_workers_make_the_gpu_nearly_as_busy_as_possible(cv: float) -> None:
    times, serial = CV.get(cv, EVEN), 0.1
    advice = advise(observed(1, serial, times, math.log1p(cv * cv)))
    assert isinstance(advice, Prescription)
    assert 0.94 < advice.busy_ratio <= 1
    assert serial * simulated(round(advice.value), serial, times) == pytest.approx(
        advice.busy_ratio, abs=0.04
    )
