"""When a GPU goes on as it did, and when that is over."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.accounting.stall import ASLEEP, CPU_QUEUE, CPU_QUOTA, NETWORK, STORAGE
from gpu_bottleneck_exporter.feeders.group import Steadiness
from gpu_bottleneck_exporter.schedule import LATELY_NS
from support.rows import rows

SECOND_NS = 1_000_000_000
LONG = LATELY_NS // SECOND_NS + 1
Split = tuple[float, Mapping[str, float]]
"""A tick: share of busy time, and of idle time by cause."""
BUSY: Split = (1.0, {})
SEVERAL: Split = (0.5, {NETWORK: 0.3, ASLEEP: 0.2})


def after(*stretches: tuple[int, Split], tick_ns: int = SECOND_NS) -> bool:
    found = Steadiness()
    for ticks, (busy, stalls) in stretches:
        for _ in range(ticks):
            idle = {cause: int(share * tick_ns) for cause, share in stalls.items()}
            found.note(int(busy * tick_ns), idle)
    return bool(found)


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


@rows(
    "steady, stretches",
    {
        "two causes": (False, [(5 * LONG, (0.0, {STORAGE: 0.6, ASLEEP: 0.4}))]),
        "two, and busy": (False, [(5 * LONG, (0.5, {STORAGE: 0.4, ASLEEP: 0.1}))]),
        "two small ones": (False, [(5 * LONG, (0.9, {CPU_QUOTA: 0.05, stall.WORKER_CPU: 0.05}))]),
        "nothing known": (False, [(5 * LONG, (0.0, {}))]),
        "a busy tick": (False, [long(ASLEEP), (1, BUSY)]),
        "a tick of another cause": (False, [long(ASLEEP), (1, all_on(STORAGE))]),
        "a tick of several": (False, [long(ASLEEP), (1, SEVERAL)]),
        "soon after one": (True, [long(ASLEEP), (1, SEVERAL), (4, all_on(ASLEEP))]),
        "soon after some": (False, [long(ASLEEP), (4, SEVERAL), (4, all_on(ASLEEP))]),
        "one look that differs": (True, [long(ASLEEP), (1, (0.0, {ASLEEP: 0.5, CPU_QUEUE: 0.5}))]),
    },
)
def test_what_differs_takes_all_looks(stretches: list[tuple[int, Split]], *, steady: bool) -> None:
    assert after(*stretches) is steady


def test_other_processes_are_news() -> None:
    found = Steadiness()
    for _ in range(2 * LONG):
        found.note(0, {ASLEEP: SECOND_NS})
    assert found
    found.restart()
    assert not found
