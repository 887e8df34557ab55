from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.demo.board.work import Work
from support.board import Board, create
from support.models import A100, create_with_mig

from .build import build
from .probe import Probe

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 1_000_000_000
LONG = 15 * SECOND
"""More than passes between the staging of work and the look at it, on a busy machine too."""
FLAT_OUT = Work(
    memory=0.4,
    sm_active=0.5,
    pcie_receive_bytes_per_second=100 * 2**20,
    pcie_transmit_bytes_per_second=50 * 2**20,
    nvlink_receive_bytes_per_second=20 * 2**20,
    nvlink_transmit_bytes_per_second=10 * 2**20,
    watts=400.0,
)
Ask = Callable[..., Any]


def age(board: Board, seconds: float) -> None:
    """Make the board that much older."""
    board.header.created_ns -= round(seconds * SECOND)


def book(board: Board, gpu: int, start: int, end: int) -> None:
    """Work at a time of our choice, the past included."""
    board.gpus[gpu]._book(start, end, FLAT_OUT)


# The library


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="apt-get install gcc libc6-dev"):
        build(tmp_path)


INIT = "answer = attempt(nvmlInit)"


@pytest.mark.parametrize("named", [False, True])
def test_without_a_board_no_driver_is_loaded(fresh: Probe, tmp_path: Path, *, named: bool) -> None:
    path = tmp_path / "missing" if named else None
    assert fresh(path, INIT, opened=False) == "error 9"


def test_a_file_that_is_no_board_is_refused(fresh: Probe, tmp_path: Path) -> None:
    (tmp_path / "board").write_bytes(b"x" * 100_000)
    assert fresh(tmp_path / "board", INIT, opened=False) == "error 999"


# Identity and gauges


def test_pcie_throughput_blocks_and_is_counted(ask: Ask, h100: Board) -> None:
    h100.gpus[0].launch(LONG / SECOND, FLAT_OUT)
    time.sleep(0.03)
    code = """
started = time.monotonic()
answer = [nvmlDeviceGetPcieThroughput(gpu, counter) for counter in (0, 1)]
answer.append(time.monotonic() - started)
answer.append(pynvml.nvmlLib.fake_nvml_pcie_throughput_calls())
"""
    transmit, receive, seconds, calls = ask(h100, code)
    assert (transmit, receive) == (pytest.approx(50 * 1024, 0.01), pytest.approx(100 * 1024, 0.01))
    assert seconds >= 0.04
    assert calls == 2


# Work, power, energy


def test_energy_is_idle_power_and_the_work_done(ask: Ask, h100: Board) -> None:
    age(h100, 100)
    now = time.monotonic_ns()
    book(h100, 0, now - 3 * SECOND, now - SECOND)
    book(h100, 0, now + LONG, now + LONG + SECOND)
    code = """
answer = [board.header.created_ns, *at_once(lambda: nvmlDeviceGetTotalEnergyConsumption(gpu))]
"""
    created, read_at, energy = ask(h100, code)
    assert energy == pytest.approx(72 * (read_at - created) / 1e6 + 400_000 * 2, abs=1000)


