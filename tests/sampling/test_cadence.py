"""How often a GPU is read: less often while it goes on as before, and nothing is missed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.sampling.starvation import OwnCpu
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.sampling.worker import APART_SECONDS, GpuWorker, _next_tick
from gpu_bottleneck_exporter.settings import Settings
from support.judging import decide
from support.rows import rows
from support.waiting import PATIENCE_SECONDS, until

MakeBoard = Callable[..., Board]
FAST = Settings(interval_seconds=0.2, deadline_seconds=5.0)
TICKS = 6
PARTS_SECONDS = 0.05


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostSampler]:
    monkeypatch.setattr("gpu_bottleneck_exporter.feeders.steadiness.LATELY_NS", 1_000_000_000)
    watch = HostSampler(FAST, {"stall"})
    watch.start()
    yield watch
    watch.stop()


@contextmanager
def reading(driver: Driver, *watches: HostSampler | None) -> Iterator[list[GpuWorker]]:
    """A worker for each of the watches."""
    workers = [
        GpuWorker(index, driver, ALL, FAST, watch, own_cpu=OwnCpu(1.0))
        for index, watch in enumerate(watches)
    ]
    for worker in workers:
        worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop()
        assert all(worker.join(PATIENCE_SECONDS) for worker in workers)


class Ticks:
    """Counts those of some workers while half of the time of their GPUs is work."""

    def __init__(self, board: Board, workers: list[GpuWorker]) -> None:
        self.board, self.workers = board, workers

    def run(self, meanwhile: Callable[[], None] = lambda: None) -> tuple[float, float]:
        """Until one of the workers has had many; the ratio of the first's to the second's.

        And the share of the first's time that it missed.
        """
        before = accounted(self.workers[0])
        seen: list[set[int]] = [set() for _ in self.workers]
        while max(map(len, seen)) < TICKS:
            meanwhile()
            for gpu in self.board.gpus:
                if gpu.record.free_at_ns < time.monotonic_ns():
                    gpu.launch(PARTS_SECONDS)
            time.sleep(2 * PARTS_SECONDS)
            for worker, ticks in zip(self.workers, seen, strict=True):
                ticks.update(gpu.at_ns for gpu in worker.snapshots(time.monotonic_ns()))
        after = accounted(self.workers[0])
        observed, missed = (now - then for now, then in zip(after, before, strict=True))
        return len(seen[0]) / max(len(seen[1]), 1), missed / observed if observed > 0 else 1.0


def accounted(worker: GpuWorker) -> tuple[int, int]:
    """What it has observed, and what it has not; neither while its thread is late."""
    known = [gpu.totals for gpu in worker.snapshots(time.monotonic_ns())]
    return sum(one.observed_ns or 0 for one in known), sum(one.unobserved_ns for one in known)


def test_a_gpu_that_goes_on_as_before_is_read_less_often_and_is_seen_whole(
    make_board: MakeBoard, watch: HostSampler
) -> None:
    board = make_board(gpus=[H100, H100])
    with reading(VirtualDriver(board), watch, None) as workers:
        ticks = Ticks(board, workers)
        uuid = board.gpus[0].record.uuid.decode()
        feed = until(lambda: watch.feed(uuid), "its feeders")
        until(lambda: workers[0].reader.interval() > FAST.interval_seconds, "it goes on as before")

        def left_out() -> list[float]:
            ratio, missed = ticks.run()
            return [0.7 - ratio, 0.05 - missed]

        decide(left_out, "readings are left out, no time")
        decide(lambda: [ticks.run(feed.steady.restart)[0] - 0.8], "something is new: often again")

        def known() -> list[int]:
            return [sum(accounted(worker)) for worker in workers]

        until(lambda: min(known()) > 0.9 * max(known()) > 0, "as much is known of both")


def test_whoever_asks_is_shown_what_such_a_gpu_does_now(
    make_board: MakeBoard, watch: HostSampler
) -> None:
    usual_ns = int(FAST.interval_seconds * 1e9)
    with reading(VirtualDriver(make_board(gpus=[H100])), watch) as (worker,):

        def age_ns() -> int:
            now_ns = time.monotonic_ns()
            return now_ns - worker.snapshots(now_ns)[0].at_ns

        until(lambda: worker.reader.interval() > FAST.interval_seconds, "it is idle all the time")
        for _ in range(TICKS):
            until(lambda: age_ns() > usual_ns, "an old reading")
            asked_ns = time.monotonic_ns()
            worker.refresh(time.monotonic() + PATIENCE_SECONDS)
            assert worker.snapshots(time.monotonic_ns())[0].at_ns > asked_ns - usual_ns


@pytest.mark.parametrize("interval", [0.2, 1.0, 5.0])
def test_all_gpus_keep_to_one_grid_each_a_little_later(interval: float) -> None:
    began = 1234.567
    offsets = [index * APART_SECONDS for index in range(8)]
    ticks = [_next_tick(began, interval, offset) for offset in offsets]
    assert all(began < tick <= began + interval for tick in ticks)
    assert [tick - ticks[0] for tick in ticks] == pytest.approx(offsets)
    for tick, offset in zip(ticks, offsets, strict=True):
        # Awake on time, a little early or late: one interval on. So late that one was missed: two.
        for awake in (tick, tick - 1e-4, tick + 0.1 * interval):
            assert _next_tick(awake, interval, offset) == pytest.approx(tick + interval)
        assert _next_tick(tick + 1.1 * interval, interval, offset) == pytest.approx(
            tick + 2 * interval
        )


@rows(
    "interval, deadline, longer",
    {
        "default": (1.0, 5.0, 4.0),
        "often": (0.2, 5.0, 0.8),
        "the ring holds 10 s": (5.0, 20.0, 5.0),
        "the deadline is near": (1.0, 3.0, 3.0),
    },
)
def test_who_goes_on_as_before_is_read_within_the_deadline_and_what_the_ring_holds(
    interval: float,
    deadline: float,
    longer: float,
    watch: HostSampler,
    make_board: MakeBoard,
) -> None:
    settings = Settings(interval_seconds=interval, deadline_seconds=deadline)
    worker = GpuWorker(
        0, VirtualDriver(make_board(gpus=[H100])), ALL, settings, watch, own_cpu=OwnCpu(1.0)
    )
    worker.start()
    until(lambda: worker.reader.interval() == longer, "it is idle all the time")
    worker.stop()
    assert worker.join(PATIENCE_SECONDS)
