"""The sampler with misbehaving drivers: what fails alone, what comes back, what ends it."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise

import pynvml
import pytest
from pynvml import (
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_NO_PERMISSION,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_ERROR_UNKNOWN,
)
from pynvml import NVML_ERROR_LIB_RM_VERSION_MISMATCH as MISMATCH

from gpu_bottleneck_exporter import schedule
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.demo.board.work import Work
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.driver.about import NO_GPU
from gpu_bottleneck_exporter.driver.protocol import Device, Unsupported
from gpu_bottleneck_exporter.driver.readings import Power
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.nodeview.build import LocalNode
from gpu_bottleneck_exporter.sampling import sampler as sampler_module
from gpu_bottleneck_exporter.sampling import watching
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.sampling.gpureader import GpuReader
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot, GpuTotals
from gpu_bottleneck_exporter.sampling.sampler import OPENING, Sampler
from gpu_bottleneck_exporter.schedule import CADENCE
from gpu_bottleneck_exporter.settings import MIN_SAMPLING_INTERVAL_SECONDS, Settings
from support import samplers
from support.board import CALLS, Board
from support.drivers import Libraries
from support.logged import logged
from support.waiting import PATIENCE_SECONDS, until

SECOND = 1_000_000_000
MakeBoard = Callable[..., Board]
Stage = Callable[..., tuple[Board, Sampler, list[str]]]


@pytest.fixture
def stage(make_board: MakeBoard, libraries: Libraries) -> Iterator[Stage]:
    """Starts a sampler of a new board, made as `make_board` makes it and then changed by `first`.

    Returns both, and why the process would have to end.
    """
    with ExitStack() as running:

        def start(
            first: Callable[[Board], None] = lambda _: None, **made: object
        ) -> tuple[Board, Sampler, list[str]]:
            board, fatal = make_board(**made), list[str]()
            first(board)
            sampler = samplers.sampling(lambda: libraries.open(board), fatal=fatal)
            return board, running.enter_context(sampler), fatal

        yield start


def text(sampler: Sampler) -> str:
    return Exposition(sampler, ALL).render()[0].decode()


def snapshot(sampler: Sampler, index: int) -> GpuSnapshot:
    return next(gpu for gpu in sampler.state().gpus if gpu.identity.index == index)


def up(sampler: Sampler) -> list[bool]:
    return [gpu.up for gpu in sampler.state().gpus]


def observed(sampler: Sampler, index: int) -> int:
    shown = [gpu for gpu in sampler.state().gpus if gpu.identity.index == index]
    return sum(gpu.totals.observed_ns or 0 for gpu in shown)


def totals(sampler: Sampler, index: int) -> GpuTotals:
    """Its sums; while its thread is late, nothing is told of them."""

    def known() -> GpuTotals | None:
        result = snapshot(sampler, index).totals
        return result if result.observed_ns else None

    return until(known, "its sums")


def test_a_lost_gpu_keeps_its_name_and_its_errors_and_is_reported_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    board, sampler, _ = stage(gpus=[H100, H100])
    until(lambda: observed(sampler, 0), "samples")
    board.raise_xid(0, 10**9)
    board.raise_xid(0, 79)
    until(lambda: snapshot(sampler, 0).errors, "the XID is counted")
    board.gpus[0].record.device_result = NVML_ERROR_GPU_IS_LOST
    until(lambda: up(sampler) == [False, True], "the loss is noticed")
    lost = snapshot(sampler, 0)
    assert lost.identity.uuid == board.gpus[0].record.uuid.decode()
    assert lost.errors == {79: 1}
    assert "error event gpu=0 event=XID code=79" in logged(caplog)
    board.gpus[0].record.device_result = 0
    until(lambda: up(sampler) == [True, True], "it comes back")
    values = [result for result in logged(caplog) if result.startswith(("GPU is", "collector "))]
    assert len(values) == 2
    assert "GPU_IS_LOST" in values[0], "not once more for each call that meets it"
    assert values[1] == "GPU is back gpu=0"


def test_a_driver_that_does_not_wait_for_events_costs_the_same(make_board: MakeBoard) -> None:
    called = list[float]()

    class Hasty(VirtualDriver):
        def wait_error(self, timeout_seconds: float) -> None:  # noqa: ARG002 - as it is called
            called.append(time.monotonic())

    with samplers.sampling(lambda: Hasty(make_board())) as sampler:
        until(lambda: len(called) >= 3, "waits")
        assert sampler.state().error_events
    assert min(after - before for before, after in pairwise(called)) > 0.9


def test_lost_pcie_lanes_are_noticed_while_it_runs(
    make_board: MakeBoard, libraries: Libraries
) -> None:
    board = make_board(gpus=[H100, replace(H100, name=b"Tesla T4", pcie_width=8)])
    with samplers.sampling(
        lambda: libraries.open(board), collectors=samplers.EVERY_TICK
    ) as sampler:
        node = LocalNode(sampler)

        def troubles() -> list[tuple[str, ...] | None]:
            return [gpu.trouble for gpu in node.read().gpus]

        until(lambda: [s.most_lanes for s in sampler.state().gpus] == [16, 8], "the links")
        assert troubles() == [None, None], "the T4's board connects 8"
        board.gpus[0].record.pcie_width = 8
        lost = ("PCIe link runs on 8 of 16 lanes",)
        until(lambda: troubles() == [lost, None], "the fall")


@pytest.mark.parametrize(("links", "watched"), [(0, True), (10, False)])
def test_the_memory_of_a_free_gpu_is_watched_unless_the_kernel_uses_it(
    make_board: MakeBoard, libraries: Libraries, links: int, *, watched: bool
) -> None:
    board = make_board(gpus=[replace(H100, c2c_links=links)])
    reader = GpuReader(0, libraries.open(board), ALL, Settings())
    reader.open()
    reader.read()
    (opened,) = reader._opened
    assert opened.ledger.holders(time.monotonic_ns()) == frozenset()
    assert (opened.due_ns["memory"] == 0) is watched, "due at each tick"
    reader.close()


def test_a_gpu_lost_before_the_start_is_shown_down(stage: Stage) -> None:
    def lose(board: Board) -> None:
        board.gpus[1].record.device_result = NVML_ERROR_GPU_IS_LOST

    board, sampler, _ = stage(lose, gpus=[H100, H100])
    until(lambda: sampler.ready, "ready")
    until(lambda: up(sampler) == [True, False], "one up, one down")
    board.gpus[1].record.device_result = 0
    until(lambda: up(sampler) == [True, True], "both up")
    assert snapshot(sampler, 1).identity.uuid == board.gpus[1].record.uuid.decode()


def until_so_many_go_on(sampler: Sampler, count: int) -> None:
    until(lambda: up(sampler) == [True] * count, "the layout")
    before = observed(sampler, 0)
    until(lambda: observed(sampler, 0) > before + 2 * 10**9, "time")


def test_mig_instances_come_and_go_and_time_is_observed_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = replace(CADENCE, slow_ns=500_000_000)
    monkeypatch.setattr("gpu_bottleneck_exporter.sampling.worker.CADENCE", brief)
    began_ns = time.monotonic_ns()
    board, sampler, _ = stage(mig=[(0, 3), (0, 4)])
    for enabled in (0, 1, 0):
        board.gpus[0].record.mig_enabled = enabled
        until_so_many_go_on(sampler, 1 + 2 * enabled)
        if enabled:
            board.gpus[1].launch(5)
            until(lambda: sampler.state().gpus[1].totals.busy_ns > 10**8, "an instance's work")
            assert sampler.state().gpus[2].totals.busy_ns == 0
    sums = totals(sampler, 0)
    assert (sums.observed_ns or 0) + sums.unobserved_ns <= time.monotonic_ns() - began_ns
    # The instances' feeders went with them.
    watch = sampler._watch
    assert watch is not None
    until(lambda: list(watch._feeds) == [board.gpus[0].record.uuid.decode()], "one GPU's feed")


def test_a_gpu_that_opens_and_cannot_be_read_is_tried_ever_less_often(
    make_board: MakeBoard, libraries: Libraries
) -> None:
    board = make_board()
    board.gpus[0].record.device_result = pynvml.NVML_ERROR_RESET_REQUIRED
    driver = libraries.open(board)
    opens: list[float] = []
    open_gpu = driver.open

    def late(index: int) -> list[Device]:
        opens.append(time.monotonic())
        board.gpus[0].record.device_result = 0
        devices = open_gpu(index)
        board.gpus[0].record.device_result = pynvml.NVML_ERROR_RESET_REQUIRED
        return devices

    driver.open = late  # type: ignore[method-assign]
    with samplers.sampling(lambda: driver):
        until(lambda: len(opens) >= 4, "four attempts")
    waits = [after - before for before, after in pairwise(opens[:4])]
    # On a busy machine any of them may be longer.
    least = [CADENCE.min_retry_seconds * factor for factor in (1, 2, 4)]
    assert all(wait > 0.95 * short for wait, short in zip(waits, least, strict=True)), waits


def test_a_driver_that_gives_nothing_but_garbage_has_failed(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    board, sampler, _ = stage()
    until(lambda: "gpu_observed_seconds_total{" in text(sampler), "time")
    assert 'last_success_timestamp_seconds{collector="utilization"}' in text(sampler)
    board.gpus[0].record.stuck_utilization = 808334905
    until(lambda: "gpu_observed_seconds_total{" not in text(sampler), "no time any more")
    until(
        lambda: 'collector_success{collector="utilization"} 0.0' in text(sampler), "it has failed"
    )
    until(lambda: sampler.state().implausible["utilization"] > 2, "more of it")
    values = [result for result in logged(caplog) if "dropped and counted" in result]
    assert 1 <= len(values) == len(set(values))
    board.gpus[0].record.stuck_utilization = 0
    until(lambda: 'collector_success{collector="utilization"} 1.0' in text(sampler), "it is well")
    until(lambda: "gpu_observed_seconds_total{" in text(sampler), "time again")
    until(lambda: "gpu_busy_seconds_total{" in text(sampler), "busy time again")
    sums = totals(sampler, 0)
    assert sums.busy_ns == 0
    assert sums.unobserved_ns > 0


def test_an_unsupported_collector_is_absent_not_failed(stage: Stage) -> None:
    def lacks(board: Board) -> None:
        for call in ("DeviceGetTotalEccErrors", "DeviceGetRemappedRows"):
            board.gpus[0].fail(call, NVML_ERROR_NOT_SUPPORTED)

    _, sampler, _ = stage(lacks)
    until(lambda: observed(sampler, 0), "samples")
    names = {name for name, _ in sampler.state().outcomes}
    assert "health" not in names
    assert "power" in names


@pytest.mark.parametrize("answers", [0, 1], ids=["never answered", "answered once"])
def test_a_refusal_of_an_earlier_reading_is_a_failure(make_board: MakeBoard, answers: int) -> None:
    def read(_: Device) -> Power:
        nonlocal answers
        answers -= 1
        if answers < 0:
            raise Unsupported("not here")
        return Power(watts=300.0)

    power = Collector("power", (), lambda _: None, lambda _: [], read)
    reader = GpuReader(0, VirtualDriver(make_board()), [power], samplers.FAST)
    reader.open()
    expected = [("power", None), ("power", "not here")] if answers else []
    values = []
    for _ in range(2):
        reader.read()
        values += [(name, outcome.error) for name, outcome in reader.outcomes()]
    reader.close()
    assert values == expected


def test_memory_utilization_that_is_always_zero_is_not_reported(stage: Stage) -> None:
    def lacks(board: Board) -> None:
        board.gpus[0].record.memory_always_zero = 1

    board, sampler, _ = stage(lacks, gpus=[H100, H100])
    until(lambda: observed(sampler, 1), "samples")
    assert totals(sampler, 0).memory_busy_ns == 0
    for gpu in board.gpus:
        gpu.launch(1)
    until(lambda: snapshot(sampler, 0).totals.busy_ns > 5 * 10**8, "busy time")
    until(lambda: snapshot(sampler, 1).totals.memory_busy_ns, "memory time where it is real")
    assert snapshot(sampler, 0).totals.memory_busy_ns is None
    assert snapshot(sampler, 0).totals.last_memory_ratio is None


@pytest.mark.parametrize(
    ("when", "result", "reason"),
    [
        ("at the start", MISMATCH, "LIB_RM_VERSION_MISMATCH"),
        ("while running", MISMATCH, "LIB_RM_VERSION_MISMATCH"),
        ("at the start", NVML_ERROR_UNKNOWN, "UNKNOWN"),
        ("while running", NVML_ERROR_UNKNOWN, "the driver has denied access to all GPUs for 2 s"),
    ],
)
def test_a_replaced_library_and_lasting_loss_of_access_end_the_process(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, when: str, result: int, reason: str
) -> None:
    brief = replace(CADENCE, access_lost_timeout_seconds=1.5)
    monkeypatch.setattr(sampler_module, "CADENCE", brief)

    def fail(board: Board) -> None:
        board.header.init_result = result

    first = {"first": fail} if when == "at the start" else {}
    board, sampler, fatal = stage(gpus=[H100, H100], **first)
    if not first:
        until(lambda: up(sampler) == [True, True], "up")
        for gpu in board.gpus:
            gpu.record.device_result = result
    until(lambda: fatal, "the reason")
    assert len(fatal) == 1
    assert reason in fatal[0]


def test_one_lost_gpu_of_two_is_not_fatal(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    brief = replace(CADENCE, access_lost_timeout_seconds=0.2)
    monkeypatch.setattr(sampler_module, "CADENCE", brief)
    board, sampler, fatal = stage(gpus=[H100, H100])
    until(lambda: up(sampler) == [True, True], "up")
    board.gpus[0].record.device_result = NVML_ERROR_UNKNOWN
    until(lambda: up(sampler) == [False, True], "what is up")
    before = observed(sampler, 1)
    until(lambda: observed(sampler, 1) > before + 3 * 10**9, "three seconds")
    assert up(sampler) == [False, True]
    assert fatal == []


READING = {*CALLS} - {"DeviceGetHandleByIndex", "DeviceGetUUID", "DeviceGetName"}
"""Calls without which a GPU can still be opened."""


def _silence(board: Board, code: int, *, opens: bool) -> None:
    """Answer all calls on GPU 0 with `code`, or all but those that open it."""
    if not opens:
        board.gpus[0].record.device_result = code
        return
    for call in READING:
        board.gpus[0].fail(call, code)


SILENT = (
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_TIMEOUT,
    pynvml.NVML_ERROR_UNINITIALIZED,
    NVML_ERROR_NOT_SUPPORTED,
)


@pytest.mark.parametrize("opens", [False, True], ids=["all calls", "all but open"])
@pytest.mark.parametrize("code", SILENT)
def test_a_gpu_that_answers_nothing_is_down_until_it_answers(
    stage: Stage,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    *,
    opens: bool,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(schedule, "CADENCE", replace(CADENCE, min_retry_seconds=0.1))
    board, sampler, _ = stage(gpus=[H100, H100])
    until(lambda: observed(sampler, 0), "samples")
    _silence(board, code, opens=opens)
    until(lambda: up(sampler) == [False, True], "it is down")
    down, before = sampler.down()[0], observed(sampler, 1)
    assert f"({code})" in down.reason
    assert down.remedy
    until(lambda: observed(sampler, 1) > before + 2 * SECOND, "several attempts to open it")
    assert up(sampler) == [False, True]
    assert "GPU is back gpu=0" not in logged(caplog)
    _silence(board, 0, opens=opens)
    until(lambda: up(sampler) == [True, True], "it is up")


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_NO_PERMISSION])
def test_gpus_that_never_answered_are_down_unless_they_lack_everything(
    stage: Stage, code: int
) -> None:
    def lacks(board: Board) -> None:
        _silence(board, code, opens=True)
        for call in READING:
            board.gpus[1].fail(call, NVML_ERROR_NOT_SUPPORTED)

    _, sampler, _ = stage(lacks, gpus=[H100, H100, H100])
    until(lambda: observed(sampler, 2), "samples")
    until(lambda: up(sampler) == [False, True, True], "it is down")


@pytest.mark.parametrize("call", ["DeviceGetMemoryInfo", "DeviceGetClockInfo"])
def test_a_gpu_that_answers_a_single_call_is_up(stage: Stage, call: str) -> None:
    board, sampler, _ = stage(gpus=[H100, H100])
    until(lambda: observed(sampler, 0), "samples")
    for other in {*CALLS} - {call}:
        board.gpus[0].fail(other, NVML_ERROR_NO_PERMISSION)
    until(lambda: snapshot(sampler, 0).totals.observed_ns is None, "its samples are missing")
    before = observed(sampler, 1)
    until(lambda: observed(sampler, 1) > before + 3 * SECOND, "three deadlines")
    assert up(sampler) == [True, True]


@pytest.mark.parametrize("call", ["DeviceGetComputeRunningProcesses", "DeviceGetTotalEccErrors"])
def test_a_gpu_that_has_only_calls_that_are_due_seldom_is_up(stage: Stage, call: str) -> None:
    def lacks(board: Board) -> None:
        for other in READING - {call}:
            board.gpus[0].fail(other, NVML_ERROR_NOT_SUPPORTED)

    _, sampler, _ = stage(lacks, gpus=[H100, H100])
    until(lambda: observed(sampler, 1), "samples")
    before = observed(sampler, 1)
    until(lambda: observed(sampler, 1) > before + 3 * SECOND, "three deadlines")
    assert up(sampler) == [True, True]


def test_before_its_start_it_reports_so() -> None:
    sampler = Sampler(Libraries.open, ALL, samplers.FAST, print)  # type: ignore[arg-type]
    assert (sampler.status, sampler.remedy, sampler.state().gpus) == (OPENING, NO_GPU, ())


def test_a_scrape_shows_the_present_host(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = replace(CADENCE, refresh_timeout_seconds=PATIENCE_SECONDS)
    monkeypatch.setattr(watching, "CADENCE", patient)
    _, sampler, _ = stage()
    result = until(lambda: sampler.state().host, "a snapshot")
    until(lambda: time.monotonic_ns() - result.at_ns > 1_100_000_000, "it is old")
    sampler.refresh()
    host = sampler.state().host
    assert host is not None
    assert host.at_ns > result.at_ns


def test_a_tick_longer_than_the_interval_loses_no_samples(stage: Stage) -> None:
    board, sampler, _ = stage()
    until(lambda: observed(sampler, 0), "samples")
    board.gpus[0].record.hang = 1
    time.sleep(3)
    board.gpus[0].record.hang = 0
    before = observed(sampler, 0)
    until(lambda: observed(sampler, 0) > before + 2 * 10**9, "the ring is drained")
    assert snapshot(sampler, 0).totals.lost_ns == 0


def test_holders_are_read_at_each_scrape(make_board: MakeBoard, libraries: Libraries) -> None:
    gpu, seldom = (board := make_board()).gpus[0], [replace(c, every_ns=10**13) for c in ALL]
    gpu.hold(os.getpid(), 2**30)
    with samplers.sampling(lambda: libraries.open(board), collectors=seldom) as sampler:
        until(lambda: re.search(r"gpu_processes{.* 1\.0", text(sampler)), "one")
        gpu.release(os.getpid())
        sampler.request_holders([gpu.record.uuid.decode()], now=True)
        until(lambda: re.search(r"gpu_processes{.* 0\.0", text(sampler)), "none")


def test_constant_scrapes_do_not_cause_constant_reads(stage: Stage) -> None:
    board, sampler, _ = stage()
    until(lambda: observed(sampler, 0), "samples")
    result, began = set[int](), time.monotonic()
    while time.monotonic() < began + 1:
        sampler.request_holders([board.gpus[0].record.uuid.decode()], now=True)
        result.add(snapshot(sampler, 0).at_ns)
        time.sleep(0.001)
    seconds = time.monotonic() - began
    # Its own interval, which is as short, goes on beside that.
    assert len(result) < 3 + 2 * seconds / MIN_SAMPLING_INTERVAL_SECONDS


def test_stopping_does_not_wait_for_a_hung_gpu(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    board, sampler, _ = stage(gpus=[H100, H100])
    until(lambda: up(sampler) == [True, True], "up")
    board.gpus[0].record.hang = 1
    until(lambda: up(sampler) == [False, True], "hung")
    until(lambda: "GPU is down: a driver call has not returned" in caplog.text, "a line")
    sampler.stop(0.5)
    until(lambda: not sampler.alive, "the end of its own thread")
    board.gpus[0].record.hang = 0


def test_a_gpu_with_a_working_encoder_is_not_asleep(stage: Stage) -> None:
    def encodes(board: Board) -> None:
        board.gpus[0].hold(os.getpid(), 2**30)
        board.gpus[0].launch(15.0, Work(kernel=0.05, encoder=0.9))

    _, sampler, _ = stage(encodes, gpus=[replace(H100, engines=1)])
    until(lambda: observed(sampler, 0), "samples")

    def split() -> GpuTotals | None:
        result = totals(sampler, 0)
        return result if (result.stall_ns or {}).get("video_engine", 0) > SECOND else None

    result = until(split, "time in which only the encoder works")
    assert result.engine_ns["encoder"] > SECOND
    stalls = result.stall_ns or {}
    assert sum(stalls.values()) == (result.observed_ns or 0) - result.busy_ns
    assert 'waiting_on="video_engine"' in text(sampler)


def test_a_gpu_with_idle_video_engines_has_no_stall_series_for_them(stage: Stage) -> None:
    _, sampler, _ = stage()
    until(lambda: observed(sampler, 0), "samples")
    until(lambda: totals(sampler, 0).engine_ns, "its engines")
    shown = text(sampler)
    assert 'waiting_on="video_engine"' not in shown
    assert "gpu_video_engine_busy_seconds_total{" in shown
