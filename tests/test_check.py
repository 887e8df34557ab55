"""What `make check` leaves out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.processes import refuse, starts
from support.programs import program
from support.waiting import until


def deep() -> None:
    """Starts one through two context managers' worth of helpers."""
    with program("ready()"):
        until(lambda: True, "nothing")


class Holder:
    @property
    def held(self) -> object:
        return deep


@given(st.integers())
def example(_: int) -> None:
    Holder()


def plain() -> str:
    return os.fspath("subprocess")


@pytest.mark.parametrize("thing", [deep, Holder, example, subprocess])
def test_what_starts_a_process_however_deep_is_left_out(thing: object) -> None:
    assert starts(thing, {})


@pytest.mark.parametrize("thing", [plain, until, 3, sys])
def test_all_else_is_run(thing: Callable[[], str]) -> None:
    assert not starts(thing, {})


@pytest.mark.processes
def test_what_escapes_that_is_told() -> None:
    found = refuse()
    subprocess.run(["true"], check=True)
    assert "subprocess.Popen" in found
