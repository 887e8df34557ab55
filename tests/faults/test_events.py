"""Cost of each event, while it lasts and after it; the document has the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

import pytest

from faults.events import EVENTS, LEFT, Event, Scene
from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.settings import Settings
from support.board import Board
from support.children import Parent
from support.drivers import Libraries
from support.metrics import Metrics
from support.samplers import EVERY_TICK, sampling
from support.waiting import until

FAST = Settings(interval_seconds=0.2, deadline_seconds=2.0)
Start = Callable[[], Parent]
COLLECTORS = tuple(one for one in EVERY_TICK if one.name != "prescription")
"""A prescription comes after 20 s of idling, which some of the events interrupt."""
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
LATEST = {"gpu_feeder_refault_bytes_total", "gpu_feeder_wait_seconds_total"}
"""Come when something was read twice, or seen to wait, after all the others."""
OF_THE_GROUP = {
    "gpu_feeder_cpu_limit_cores",
    "gpu_feeder_memory_limit_bytes",
    "gpu_feeder_pressure_seconds_total",
    "gpu_feeder_throttled_seconds_total",
}
"""Come and go with the limits of the control group that we run in, which is not ours alone."""

BY_CHANCE = {"gpu_storage_stall_seconds_total"}
"""Exported once a process was sampled that waits for a disk."""


@pytest.fixture
def scene(make_board: Callable[..., Board], start: Start) -> Scene:
    board = make_board(gpus=[H100, H100])
    holders = [start() for _ in board.gpus]
    for gpu, holder in zip(board.gpus, holders, strict=True):
        gpu.hold(holder.pid, 2**30)
    return Scene(board, holders[0], start)


@pytest.fixture
def exposition(scene: Scene, libraries: Libraries) -> Iterator[Exposition]:
    with sampling(lambda: libraries.open(scene.board), FAST, COLLECTORS) as sampler:
        yield Exposition(sampler, COLLECTORS)


def series(exposition: Exposition, gpu: int) -> Series:
    samples = Metrics(exposition.render()[0].decode()).samples
    of_gpu = [sample for sample in samples if sample.labels.get("gpu") == f"{gpu}"]
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in of_gpu}


def names(exposition: Exposition, gpu: int) -> set[str]:
    return {name for name, _ in series(exposition, gpu)} - OF_THE_GROUP - BY_CHANCE


def gone(event: Event, whole: set[str]) -> set[str]:
    if not event.goes:
        return whole - {*LEFT}
    values = {name for name in whole if any(fnmatchcase(name, word) for word in event.goes.split())}
    assert values
    return values


def sums(found: Series) -> Series:
    return {key: value for key, value in found.items() if key[0].endswith("_total")}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_an_event_costs_the_documented_loss_and_recovers_by_itself(
    event: Event, scene: Scene, exposition: Exposition
) -> None:
    def all_is_read() -> bool:
        values.append(names(exposition, 0))
        return values[-1] == names(exposition, 1) and values[-1] >= LATEST

    def missing(gpu: int) -> set[str]:
        return whole - names(exposition, gpu)

    values: list[set[str]] = []
    until(all_is_read, lambda: names(exposition, 0) ^ names(exposition, 1))
    whole, before = values[-1], sums(series(exposition, 0))
    event.provoke(scene)
    expected = gone(event, whole)
    until(lambda: missing(0) == expected, lambda: missing(0) ^ expected)
    until(lambda: not missing(1), lambda: missing(1))  # on a crowded machine it may be late
    event.mend(scene)
    until(lambda: not missing(0), lambda: missing(0))
    after = series(exposition, 0)
    assert [key for key, value in before.items() if after.get(key, value) < value] == []
