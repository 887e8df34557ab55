"""How often feeders are looked at: as often as tells their waits apart, and more after a change."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, CgroupCounters, Counters, Part, Role
from gpu_bottleneck_exporter.accounting.stall import ASLEEP, CPU_QUOTA, NETWORK, STORAGE
from gpu_bottleneck_exporter.feeders.group import SamplingPace
from gpu_bottleneck_exporter.schedule import CADENCE
from support.rows import rows

SECOND_NS = 1_000_000_000
LONG = CADENCE.recent_ns // SECOND_NS + 1
Split = tuple[float, Mapping[str, float]]
"""A tick: share of busy time, and of idle time by cause."""
BUSY: Split = (1.0, {})
SEVERAL: Split = (0.5, {NETWORK: 0.3, ASLEEP: 0.2})
SHORTEST, LONGEST = 0.1, 1.0


def after(*stretches: tuple[int, Split], tick_ns: int = SECOND_NS) -> SamplingPace:
    pace = SamplingPace()
    for ticks, (busy, stalls) in stretches:
        for _ in range(ticks):
            idle = {cause: int(share * tick_ns) for cause, share in stalls.items()}
            pace.note(int(busy * tick_ns), idle)
    return pace


def all_on(cause: str) -> Split:
    return 0.0, {cause: 1.0}


def long(cause: str) -> tuple[int, Split]:
    return 2 * LONG, all_on(cause)


@pytest.mark.parametrize(
    "split",
    [
        BUSY,
        (0.97, {STORAGE: 0.03}),
        all_on(ASLEEP),
        all_on(stall.UNALLOCATED),
        (0.5, {STORAGE: 0.5}),
        (0.0, {STORAGE: 0.6, ASLEEP: 0.4}),
        (0.9, {CPU_QUOTA: 0.05, stall.WORKER_CPU: 0.05}),
    ],
)
def test_a_long_steady_state_lasts(split: Split) -> None:
    assert not after().is_steady
    assert not after((LONG // 2, split)).is_steady
    assert after((2 * LONG, split)).is_steady
    assert after((10 * LONG, split), tick_ns=SECOND_NS // 5).is_steady


@rows(
    "lasts, stretches",
    {
        "seconds of another cause": (False, [long(ASLEEP), (12, all_on(STORAGE))]),
        "long ticks of another": (False, [long(ASLEEP), (2, (0.0, {STORAGE: 4.0}))]),
        "a look that differs": (True, [long(ASLEEP), (1, all_on(STORAGE))]),
        "many seconds of several": (False, [long(STORAGE), (2 * LONG, SEVERAL)]),
        "the first wait of a busy one": (False, [(2 * LONG, BUSY), (1, all_on(STORAGE))]),
        "busy meanwhile": (True, [long(ASLEEP), (2 * LONG, BUSY), (1, all_on(ASLEEP))]),
        "in turns": (True, [*[(1, BUSY), (1, all_on(ASLEEP))] * LONG]),
        "two waits by turns": (True, [(10, all_on(ASLEEP)), (10, all_on(STORAGE))] * LONG),
        "noise of a busy one": (
            True,
            [(1, (0.93, {ASLEEP: 0.07})), (1, (0.93, {STORAGE: 0.07}))] * LONG,
        ),
        "nothing known": (True, [(2 * LONG, (0.0, {stall.UNKNOWN: 1.0}))]),
    },
)
def test_other_causes_are_news(stretches: list[tuple[int, Split]], *, lasts: bool) -> None:
    assert after(*stretches).is_steady is lasts


def test_other_processes_are_news() -> None:
    result = after(long(ASLEEP))
    result.restart()
    assert not result.is_steady


def looked(
    seen: Mapping[str, Sequence[Activity]],
    pace: SamplingPace,
    *,
    counted: bool = True,
    held: CgroupCounters | None = None,
) -> float:
    """The pause that looks come to that go by it, where what is seen is drawn from `seen`."""
    draws, pause = random.Random(1), SHORTEST  # noqa: S311
    for _ in range(3 * CADENCE.cache_ttl_ns // SECOND_NS):
        second = Bucket(elapsed_ns=SECOND_NS, counted_ns=SECOND_NS * counted)
        second.held = held or second.held
        for role, activities in seen.items():
            part = second.parts[role] = Part()
            for _ in range(round(1 / pause)):
                part.rounds += 1
                part.note(draws.choice(activities))
        pace.note_samples(second)
        pause = pace.pause(SHORTEST, LONGEST)
    return pause


@rows(
    "seen, counted, pause",
    {
        "one sleep": ({Role.MAIN: [Activity.SLEEP]}, True, LONGEST),
        "nothing is known": ({}, True, 0.15),
        "two by turns": ({Role.MAIN: [Activity.SLEEP, Activity.DISK]}, True, 0.15),
        "one of ten differs": ({Role.MAIN: [Activity.SLEEP] * 9 + [Activity.DISK]}, True, 0.42),
        "run time is counted": ({Role.MAIN: [Activity.SLEEP, Activity.RUN]}, True, LONGEST),
        "or not": ({Role.MAIN: [Activity.SLEEP, Activity.RUN]}, False, 0.15),
        "two sleeps of one that runs": (
            {Role.MAIN: [Activity.SLEEP, Activity.DISK, *[Activity.RUN] * 18]},
            True,
            LONGEST,
        ),
        "workers by turns": (
            {Role.MAIN: [Activity.QUEUE], Role.WORKER: [Activity.DISK, Activity.NETWORK]},
            True,
            0.15,
        ),
        "threads that run or read": (
            {Role.MAIN: [Activity.QUEUE], Role.THREAD: [Activity.DISK, Activity.RUN]},
            True,
            0.15,
        ),
    },
)
def test_the_interval_of_samples_follows_their_standard_error(
    seen: Mapping[str, Sequence[Activity]], pause: float, *, counted: bool
) -> None:
    assert looked(seen, after(long(ASLEEP)), counted=counted) == pytest.approx(pause, rel=0.25)


def test_while_a_quota_throttles_run_time_is_not_counted() -> None:
    fields = {Role.MAIN: [Activity.SLEEP, Activity.RUN]}
    held = CgroupCounters(periods=10, throttled_periods=5)
    assert looked(fields, after(long(ASLEEP)), held=held) < 0.2


def test_the_error_of_a_share_is_as_stated() -> None:
    """Half of it over a minute, which is four times as long."""
    fields = {Role.MAIN: [Activity.SLEEP, Activity.SLEEP, Activity.DISK]}
    pause = looked(fields, after(long(ASLEEP)))
    error = math.sqrt(1 / 3 * 2 / 3 / (15 / pause))
    assert error == pytest.approx(0.05, rel=0.1)
    assert math.sqrt(1 / 3 * 2 / 3 / (60 / pause)) == pytest.approx(0.025, rel=0.1)


def test_a_change_restores_all_samples() -> None:
    result = after(long(ASLEEP))
    assert looked({Role.MAIN: [Activity.SLEEP]}, result) == LONGEST
    for _ in range(2):
        result.note(0, {STORAGE: 4 * SECOND_NS})
    assert result.pause(SHORTEST, LONGEST) == SHORTEST


def test_a_busy_gpu_takes_few() -> None:
    assert after((2 * LONG, BUSY)).pause(SHORTEST, LONGEST) == LONGEST


def test_a_process_that_is_not_sampled_any_more_takes_no_samples() -> None:
    """Fewer and fewer old looks would seem to say less and less."""
    result = after(long(ASLEEP))
    two = [Activity.DISK, Activity.NETWORK]
    assert looked({Role.MAIN: [Activity.SLEEP], Role.RELATED: two}, result) < 0.2
    assert looked({Role.MAIN: [Activity.SLEEP]}, result) == LONGEST


def test_a_thread_that_is_rarely_active_takes_few() -> None:
    result = after(long(ASLEEP))
    for number in range(CADENCE.cache_ttl_ns // SECOND_NS):
        second = Bucket(elapsed_ns=SECOND_NS, counted_ns=SECOND_NS)
        second.parts[Role.MAIN] = Part({Activity.SLEEP: 4}, 4, 4)
        second.parts[Role.THREAD] = Part({Activity.RUN: 1} if number == 5 else {}, 1, 4)
        result.note_samples(second)
    assert result.pause(SHORTEST, LONGEST) == LONGEST


def test_run_time_of_mains_that_launch_from_other_threads_is_not_counted() -> None:
    result = after(long(ASLEEP))
    for _ in range(LONG):
        second = Bucket(elapsed_ns=SECOND_NS, counted_ns=SECOND_NS)
        used = Counters(launch_cpu_ns=SECOND_NS // 5)
        second.parts[Role.MAIN] = Part({Activity.SLEEP: 5, Activity.RUN: 5}, 10, 10, used)
        result.note_samples(second)
    assert result.pause(SHORTEST, LONGEST) < 0.2


def test_counts_between_two_samples_change_nothing() -> None:
    result = after(long(ASLEEP))
    assert looked({Role.MAIN: [Activity.SLEEP]}, result) == LONGEST
    for _ in range(LONG):
        result.note_samples(Bucket(elapsed_ns=SECOND_NS))
    assert result.pause(SHORTEST, LONGEST) == LONGEST
