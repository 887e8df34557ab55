"""Real processes that do as they are told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from support.children import CODE, Parent


@pytest.fixture
def start() -> Iterator[Callable[[], Parent]]:
    parents: list[Parent] = []

    def begin() -> Parent:
        command = [sys.executable, "-c", CODE]
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        parents.append(Parent(child))
        return parents[-1]

    yield begin
    for parent in parents:
        parent.end()