def test_power_is_averaged_over_a_second(ask: Ask, h100: Board) -> None:
    now = time.monotonic_ns()
    book(h100, 0, now - SECOND // 2, now + LONG)
    code = "answer = at_once(lambda: (nvmlDeviceGetPowerUsage(gpu), *fields(gpu, 185)))"
    read_at, (usage, average) = ask(h100, code)
    seconds = (read_at - now) / SECOND + 0.5
    assert usage == pytest.approx(72_000 + 400_000 * min(seconds, 1), abs=20_000)
    assert average == pytest.approx(usage, abs=4_000), "10 ms may have passed"


def test_counters_never_run_backwards_while_somebody_writes(ask: Ask, h100: Board) -> None:
    code = """
stop = threading.Event()
def work():
    while not stop.is_set():
        board.gpus[0].launch(0.001, Work())
writer = threading.Thread(target=work)
writer.start()
readings, written = [], []
while len(readings) < 1000 or written[-1] == written[0]:
    began = time.monotonic()
    energy = nvmlDeviceGetTotalEnergyConsumption(gpu)
    if time.monotonic() - began >= 0.2:
        continue  # a writer without a CPU was taken for one that had died
    readings.append(energy)
    written.append(board.gpus[0].record.sequence)
stop.set()
writer.join()
answer = readings == sorted(readings)
"""
    assert ask(h100, code)


def test_a_writer_that_died_inside_blocks_nobody_for_long(ask: Ask, h100: Board) -> None:
    h100.gpus[0].record.sequence = 1
    code = """
nvmlDeviceGetTotalEnergyConsumption(gpu)
answer = attempt(nvmlDeviceGetSamples, gpu, 1, 0) is not None
"""
    assert ask(h100, code)


# Throttling and field values


def throttled(board: Board) -> None:
    """Reason number n took n seconds (and a microsecond), all of it in the past."""
    record = board.gpus[0].record
    for reason in range(8):
        record.throttle_base_ns[reason] = reason * SECOND + 1000


THROTTLE = "fields(gpu, 74, 75, 76, 77, 78, 79, 80, 81)"


def test_throttled_time_is_in_the_policy_fields(ask: Ask, h100: Board) -> None:
    throttled(h100)
    policies = "[nvmlDeviceGetViolationStatus(gpu, p).violationTime for p in (0,1,2,3,4,5,10,11)]"
    fields, violations = ask(h100, f"answer = [{THROTTLE}, {policies}]")
    seconds = [(0, 1), (3, 2), (4, 1), (5, 1), (0, 0), (6, 1), (7, 1), (0, 0)]
    assert fields == violations == [whole * SECOND + 1000 * extra for whole, extra in seconds]


NO = "error 3"


def test_ga100_and_turing_give_the_power_of_the_moment_only(ask: Ask, tmp_path: Path) -> None:
    with create(tmp_path / "board", [A100, H100]) as board:
        board.gpus[1].record.architecture = 6
        now = time.monotonic_ns()
        for gpu in (0, 1):
            book(board, gpu, now, now + LONG)
        code = """
time.sleep(0.2)
gpus = [gpu, nvmlDeviceGetHandleByIndex(1)]
answer = [[*fields(gpu, 185), nvmlDeviceGetPowerUsage(gpu)] for gpu in gpus]
answer.append(attempt(nvmlDeviceGetMigMode, gpus[1]))
"""
        assert ask(board, code) == [[NO, 455_000], [NO, 472_000], NO]


# Memory and processes

PROCESSES = """
def listed(processes):
    return sorted([p.pid, p.usedGpuMemory, p.gpuInstanceId, p.computeInstanceId] for p in processes)
def memory(gpu):
    first, second = nvmlDeviceGetMemoryInfo(gpu), nvmlDeviceGetMemoryInfo(gpu, nvmlMemory_v2)
    return [first.used, first.total - first.free, second.used, second.reserved,
            second.total - second.free]
"""
NOT_MIG = 0xFFFFFFFF


def test_versioned_structures_are_checked(ask: Ask, h100: Board) -> None:
    code = """
memory = c_nvmlMemory_v2_t(version=0x02000020)
temperature = pynvml.c_nvmlTemperature_v1_t(version=1)
request = c_nvmlGpmMetricsGet_t(version=2)
lib = pynvml.nvmlLib
answer = [lib.nvmlDeviceGetMemoryInfo_v2(gpu, ctypes.byref(memory)),
          lib.nvmlDeviceGetTemperatureV(gpu, ctypes.byref(temperature)),
          lib.nvmlGpmMetricsGet(ctypes.byref(request))]
"""
    assert ask(h100, code) == [25, 25, 25]


# MIG


@pytest.fixture
def sliced(tmp_path: Path) -> Any:  # noqa: ANN401
    with create_with_mig(tmp_path / "board", [H100, H100], [(0, 3), (0, 4)]) as board:
        age(board, 15)
        yield board


INSTANCES = "parts = [nvmlDeviceGetMigDeviceHandleByIndex(gpu, index) for index in (0, 1)]\n"


def test_a_gpu_in_mig_mode_sums_its_instances(ask: Ask, sliced: Board) -> None:
    now = time.monotonic_ns()
    book(sliced, 2, now - 3 * SECOND, now + LONG)
    book(sliced, 3, now - 3 * SECOND, now + LONG)
    sliced.gpus[2].hold(os.getpid(), 10)
    sliced.gpus[3].hold(os.getpid(), 5)
    sliced.gpus[3].record.compute_instance = 1
    code = f"""{PROCESSES}{INSTANCES}
answer = [nvmlDeviceGetPowerUsage(gpu), listed(nvmlDeviceGetComputeRunningProcesses_v2(gpu)),
          listed(nvmlDeviceGetComputeRunningProcesses_v2(parts[0])),
          memory(gpu)[2], memory(parts[1])[2]]
"""
    power, above, below, *memory = ask(sliced, code)
    assert power == 872_000
    assert above == [[os.getpid(), 5, 2, 1], [os.getpid(), 10, 1, 0]]
    assert below == [[os.getpid(), 10, 1, 0]]
    assert memory == [15, 5]


def test_faults_of_a_gpu_reach_its_instances(ask: Ask, sliced: Board) -> None:
    code = f"""{INSTANCES}
board.gpus[3].record.device_result = 16
alone = [attempt(nvmlDeviceGetName, handle) for handle in (gpu, *parts)]
board.gpus[0].record.device_result = 15
answer = [alone, [attempt(nvmlDeviceGetName, handle) for handle in (gpu, *parts)]]
"""
    alone, together = ask(sliced, code)
    assert alone[2] == "error 16"
    assert "error 16" not in alone[:2]
    assert together == ["error 15", "error 15", "error 16"]


# Events


def test_xids_arrive_on_registered_gpus_only(ask: Ask, tmp_path: Path) -> None:
    with create(tmp_path / "board", [H100, H100, H100]) as board:
        board.raise_xid(0, 1)
        code = """
gpus = [gpu, nvmlDeviceGetHandleByIndex(1), nvmlDeviceGetHandleByIndex(2)]
events = nvmlEventSetCreate()
kinds = [nvmlDeviceGetSupportedEventTypes(gpu) for gpu in gpus]
for gpu in gpus[:2]:
    nvmlDeviceRegisterEvents(gpu, kinds[0], events)
empty = attempt(nvmlEventSetWait, events, 0)
threading.Timer(0.05, lambda: [board.raise_xid(*x) for x in ((2, 31), (1, 79), (0, 48))]).start()
answer = [kinds, empty]
for _ in range(2):
    data = nvmlEventSetWait(events, 240_000)
    answer.append([nvmlDeviceGetMinorNumber(data.device), data.eventType, data.eventData,
                   data.gpuInstanceId, data.computeInstanceId])
started = time.monotonic()
answer += [attempt(nvmlEventSetWait, events, 50), time.monotonic() - started >= 0.05,
           attempt(nvmlDeviceRegisterEvents, gpu, 1, events)]
nvmlEventSetFree(events)
"""
        assert ask(board, code) == [
            *([8, 8, 8], "error 10", [1, 8, 79, NOT_MIG, NOT_MIG], [0, 8, 48, NOT_MIG, NOT_MIG]),
            *("error 10", True, NO),
        ]
