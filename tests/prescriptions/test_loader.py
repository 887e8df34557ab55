"""The loader played batch by batch: what theory says of it where theory says something."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.prescription.loader import Loader

WORKERS = st.integers(1, 32)
LOADERS = st.builds(
    Loader,
    work=st.floats(0.01, 50),
    cycle=st.floats(0.01, 5),
    spread=st.floats(0, 2),
    in_order=st.booleans(),
)


@given(LOADERS, WORKERS)
def test_no_loader_is_faster_than_its_workers_or_its_main(loader: Loader, workers: int) -> None:
    # Of a finite number of batches the mean is only nearly 1.
    assert loader.rate(workers) <= min(1.25 * workers / loader.work, 1 / loader.cycle) * 1.001


@given(LOADERS, WORKERS)
def test_batches_that_take_equally_long_cost_nothing(loader: Loader, workers: int) -> None:
    even = replace(loader, spread=0.0)
    least = min(workers / even.work, 1 / even.cycle)
    assert even.rate(workers) == pytest.approx(least, rel=0.05)


@given(LOADERS, st.integers(1, 16))
def test_twice_as_many_workers_are_never_slower(loader: Loader, workers: int) -> None:
    assert loader.rate(2 * workers) >= 0.97 * loader.rate(workers)


def test_in_order_uneven_batches_cost_more_the_more_they_vary() -> None:
    even, uneven, wild = (Loader(1.0, 0.05, spread).rate(8) for spread in (0.0, 0.5, 1.5))
    assert even > 1.1 * uneven > 1.3 * wild


def test_as_they_come_uneven_batches_hardly_cost_anything() -> None:
    assert Loader(1.0, 0.05, 1.5, in_order=False).rate(8) > 0.95 * 8


def test_as_they_come_workers_do_not_run_ahead_for_ever() -> None:
    """A main that is slower than they are sets the pace."""
    assert Loader(0.1, 1.0, 1.0, in_order=False).rate(4) == pytest.approx(1.0, rel=0.01)


@given(LOADERS, st.integers(1, 16))
def test_a_fitted_loader_takes_one_step_per_unit_of_time_where_its_workers_limit_it(
    loader: Loader, workers: int
) -> None:
    fitted = loader.fitted(workers)
    if loader.rate(workers) * loader.cycle < 0.5 and fitted.rate(workers) * loader.cycle < 0.5:
        assert fitted.rate(workers) == pytest.approx(1.0, rel=0.05)


def test_without_workers_nothing_is_delivered() -> None:
    assert Loader(1.0, 0.1).rate(0) == 0.0


def test_without_work_the_main_alone_sets_the_pace() -> None:
    assert Loader(0.0, 0.25).rate(1) == 4.0
