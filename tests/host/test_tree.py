"""Descendants of processes: real trees, walked and scanned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.process import trees
from support.trees import lay

PROC = Path("/proc")
NOBODY: frozenset[int] = frozenset()
FAMILY = """
import os, sys, threading, time

def say(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())  # in one piece

def child(of_child=()):
    pid = os.fork()
    if pid:
        return pid
    grandchildren = [child(deeper) for deeper in of_child]
    if grandchildren:
        say("grandchildren", *grandchildren)
    time.sleep(600)

plain = child()
server = child([(), ()])
say("children", plain, server)
# Last of all: what is forked beside threads had better not do much.
threading.Thread(target=lambda: (say("thread", child()), time.sleep(600))).start()
"""


@dataclass(frozen=True)
class Family:
    root: int
    plain: int
    of_thread: int
    server: int
    grandchildren: frozenset[int]

    @property
    def all(self) -> set[int]:
        return {self.plain, self.of_thread, self.server, *self.grandchildren}


@pytest.fixture
def family() -> Iterator[Family]:
    """A root with a child, one from another thread, and a server with children of its own."""
    command = [sys.executable, "-c", FAMILY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as root:
        try:
            assert root.stdout is not None
            lines = [root.stdout.readline().decode().split() for _ in range(3)]
            told = {name: [int(pid) for pid in pids] for name, *pids in lines}
            plain, server = told["children"]
            [of_thread] = told["thread"]
            yield Family(root.pid, plain, of_thread, server, frozenset(told["grandchildren"]))
        finally:
            os.killpg(root.pid, signal.SIGKILL)


def test_children_grandchildren_and_those_of_threads(family: Family) -> None:
    assert trees(PROC, [family.root], NOBODY).of == {family.root: family.all}


def test_some_are_left_out_with_all_of_theirs(family: Family) -> None:
    found = trees(PROC, [family.root, family.server], frozenset({family.server})).of
    assert found == {
        family.root: {family.plain, family.of_thread},
        family.server: set(family.grandchildren),
    }


def test_a_root_that_is_gone_has_none(family: Family) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    found = trees(PROC, [gone.pid, family.plain], NOBODY).of
    assert found == {gone.pid: set(), family.plain: set()}


def test_children_that_are_known_are_not_asked_for(family: Family) -> None:
    known = {family.server: [], family.plain: [4_000_000]}
    found = trees(PROC, [family.root], NOBODY, known.get).of
    assert found == {family.root: {family.plain, family.of_thread, family.server, 4_000_000}}


def test_no_roots() -> None:
    assert trees(PROC, [], NOBODY).of == {}


@pytest.fixture
def without_children_files(tmp_path: Path) -> Path:
    """The table of a kernel without /proc/PID/task/TID/children."""
    parents = {1: 0, 10: 1, 11: 10, 12: 10, 13: 12, 20: 1, 21: 20}
    zeros = " ".join(["0"] * 40)
    files = {f"{pid}/stat": f"{pid} (a b) S {parent} {zeros}\n" for pid, parent in parents.items()}
    return lay(tmp_path, {**files, "uptime": "1 1\n", "30/comm": "vanished\n"})


def test_the_table_is_scanned_where_the_kernel_names_no_children(
    without_children_files: Path,
) -> None:
    found = trees(without_children_files, [10, 20, 99], NOBODY).of
    assert found == {10: {11, 12, 13}, 20: {21}, 99: set()}
    found = trees(without_children_files, [10], frozenset({12})).of
    assert found == {10: {11}}
