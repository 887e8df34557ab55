"""When the stacks of a GPU's feeders are looked at, and what is told of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from gpu_bottleneck_exporter.accounting.stall import HOST_CODE, STORAGE
from gpu_bottleneck_exporter.feeders.snapshot import Feeding
from gpu_bottleneck_exporter.host.process import Started
from gpu_bottleneck_exporter.host.waits import Wait
from gpu_bottleneck_exporter.stacktraces.frames import Frame
from gpu_bottleneck_exporter.stacktraces.model import Findings, IdleLines
from gpu_bottleneck_exporter.stacktraces.reader import ThreadStack, UnreadableReason
from gpu_bottleneck_exporter.stacktraces.watch import MIN_WAIT_NS, LineWatch
from support import ticks
from support.states import feeding
from support.waiting import until

SECOND = 1_000_000_000
MAIN, WORKER = 11, 12
HOLDER, HELPER = (MAIN, 1), (WORKER, 2)
FRAMES = (Frame("decode", "/train.py", 7),)


@dataclass
class Recorded:
    """A reader of two processes that goes wrong where it is told to."""

    cost: float = 0.0
    """CPU seconds of each look."""
    fails: int = 0
    refused: frozenset[int] = frozenset()
    cpu_seconds: float = 0.0
    asked: list[Sequence[Started]] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    """When, in seconds."""

    def read(
        self, mains: Sequence[Started], helpers: Sequence[Started]
    ) -> Mapping[int, Sequence[ThreadStack] | UnreadableReason]:
        self.asked.append((*mains, *helpers))
        self.at.append(time.monotonic())
        self.cpu_seconds += self.cost
        if len(self.asked) <= self.fails:
            raise ValueError("unreadable")
        stacks = [ThreadStack(MAIN, Wait.RUN, native=False, frames=FRAMES)]
        pids = [pid for pid, _ in self.asked[-1]]
        return {
            pid: UnreadableReason("it ended") if pid in self.refused else stacks for pid in pids
        }


def known(_: str) -> Feeding:
    return replace(feeding(), busiest=((HOLDER,), (HELPER,)))


@contextmanager
def watching(reader: Recorded) -> Iterator[LineWatch]:
    @contextmanager
    def opened() -> Iterator[Recorded]:
        yield reader

    watch = LineWatch(known, opened)  # type: ignore[arg-type]
    watch.loop.start()
    try:
        yield watch
    finally:
        watch.loop.stop()


def tick(
    watch: LineWatch, seconds: float = 0.05, cause: str = HOST_CODE, ago_ns: int = 0
) -> IdleLines:
    """Lines shown after this idle time, ending then."""
    watch.add_tick(ticks.tick(0, {cause: int(seconds * SECOND)}, time.monotonic_ns() - ago_ns))
    return watch.result("a")


def test_a_gpu_is_sampled_on_request() -> None:
    reader = Recorded()
    with watching(reader) as watch:
        assert watch.result("a") == IdleLines()
        watch.request("a", 60)
        until(lambda: len(reader.asked) > 1, "another look")
        result = until(lambda: result if (result := tick(watch)).lines else None, "a line")
    assert (result.lines[0].line, result.lines[0].ratio, result.looking) == (7, 1.0, True)
    assert set(reader.asked) == {(HOLDER, HELPER)}


def test_sampling_starts_unasked_once_a_gpu_has_waited_for_one_cause_for_long() -> None:
    reader = Recorded()
    with watching(reader) as watch:
        for ago_ns in range(MIN_WAIT_NS - 2 * SECOND, 0, -SECOND):
            tick(watch, 1.0, ago_ns=ago_ns)
        assert watch.result("a") == IdleLines()
        until(lambda: tick(watch, 1.0).lines, "a line")
    assert reader.asked


def test_findings_are_shown_for_ten_minutes() -> None:
    with watching(Recorded()) as watch:
        watch.request("a", 0.5)
        until(lambda: tick(watch).lines, "a line")
        until(lambda: not tick(watch).looking, "the end")
        assert tick(watch, cause=STORAGE).lines
        assert tick(watch, ago_ns=-601 * SECOND) == IdleLines()


def test_findings_are_shown_for_their_own_processes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with watching(Recorded()) as watch:
        watch.request("a", 60)
        until(lambda: tick(watch).lines, "a line")
        others = replace(feeding(), busiest=(((MAIN, 7),), ()))
        monkeypatch.setattr(watch, "_feeding", lambda _: others)
        assert watch.result("a") == IdleLines()


def test_a_reader_that_fails_is_opened_again_but_not_at_once() -> None:
    reader, began = Recorded(fails=2), time.monotonic()
    with watching(reader) as watch:
        watch.request("a", 60)
        until(lambda: tick(watch).lines, "a line")
    assert time.monotonic() - began > 0.2


def test_an_unreadable_process_is_reported_with_the_reason() -> None:
    with watching(Recorded(refused=frozenset({WORKER}))) as watch:
        watch.request("a", 60)
        result = until(lambda: result if (result := tick(watch)).lines else None, "a line")
    assert result.trouble == f"process {WORKER}: it ended"


def test_costly_samples_are_rare() -> None:
    reader = Recorded(cost=60)
    with watching(reader) as watch:
        watch.request("a", 60)
        until(lambda: tick(watch).lines, "a line")
    assert len(reader.asked) == 1


def test_unasked_samples_cost_at_most_a_fifth() -> None:
    result, unasked = Recorded(cost=0.011), Recorded(cost=0.011)
    with watching(result) as watch:
        watch.request("a", 60)
        until(lambda: len(result.at) > 5, "looks")
    with watching(unasked) as watch:
        for ago_ns in range(MIN_WAIT_NS, 0, -SECOND):
            tick(watch, 1.0, ago_ns=ago_ns)
        until(lambda: tick(watch, 1.0) and len(unasked.at) > 1, "another look")
    # They rest for 19 and for 99 times the cost, or 30 % less or more.
    assert 2 * min(b - a for a, b in pairwise(result.at)) < unasked.at[1] - unasked.at[0]


def test_it_rests_until_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[int] = []
    real = LineWatch._watched

    def watched(watch: LineWatch, now_ns: int) -> object:
        values.append(now_ns)
        return real(watch, now_ns)

    monkeypatch.setattr(LineWatch, "_watched", watched)
    with watching(Recorded()):
        until(lambda: values and time.monotonic_ns() - values[0] > SECOND / 4, "a moment")
        assert len(values) == 1


def holding(*mains: Started) -> Feeding:
    return replace(feeding(), busiest=(mains, ()))


def found_at(watch: LineWatch) -> Findings | None:
    """Lines kept after a tick that ends now."""
    watch.add_tick(ticks.tick(0, {HOST_CODE: SECOND}))
    return next((result for _, result in watch.pop_ended()), None)


@pytest.mark.parametrize("next_holder", [(MAIN + 7, 1), (MAIN, 7)], ids=["another", "its pid"])
def test_findings_belong_to_holders_of_that_time(
    monkeypatch: pytest.MonkeyPatch, next_holder: Started
) -> None:
    with watching(Recorded()) as watch:
        monkeypatch.setattr(watch, "_feeding", lambda _: holding(HOLDER))
        watch.request("a", 60)
        until(lambda: tick(watch).lines, "a line")
        monkeypatch.setattr(watch, "_feeding", lambda _: holding(next_holder))
        assert watch.result("a") == IdleLines()
        result = found_at(watch)
        assert result is not None
        assert (result.mains, len(result.lines.lines)) == (frozenset({HOLDER}), 1)
        assert found_at(watch) is None, "it is told once"
        until(lambda: tick(watch).lines, "a line of the next")
        monkeypatch.setattr(watch, "_feeding", lambda _: None)
        later = found_at(watch)
        assert later is not None
        assert later.mains == {next_holder}
        assert watch.result("a").lines == ()


def test_findings_after_the_last_sample_belong_to_no_later_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with watching(Recorded()) as watch:
        watch.request("a", 0.5)
        until(lambda: tick(watch).lines, "a line")
        result = until(lambda: found_at(watch), "the end")
        assert result.mains == {HOLDER}
        monkeypatch.setattr(watch, "_feeding", lambda _: holding((MAIN, 7)))
        assert found_at(watch) is None
        assert watch.result("a") == IdleLines()
        monkeypatch.setattr(watch, "_feeding", lambda _: holding(HOLDER))
        assert watch.result("a") == IdleLines(), "nobody has seen what it did since"
