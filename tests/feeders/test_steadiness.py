"""When a GPU goes on as it did, and when that is over."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_bottleneck_exporter.accounting.stall import (
    ASLEEP,
    CPU_QUEUE,
    CPU_QUOTA,
    NETWORK,
    STORAGE,
    UNALLOCATED,
    WORKER_CPU,
)
from gpu_bottleneck_exporter.feeders.steadiness import Steadiness
from gpu_bottleneck_exporter.schedule import LATELY_NS

SECOND_NS = 1_000_000_000
LONG = LATELY_NS // SECOND_NS + 1
Split = tuple[float, Mapping[str, float]]
"""A tick: share of busy time, and of idle time by cause."""
BUSY: Split = (1.0, {})


def after(*stretches: tuple[int, Split], tick_ns: int = SECOND_NS) -> bool:
    found = Steadiness()
    for ticks, (busy, stalls) in stretches:
        for _ in range(ticks):
            found.note(
                int(busy * tick_ns), {cause: int(s * tick_ns) for cause, s in stalls.items()}
            )
    return bool(found)


def all_on(cause: str) -> Split:
    return 0.0, {cause: 1.0}


@pytest.mark.parametrize(
    "split",
    [
        BUSY,
        (0.97, {STORAGE: 0.03}),
        all_on(ASLEEP),
        all_on(UNALLOCATED),
        (0.02, {ASLEEP: 0.95, STORAGE: 0.03}),
        all_on(STORAGE),
        (0.5, {STORAGE: 0.5}),
        (0.4, {NETWORK: 0.57, ASLEEP: 0.03}),
    ],
)
def test_what_has_been_the_same_for_long_is_steady(split: Split) -> None:
    assert not after()
    assert not after((LONG // 2, split))
    assert after((2 * LONG, split))
    assert after((10 * LONG, split), tick_ns=SECOND_NS // 5)


@pytest.mark.parametrize(
    "split",
    [
        (0.0, {STORAGE: 0.6, ASLEEP: 0.4}),
        (0.5, {STORAGE: 0.4, ASLEEP: 0.1}),
        (0.9, {CPU_QUOTA: 0.05, WORKER_CPU: 0.05}),
        (0.0, {}),
    ],
)
def test_several_causes_take_all_looks(split: Split) -> None:
    assert not after((5 * LONG, split))


@pytest.mark.parametrize("other", [BUSY, all_on(STORAGE), (0.5, {NETWORK: 0.3, ASLEEP: 0.2})])
def test_a_tick_that_differs_ends_it_at_once(other: Split) -> None:
    asleep = all_on(ASLEEP)
    assert not after((2 * LONG, asleep), (1, other))
    assert after((2 * LONG, asleep), (1, other), (4, asleep))
    assert not after((2 * LONG, asleep), (4, other), (4, asleep))


def test_a_single_look_that_differs_is_no_news() -> None:
    assert after((2 * LONG, all_on(ASLEEP)), (1, (0.0, {ASLEEP: 0.5, CPU_QUEUE: 0.5})))


def test_other_processes_are_news() -> None:
    found = Steadiness()
    for _ in range(2 * LONG):
        found.note(0, {ASLEEP: SECOND_NS})
    assert found
    found.restart()
    assert not found
