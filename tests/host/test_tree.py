"""Descendants of processes: real trees, walked and scanned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_bottleneck_exporter.host.process import trees
from support.programs import ended, program
from support.trees import lay

PROC = Path("/proc")
NOBODY: frozenset[int] = frozenset()
FAMILY = """
def child(of_child=()):
    pid = os.fork()
    if pid:
        return pid
    grandchildren = [child(deeper) for deeper in of_child]
    if grandchildren:
        os.write(told, f"{grandchildren}".encode())
    time.sleep(600)

heard, told = os.pipe()
plain, server = child(), child([(), ()])
ready(*eval(os.read(heard, 100)))
ready(plain, server)
# Last of all: what is forked beside threads had better not do much.
threading.Thread(target=lambda: (ready(child()), time.sleep(600))).start()
"""


class Family(NamedTuple):
    root: int
    plain: int
    server: int
    of_thread: int
    grandchildren: set[int]


@pytest.fixture
def family() -> Iterator[Family]:
    """A root with a child, one from another thread, and a server with children of its own."""
    with program(FAMILY) as root:
        (first, *grandchildren), (plain, server), (of_thread,) = (
            map(int, words) for words in (root.words, root.hear(), root.hear())
        )
        yield Family(root.pid, plain, server, of_thread, {first, *grandchildren})


def test_children_grandchildren_and_those_of_threads(family: Family) -> None:
    everybody = {family.plain, family.server, family.of_thread, *family.grandchildren}
    assert trees(PROC, [family.root], NOBODY).of == {family.root: everybody}


def test_some_are_left_out_with_all_of_theirs(family: Family) -> None:
    result = trees(PROC, [family.root, family.server], frozenset({family.server})).of
    assert result == {
        family.root: {family.plain, family.of_thread},
        family.server: family.grandchildren,
    }


def test_a_root_that_is_gone_has_none(family: Family) -> None:
    gone = ended()
    assert trees(PROC, [gone, family.plain], NOBODY).of == {gone: set(), family.plain: set()}
    assert trees(PROC, [], NOBODY).of == {}


def test_children_that_are_known_are_not_asked_for(family: Family) -> None:
    fields = {family.server: [], family.plain: [4_000_000]}
    result = trees(PROC, [family.root], NOBODY, fields.get).of
    assert result == {family.root: {family.plain, family.of_thread, family.server, 4_000_000}}


def test_the_table_is_scanned_where_the_kernel_names_no_children(tmp_path: Path) -> None:
    """The kernel has no /proc/PID/task/TID/children."""
    parents = {1: 0, 10: 1, 11: 10, 12: 10, 13: 12, 20: 1, 21: 20}
    files = {f"{pid}/status": f"Name:\ta b\nPPid:\t{value}\n" for pid, value in parents.items()}
    proc = lay(tmp_path, {**files, "30/comm": "vanished\n"})
    assert trees(proc, [10, 20, 99], NOBODY).of == {10: {11, 12, 13}, 20: {21}, 99: set()}
    assert trees(proc, [10], frozenset({12})).of == {10: {11}}
