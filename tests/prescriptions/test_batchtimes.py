"""How much the times from batch to batch vary, by the I/O counters of a main and its worker."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.process import stat_of
from gpu_bottleneck_exporter.prescription.batchtimes import BatchTimes, Pair, SpreadMeter
from gpu_bottleneck_exporter.schedule import SMALL_GROUP
from support.waiting import eventually

PROC = Path("/proc")
EVEN = 0.1
LOADER = """
import os, random, sys, time
spread = float(sys.argv[1])
receives, sends = os.pipe()
log = os.open(os.devnull, os.O_WRONLY)
if not os.fork():
    os.close(receives)  # it ends once its main has
    os.close(1)
    draw = random.Random(3)
    while True:
        seconds = 0.03 * draw.lognormvariate(-spread / 2, spread**0.5)
        time.sleep(seconds / 2)
        os.write(log, b"halfway")
        time.sleep(seconds / 2)
        os.write(sends, b"batch")
while batch := os.read(receives, 5):
    print(time.monotonic(), flush=True)
"""
"""A main that prints when batches come, and its worker, which writes into a log as well."""


def looked_at(times: Iterator[float], seconds: float, pauses: tuple[float, ...] = ()) -> BatchTimes:
    """Batches of these `times`, sampled for this time; at some samples the thread gets no CPU."""
    result, at, came = BatchTimes(0.0), 0.0, next(times)
    late = iter(pauses)
    while at < seconds and not result.is_enough:
        at += result.pause + next(late, 0.0)
        result.add(at, arrived=came <= at)
        while came <= at:
            came += next(times)
    return result


def drawn(mean: float, spread: float) -> Iterator[float]:
    draw = random.Random(5)  # noqa: S311 - no secret
    while True:
        yield mean * draw.lognormvariate(-spread / 2, math.sqrt(spread))


@pytest.mark.parametrize("mean", [0.04, 0.2])
@pytest.mark.parametrize("spread", [0.0, 0.2, 0.7, 1.2])
def test_the_spread_is_that_of_the_times(mean: float, spread: float) -> None:
    result = looked_at(drawn(mean, spread), 60.0)
    assert result.spread == pytest.approx(spread, abs=0.03 + spread / 4)
    # Heavy tails take more batches to be known.
    assert 32 <= result.count <= 32 + 128 * (spread + 0.2)


def test_it_is_unknown_of_few_batches_and_of_fast_ones() -> None:
    assert looked_at(drawn(EVEN, 0.0), 20 * EVEN).spread is None
    assert looked_at(drawn(5.0, 0.5), 61.0).spread is None
    assert looked_at(drawn(0.012, 0.5), 5.0).spread is None


def test_a_late_sample_makes_no_batch_slow() -> None:
    pauses = tuple(EVEN if look % 20 == 0 else 0.0 for look in range(1000))
    result = looked_at(drawn(EVEN, 0.0), 60.0, pauses)
    assert result.spread == pytest.approx(0.0, abs=0.03)


def test_samples_are_closer_together_than_a_part_of_a_batch() -> None:
    times = BatchTimes(0.0)
    assert times.pause == pytest.approx(0.005)
    for look in range(100):
        times.add(float(look), arrived=False)
    assert times.pause == pytest.approx(0.25)


@contextmanager
def loader(spread: float) -> Iterator[tuple[Pair, list[float]]]:
    """A loader with one worker, and when its batches came."""
    command = [sys.executable, "-c", LOADER, f"{spread}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as main:
        assert main.stdout
        came = [float(main.stdout.readline())]
        reader = threading.Thread(target=lambda: came.extend(map(float, main.stdout or ())))
        reader.start()
        children = (PROC / f"{main.pid}/task/{main.pid}/children").read_text().split()
        worker = int(children[0])
        starts = [(stat := stat_of(PROC, pid)) and stat.started_ticks for pid in (main.pid, worker)]
        try:
            yield Pair((main.pid, starts[0]), (worker, starts[1])), came
        finally:
            main.kill()
            reader.join()


def is_measuring() -> bool:
    return "batches" in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("spread", [0.0, 0.7])
def test_batches_of_real_processes_are_measured_by_writes_and_reads(spread: float) -> None:
    meter = SpreadMeter(PROC)
    with loader(spread) as (pair, came):

        def measured() -> float | None:
            return meter.spread(pair, time.monotonic_ns())

        assert measured() is None
        eventually(lambda: measured() is not None and not is_measuring())
        result = measured()
    times = [after - before for before, after in pairwise(came)]
    mean = sum(times) / len(times)
    true = math.log(sum(item**1.5 for item in times) / len(times) / mean**1.5) / 0.375
    # It saw some of these batches: with a heavy tail, a few of them make the difference.
    assert result == pytest.approx(true, abs=0.05 + 0.7 * true)


def test_a_process_that_ends_ends_its_measurement() -> None:
    meter, now_ns = SpreadMeter(PROC), time.monotonic_ns()
    with loader(0.7) as (pair, _):
        assert meter.spread(pair, now_ns) is None
    eventually(lambda: not is_measuring())
    assert meter.spread(pair, now_ns) is None
    assert not is_measuring(), "it would end at once again"


def test_few_pairs_are_measured_at_once_and_none_after_the_end() -> None:
    meter, ourselves = SpreadMeter(PROC), (os.getpid(), 1)
    for number in range(20):
        meter.spread(Pair(ourselves, (os.getpid(), number)), time.monotonic_ns())
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("batches") == SMALL_GROUP
    meter.stop()
    eventually(lambda: not is_measuring())
