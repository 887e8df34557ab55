"""How long mains were runnable, of real processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_bottleneck_exporter.accounting.bucket import Bucket
from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from support.judging import decide
from support.programs import program

PROC = Path("/proc")
SPINS = "ready()\nwhile True: pass"
SLEEPS = "ready()\ntold()"
LOOK_SECONDS = 0.2


@contextmanager
def main(code: str) -> Iterator[Process]:
    with program(code) as started:
        member = Process(PROC, started.pid)
        yield member
        member.close()


def share(*mains: Process) -> float:
    """Of a while."""
    assert [main.runnable(time.monotonic_ns()) for main in mains] == [None] * len(mains)
    time.sleep(LOOK_SECONDS)
    found = Bucket()
    for main in mains:
        runnable = main.runnable(time.monotonic_ns())
        assert runnable is not None
        found.add(Bucket(runnable_ns=runnable[0], counted_ns=runnable[1]))
        main.close_deep()
    assert found.main_runnable is not None
    return found.main_runnable


def test_a_main_that_computes_is_runnable_whether_it_has_a_cpu_or_not() -> None:
    with main(SPINS) as one, main(SPINS) as another, main(SPINS) as third:
        decide(lambda: [share(one, another, third) - 0.8], "three that compute are runnable")


def test_a_main_that_sleeps_is_not() -> None:
    with main(SLEEPS) as one, main(SPINS) as another:
        decide(lambda: [0.1 - share(one)], "one that sleeps is not")
        decide(lambda: [0.1 - abs(share(one, another) - 0.5)], "of two, one that computes")


def test_one_that_was_not_counted_before_leaves_it_unknown() -> None:
    with main(SLEEPS) as one, main(SLEEPS) as another:
        feed = FeederGroup(PROC, Cgroups(Path("/sys")))
        feed.note_split(0, {UNKNOWN: 1}, 1)

        def counted(at_ns: int, *mains: Process) -> bool:
            feed.adopt({main.pid for main in mains}, set(), frozenset())
            feed.sample(at_ns)
            return bool(feed.history._passes[-1].counted_ns)

        assert not counted(1, one)
        assert counted(2, one)
        assert not counted(3, one, another)
        assert counted(4, one)
        for process in feed.mains.values():
            process.close_deep()
        assert not counted(5, one), "after a pause"
        feed.close()


def test_one_that_ended_leaves_it_unknown() -> None:
    with main(SLEEPS) as one:
        assert one.runnable(1) is None
        with main(SLEEPS) as another:
            assert another.runnable(1) is None
        assert another.runnable(2) is None
        assert one.runnable(2) is not None


def test_what_is_not_known_leaves_the_rest_alone() -> None:
    found = Bucket()
    for runnable in ((1, 4), (0, 0), (2, 4)):
        found.add(Bucket(runnable_ns=runnable[0], counted_ns=runnable[1]))
    assert found.main_runnable == 3 / 8
    assert Bucket().main_runnable is None
    assert Bucket(runnable_ns=5, counted_ns=4).main_runnable == 1.0, "the kernel's clock and ours"
