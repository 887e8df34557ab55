"""How long mains were runnable, of real processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_bottleneck_exporter.feeders.member import Member
from gpu_bottleneck_exporter.feeders.runnable import Runnable, RunnableCounter, runnable_share
from support.programs import program
from support.waiting import until

PROC = Path("/proc")
SPINS = "ready()\nwhile True: pass"
SLEEPS = "ready()\ntold()"


@contextmanager
def main(code: str) -> Iterator[Member]:
    with program(code) as started:
        member = Member(PROC, started.pid)
        yield member
        member.close()


def share(*mains: Member) -> float:
    """Of half a second."""
    counter = RunnableCounter()
    assert counter.count(mains, time.monotonic_ns()) is None
    time.sleep(0.5)
    found = runnable_share([counter.count(mains, time.monotonic_ns())])
    assert found is not None
    return found


def test_a_main_that_computes_is_runnable_whether_it_has_a_cpu_or_not() -> None:
    with main(SPINS) as one, main(SPINS) as another, main(SPINS) as third:
        until(lambda: share(one, another, third) > 0.8, "three that compute")


def test_a_main_that_sleeps_is_not() -> None:
    with main(SLEEPS) as one, main(SPINS) as another:
        until(lambda: share(one) < 0.1, "one that sleeps")
        until(lambda: 0.4 < share(one, another) < 0.6, "one of two that computes")


def test_one_that_was_not_counted_before_leaves_it_unknown() -> None:
    counter = RunnableCounter()
    with main(SLEEPS) as one, main(SLEEPS) as another:
        counter.count([one], 1)
        assert counter.count([one], 2) is not None
        assert counter.count([one, another], 3) is None
        assert counter.count([one], 4) is not None
        counter.pause()
        assert counter.count([one], 5) is None


def test_one_that_ended_leaves_it_unknown() -> None:
    counter = RunnableCounter()
    with main(SLEEPS) as one:
        counter.count([one], 1)
        with main(SLEEPS) as another:
            counter.count([one, another], 2)
        assert counter.count([one, another], 3) is None


def test_what_is_not_known_leaves_the_rest_alone() -> None:
    assert runnable_share([Runnable(1, 4), None, Runnable(2, 4)]) == 3 / 8
    assert runnable_share([None]) is None
    assert runnable_share([Runnable(5, 4)]) == 1.0, "the kernel's clock and ours"
