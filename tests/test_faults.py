"""Each driver call fails with each code, comes and goes, on many GPUs at once.

One call that fails costs what it gives, on its GPU, for as long as it fails: nothing else.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import TypeVar

import pytest

from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.sampling import sampler as sampler_module
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.schedule import CADENCE
from gpu_bottleneck_exporter.settings import Settings
from support.board import CALLS, Board
from support.drivers import Libraries
from support.logged import logged
from support.samplers import EVERY_TICK, sampling
from support.waiting import until

MakeBoard = Callable[..., Board]
Fault = tuple[str, int]
T = TypeVar("T")
GPUS = 20
TICKS = 4
FAST = Settings(interval_seconds=0.2, deadline_seconds=5.0)
CODES = (1, 2, 3, 4, 6, 10, 13, 15, 16, 18, 25, 26, 999)
COSTS = {
    # The second is asked where the ring has nothing newer, as it may be after a late tick.
    "utilization": "Samples UtilizationRates",
    "power": "FieldValues TotalEnergyConsumption PowerUsage EnforcedPowerLimit "
    "PowerManagementDefaultLimit",
    "thermal": "FieldValues Temperature TemperatureV MarginTemperature MemoryTemperature",
    "clocks": "ClockInfo",
    "throttle": "FieldValues CurrentClocksEventReasons",
    "memory": "MemoryInfo",
    "video": "Samples EngineUtilization",
    "condition": "FieldValues GpuFabricInfoV RepairStatus NvLinkState UnrepairableMemoryFlag_v1",
    "health": "TotalEccErrors RemappedRows",
    "link": "PcieReplayCounter CurrPcieLinkGeneration CurrPcieLinkWidth MaxPcieLinkGeneration "
    "MaxPcieLinkWidth",
    "processes": "ComputeRunningProcesses GraphicsRunningProcesses MPSComputeRunningProcesses",
    "activity": "GpmSampleGet GpmMetricsGet",
}
"""Calls with which a collector may fail, without DeviceGet. The others cost none while a
GPU is open."""


def batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Batches; itertools has it from Python 3.12 on."""
    left = iter(items)
    while result := tuple(islice(left, size)):
        yield result


def series(exposition: Exposition) -> list[frozenset[str]]:
    """Names and labels of a GPU's samples, by GPU."""
    lines = [line for line in exposition.render()[0].decode().splitlines() if line[0] != "#"]
    names = [line.rpartition(" ")[0] for line in lines]
    return [frozenset(n for n in names if f'gpu="{gpu}"' in n) for gpu in range(GPUS)]


def failing(sampler: Sampler, index: int) -> set[str]:
    outcomes = sampler._workers[index].outcomes(time.monotonic_ns())
    return {name for name, outcome in outcomes if not outcome.success}


def allowed(call: str) -> set[str]:
    return {name for name in COSTS if call.removeprefix("DeviceGet") in COSTS[name].split()}


def wait_for_a_tick(sampler: Sampler) -> None:
    before = [gpu.at_ns for gpu in sampler.state().gpus]

    def over() -> bool:
        now = [gpu.at_ns for gpu in sampler.state().gpus]
        return all(at_ns > old for at_ns, old in zip(now, before, strict=False))

    until(over, "a tick of all GPUs")


def work(board: Board) -> None:
    """Give each GPU something to do if it has nothing: it may be over before the next sample."""
    for gpu in board.gpus:
        if gpu.record.free_at_ns < time.monotonic_ns():
            gpu.launch(2)


def until_all_are_read(sampler: Sampler, board: Board, gpus: int) -> None:
    """Wait until the first `gpus` are read; all have been tried."""

    def read() -> bool:
        work(board)
        totals = [gpu.totals for gpu in sampler.state().gpus[:gpus]]
        values = [
            total.active_ns and total.observed_ns and total.memory_busy_ns for total in totals
        ]
        return sampler.ready and len(values) == gpus and all(values)

    until(read, "what is read")


