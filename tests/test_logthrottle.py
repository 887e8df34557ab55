"""A fault that comes back each tick is told once, one that comes and goes a few times a minute."""

from __future__ import annotations

import logging

import pytest

from gpu_bottleneck_exporter.logthrottle import MAX_LINES, THROTTLE_SECONDS, LogThrottle
from support.logged import logged


class Throttle(LogThrottle):
    """One with a clock that a test puts on."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger(__name__), lambda: self.now)
        self.now = 1e6


def test_a_state_is_logged_when_it_changes() -> None:
    throttle = Throttle()
    states = ("on", "off", "off", "on", "on")
    values = [throttle.is_new("light", state, usual="on") for state in states]
    assert values == [False, True, False, True, False]
    assert throttle.is_new("another", state="off", usual="on")


def test_a_flapping_state_is_logged_a_few_times() -> None:
    throttle, result = Throttle(), 0
    for tick in range(1000):
        throttle.now += 0.1
        result += throttle.is_new("light", tick % 2)
    assert result <= MAX_LINES * (100 / THROTTLE_SECONDS + 1)


def test_a_lasting_state_is_logged_in_the_end() -> None:
    throttle = Throttle()
    for tick in range(99):
        throttle.is_new("light", tick)
    assert not throttle.is_new("light", "off")
    throttle.now += THROTTLE_SECONDS
    assert throttle.is_new("light", "off")


def test_a_fault_is_logged_once_with_its_place_and_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    throttle = Throttle()
    for pid in range(100):
        with throttle.guarded("watching", pid=7):
            if 0 < pid < 99:
                raise ValueError(f"process {pid}")
    assert logged(caplog) == ["watching failed pid=7 err=process 1", "watching works again pid=7"]
    assert "raise ValueError" in caplog.text
