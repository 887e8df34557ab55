"""What each event costs, while it lasts and after it; and that the README says just that."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from faults.events import EVENTS, Event, Scene
from faults.events_table import with_table
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.driver.board import H100, Board
from gpu_bottleneck_exporter.exposition import Exposition
from gpu_bottleneck_exporter.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from support import programs
from support.children import CODE, Parent
from support.drivers import Libraries

README = Path(__file__).parents[2] / "exporter/README.md"
FAST = Settings(interval_seconds=0.2, deadline_seconds=2.0)
EVERY_TICK = tuple(replace(one, every_seconds=0.0) for one in ALL)
Start = Callable[[], Parent]
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
until = partial(programs.until, patience_seconds=60.0)


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def make() -> Parent:
            process = subprocess.Popen(
                [sys.executable, "-c", CODE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            parent = Parent(process)
            stack.callback(parent.end)
            return parent

        yield make


@pytest.fixture
def scene(make_board: Callable[..., Board], start: Start) -> Scene:
    board = make_board(gpus=[H100, H100])
    holders = [start() for _ in board.gpus]
    for gpu, holder in zip(board.gpus, holders, strict=True):
        gpu.hold(holder.pid, 2**30)
    return Scene(board, holders[0], start)


@pytest.fixture
def exposition(scene: Scene, libraries: Libraries) -> Iterator[Exposition]:
    fatal: list[str] = []
    sampler = Sampler(lambda: libraries.open(scene.board), EVERY_TICK, FAST, fatal.append)
    sampler.start()
    yield Exposition(sampler, EVERY_TICK)
    sampler.stop()
    assert fatal == []


def series(exposition: Exposition, gpu: int) -> Series:
    families = text_string_to_metric_families(exposition.render()[0].decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.labels.get("gpu") == f"{gpu}"
    }


def names(exposition: Exposition, gpu: int) -> set[str]:
    return {name for name, _ in series(exposition, gpu)} - OF_THE_GROUP


def gone(event: Event, whole: set[str]) -> set[str]:
    if event.leaves:
        return whole - event.leaves
    found = {name for name in whole if any(fnmatchcase(name, one) for one in event.goes)}
    assert found
    return found


def sums(found: Series) -> Series:
    return {key: value for key, value in found.items() if key[0].endswith("_total")}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_an_event_costs_what_the_readme_says_and_all_is_back_by_itself(
    event: Event, scene: Scene, exposition: Exposition
) -> None:
    def all_is_read() -> bool:
        seen.append(names(exposition, 0))
        return seen[-1] == names(exposition, 1) and seen[-1] >= LATEST

    def missing(gpu: int) -> set[str]:
        return whole - names(exposition, gpu)

    seen: list[set[str]] = []
    until(all_is_read, lambda: names(exposition, 0) ^ names(exposition, 1))
    whole, before = seen[-1], sums(series(exposition, 0))
    event.provoke(scene)
    expected = gone(event, whole)
    until(lambda: missing(0) == expected, lambda: missing(0) ^ expected)
    until(lambda: not missing(1), lambda: missing(1))  # on a crowded machine it may be late
    event.mend(scene)
    until(lambda: not missing(0), lambda: missing(0))
    after = series(exposition, 0)
    assert [key for key, value in before.items() if after.get(key, value) < value] == []


def test_the_table_in_the_readme_is_current() -> None:
    text = README.read_text(encoding="utf-8")
    assert with_table(text) == text


def test_a_readme_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="markers"):
        with_table("no table here")
