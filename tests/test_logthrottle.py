"""A fault that comes back each tick is told once, one that comes and goes a few times a minute."""

from __future__ import annotations

import logging

import pytest

from gpu_bottleneck_exporter.logthrottle import MOST_LINES, QUIET_SECONDS, LogThrottle

log = logging.getLogger(__name__)


class Clock:
    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fail(message: str) -> Exception:
    with pytest.raises(ValueError, match=message) as found:
        raise ValueError(message)
    return found.value


def test_a_state_is_told_when_it_changes(clock: Clock) -> None:
    throttle = LogThrottle(log, clock)
    told = [
        throttle.is_new("light", state, usual="on") for state in ("on", "off", "off", "on", "on")
    ]
    assert told == [False, True, False, True, False]
    assert throttle.is_new("another", state="off", usual="on")


def test_what_comes_and_goes_is_told_a_few_times(clock: Clock) -> None:
    throttle = LogThrottle(log, clock)
    told = []
    for tick in range(1000):
        clock.now += 0.1
        told.append(throttle.is_new("light", tick % 2))
    assert sum(told) <= MOST_LINES * (100 / QUIET_SECONDS + 1)


def test_what_has_stayed_is_told_in_the_end(clock: Clock) -> None:
    throttle = LogThrottle(log, clock)
    for tick in range(99):
        throttle.is_new("light", tick)
    assert not throttle.is_new("light", "off")
    clock.now += QUIET_SECONDS
    assert throttle.is_new("light", "off")


def test_a_fault_is_told_once_with_its_place_and_its_end(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    throttle = LogThrottle(log, clock)
    throttle.log_fault("watching", None)
    for pid in range(100):
        throttle.log_fault("watching", fail(f"process {pid}"))
    throttle.log_fault("watching", None)
    assert caplog.messages == ["watching: process 0", "watching works again"]
    assert "raise ValueError" in caplog.text


def test_what_fails_inside_a_guard_is_logged_and_swallowed(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    throttle = LogThrottle(log, clock)
    for works in (True, False, False, True):
        with throttle.guarded("reading"):
            int("1" if works else "one")
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "reading",
        "reading works again",
    ]