def until_all_is_shown(exposition: Exposition) -> list[frozenset[str]]:
    """Feeders are found one by one; all GPUs are alike."""

    def alike() -> list[frozenset[str]]:
        result = series(exposition)
        feeders = any(name.startswith("gpu_feeder_processes") for name in result[0])
        return result if len({*map(len, result)}) == 1 and feeders else []

    return until(alike, lambda: [len(names) for names in series(exposition)])


def until_all_is_back(
    sampler: Sampler,
    exposition: Exposition,
    whole: Sequence[frozenset[str]],
    faults: Sequence[Fault],
) -> None:
    def back() -> bool:
        well = not any(failing(sampler, gpu) for gpu in range(GPUS))
        return well and series(exposition) == whole

    def missing() -> object:
        now = series(exposition)[1:]
        pairs = zip(faults, whole[1:], now, strict=False)
        return [(fault, old ^ new) for fault, old, new in pairs if old != new]

    until(back, missing)


def books_balance(sampler: Sampler, began_ns: int) -> None:
    for gpu in sampler.state().gpus:
        totals = gpu.totals
        assert totals.observed_ns is not None
        assert totals.stall_ns is not None
        assert totals.busy_ns + sum(totals.stall_ns.values()) == totals.observed_ns
        assert totals.observed_ns + totals.unobserved_ns <= time.monotonic_ns() - began_ns


def fail(board: Board, faults: Sequence[Fault]) -> None:
    """One fault on each GPU but the first."""
    for gpu, (call, code) in zip(board.gpus[1:], faults, strict=False):
        gpu.fail(call, code)


def mend(board: Board, faults: Sequence[Fault]) -> None:
    fail(board, [(call, 0) for call, _ in faults])


@pytest.fixture
def board(make_board: MakeBoard, monkeypatch: pytest.MonkeyPatch) -> Board:
    brief = replace(CADENCE, access_lost_timeout_seconds=0.5)
    monkeypatch.setattr(sampler_module, "CADENCE", brief)
    return make_board(gpus=[H100] * GPUS)


@pytest.mark.parametrize("codes", list(batched(CODES, 5)), ids=str)
def test_a_temporary_failure_of_a_call_costs_only_its_values(
    board: Board, libraries: Libraries, caplog: pytest.LogCaptureFixture, codes: tuple[int, ...]
) -> None:
    began_ns = time.monotonic_ns()
    with (
        sampling(lambda: libraries.open(board), FAST, EVERY_TICK) as sampler,
        caplog.at_level(logging.INFO),
    ):
        exposition = Exposition(sampler, EVERY_TICK)
        until_all_are_read(sampler, board, GPUS)
        whole = until_all_is_shown(exposition)
        for faults in batched(product(CALLS, codes), GPUS - 1):
            caplog.clear()
            fail(board, faults)
            for _ in range(TICKS):
                wait_for_a_tick(sampler)
            assert [gpu.up for gpu in sampler.state().gpus] == [True] * GPUS
            for gpu, (call, code) in enumerate(faults, 1):
                assert failing(sampler, gpu) <= allowed(call), (call, code)
            assert failing(sampler, 0) == set()
            mend(board, faults)
            until_all_is_back(sampler, exposition, whole, faults)
            counter = Counter(logged(caplog))
            assert all(count == 1 for count in counter.values()), counter
            books_balance(sampler, began_ns)


@pytest.mark.parametrize("code", [3, 4, 999])
def test_a_call_that_fails_at_the_start_is_asked_again(
    board: Board, libraries: Libraries, code: int
) -> None:
    for faults in batched(product(CALLS, (code,)), GPUS - 1):
        fail(board, faults)
        with sampling(lambda: libraries.open(board), FAST, EVERY_TICK) as sampler:
            until_all_are_read(sampler, board, 1)
            wait_for_a_tick(sampler)
            mend(board, faults)
            until_all_are_read(sampler, board, GPUS)
            until_all_is_shown(Exposition(sampler, EVERY_TICK))
