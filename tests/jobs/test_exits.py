"""The exit of processes, as it is noticed by their pidfds."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.jobs import exits
from gpu_bottleneck_exporter.jobs.exits import ExitWatch
from jobs.held import process
from support.waiting import PATIENCE_SECONDS

PROC = Path("/proc")


@pytest.fixture
def watch() -> Iterator[ExitWatch]:
    with closing(ExitWatch(PROC)) as watch:
        yield watch


def test_an_exit_ends_the_wait_and_calls_back_until_it_is_unwatched(watch: ExitWatch) -> None:
    exited: list[str] = []
    with process() as one, process() as two:
        pidfds = [
            watch.watch(one.pid, lambda: exited.append("one")),
            watch.watch(two.pid, lambda: exited.append("two")),
        ]
        watch.notify()
        assert exited == []
        one.kill()
        watch.wait(PATIENCE_SECONDS)
        watch.notify()
        watch.notify()
        assert exited == ["one"] * 2
        for pidfd in (*pidfds, pidfds[0], None):
            watch.unwatch(pidfd)
        two.kill()
        two.wait()
        watch.notify()
        assert exited == ["one"] * 2


def test_a_process_that_has_exited_calls_back_at_once(watch: ExitWatch) -> None:
    exited: list[int] = []
    with process() as child:
        child.kill()
        child.wait()
        assert watch.watch(child.pid, lambda: exited.append(child.pid)) is None
    assert exited == [child.pid]


def test_an_unwatchable_process_has_no_pidfd(
    watch: ExitWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(ExitWatch(tmp_path)) as foreign:
        assert foreign.watch(os.getpid(), lambda: None) is None
    monkeypatch.setattr(exits, "_MAX_PIDFDS", 1)
    assert watch.watch(os.getpid(), lambda: None) is not None
    assert watch.watch(os.getpid(), lambda: None) is None


def test_any_wake_ends_one_wait(watch: ExitWatch) -> None:
    watch.wake()
    began = time.monotonic()
    watch.wait(PATIENCE_SECONDS)
    assert time.monotonic() - began < PATIENCE_SECONDS / 2
    watch.wait(0.01)
    assert time.monotonic() - began >= 0.01
