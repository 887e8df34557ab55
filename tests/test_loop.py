"""A thread that takes a step again and again."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from gpu_bottleneck_exporter.loop import Loop
from support.logged import logged
from support.waiting import PATIENCE_SECONDS, until

log = logging.getLogger(__name__)
Make = Callable[..., Loop]


@pytest.fixture
def make() -> Iterator[Make]:
    """Starts a loop, which ends with the test."""
    made: list[Loop] = []

    def makes(step: Callable[[], float | None], pause: float = 0.001, **more: object) -> Loop:
        made.append(Loop("steps", step, pause, log=log, **more))  # type: ignore[arg-type]
        made[-1].start()
        return made[-1]

    yield makes
    assert all(item.stop(PATIENCE_SECONDS) for item in made)


def test_a_failing_step_costs_only_itself_and_is_logged_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    steps: list[int] = []

    def step() -> None:
        steps.append(1)
        raise ValueError("no")

    make(step)
    until(lambda: len(steps) > 3, "more steps")
    assert logged(caplog) == ["step failed thread=steps err=no"]


def test_a_step_without_end_of_its_pause_is_woken(make: Make) -> None:
    steps: list[int] = []

    def step() -> float:
        steps.append(1)
        return math.inf

    loop = make(step)
    until(lambda: steps, "the first step")
    for number in (2, 3):
        loop.wake()
        until(lambda: len(steps) == number, "the next step")  # noqa: B023 - at once


def test_a_wake_during_a_step_causes_another_one(make: Make) -> None:
    steps: list[int] = []
    begun, goes_on = threading.Event(), threading.Event()

    def step() -> float:
        steps.append(1)
        begun.set()
        goes_on.wait(PATIENCE_SECONDS)
        return math.inf

    loop = make(step)
    begun.wait(PATIENCE_SECONDS)
    loop.wake()
    goes_on.set()
    until(lambda: len(steps) == 2, "another step")


def test_a_rest_within_a_step_ends_with_the_loop_and_not_when_it_is_woken(make: Make) -> None:
    rested: list[bool] = []
    loops: list[Loop] = []

    def step() -> None:
        until(lambda: loops, "that it is known")
        rested.append(loops[0].rest(600.0))

    loops.append(loop := make(step))
    loop.wake()
    assert not rested
    assert loop.stop(PATIENCE_SECONDS)
    assert rested == [False]


def test_the_last_call_comes_once_after_all_steps(make: Make) -> None:
    done: list[str] = []
    loop = make(lambda: done.append("step"), last=lambda: done.append("last"))
    until(lambda: done, "a step")
    assert loop.stop(PATIENCE_SECONDS)
    assert not loop.alive
    assert done.count("last") == 1
    assert done[-1] == "last"


def test_another_thread_goes_on_where_one_hangs(make: Make) -> None:
    hangs, steps, lasts = threading.Event(), [0], [0]

    def step() -> None:
        steps[0] += 1
        if steps[0] == 1:
            hangs.wait(PATIENCE_SECONDS)

    def last() -> None:
        lasts[0] += 1

    loop = make(step, last=last)
    until(lambda: steps[0] == 1, "that it hangs")
    assert loop.silent_seconds(time.monotonic_ns() + 10**9) >= 1
    hung = loop.thread
    loop.replace()
    until(lambda: steps[0] > 3, "that it goes on")
    hangs.set()
    hung.join(PATIENCE_SECONDS)
    assert loop.stop(PATIENCE_SECONDS)
    assert (hung.is_alive(), lasts[0]) == (False, 1)
