"""A process may hold up whoever reads its memory; for the watch, see faults/test_reads.py."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.feeders import memory
from gpu_bottleneck_exporter.host import aside as module
from gpu_bottleneck_exporter.host.aside import Aside
from gpu_bottleneck_exporter.host.files import read
from support.programs import program
from support.waiting import PATIENCE_SECONDS, until

PROC = Path("/proc")


def test_what_is_read_is_told() -> None:
    beside = Aside(PATIENCE_SECONDS)
    assert [beside.call(1, partial(int, n)) for n in range(100)] == [*range(100)]
    with pytest.raises(ZeroDivisionError):
        beside.call(1, lambda: 1 // 0)
    assert beside.call(1, threading.get_ident) != threading.get_ident()


def test_who_holds_a_reader_up_is_left_alone_until_it_lets_go() -> None:
    beside = Aside(patience_seconds=0.05)
    gate = threading.Event()
    before = threading.active_count()
    assert beside.call(1, gate.wait) is None
    assert [beside.call(1, lambda: "never asked") for _ in range(50)] == [None] * 50
    beside._patience = PATIENCE_SECONDS
    assert beside.call(2, lambda: "another") == "another"
    assert threading.active_count() <= before + 2
    gate.set()
    until(lambda: beside.call(1, lambda: "asked again"), "that it is asked again")
    until(lambda: threading.active_count() <= before + 1, "the end of the one left behind")


def test_not_more_than_so_many_are_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LEFT_BEHIND", 3)
    beside = Aside(patience_seconds=0.01)
    gate = threading.Event()
    before = threading.active_count()
    assert [beside.call(pid, gate.wait) for pid in range(1, 100)] == [None] * 99
    assert threading.active_count() <= before + 3
    beside._patience = PATIENCE_SECONDS
    gate.set()
    until(lambda: beside.call(1, lambda: "asked again"), "that it is asked again")


def test_memory_that_cannot_be_added_up_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a thread of the process holds the lock of its memory for ever."""
    gate = threading.Event()
    monkeypatch.setattr(memory, "aside", Aside(patience_seconds=0.05))
    with program("ready(); told()") as one:
        exact = memory.private_bytes(PROC, one.pid)
        hangs = "smaps_rollup"
        monkeypatch.setattr(
            memory, "read", lambda path: gate.wait() if hangs in path else read(path)
        )
        bound = memory.private_bytes(PROC, one.pid)
        gate.set()
        assert exact
        assert bound, "from what is resident"
