from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.demo.board.layout import PROCESS_GRAPHICS, SLOT_NS
from gpu_bottleneck_exporter.demo.board.work import Work
from support.models import A100, create_with_mig

from .build import build
from .probe import Probe, probe

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 1_000_000_000
LONG = 15 * SECOND
"""More than passes between the staging of work and the look at it, on a busy machine too."""
WINDOW_US = 250_000
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


def windows_ago(board: Board, count: int) -> int:
    """When the window `count` before the running one started."""
    window = int(board.gpus[0].record.period_slots) * SLOT_NS
    return (time.monotonic_ns() // window - count) * window


def timestamp_us(board: Board, monotonic_ns: int) -> int:
    return (monotonic_ns + int(board.header.timestamp_offset_ns)) // 1000


# The library


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="apt-get install gcc libc6-dev"):
        build(tmp_path)


def test_only_nvml_symbols_leave_the_library(library: Path) -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    )
    names = [line.split()[-1] for line in listing.stdout.splitlines()]
    assert names
    assert all(name.startswith(("nvml", "fake_nvml_")) for name in names)


INIT = "answer = attempt(nvmlInit)"


@pytest.mark.parametrize("named", [False, True])
def test_without_a_board_no_driver_is_loaded(fresh: Probe, tmp_path: Path, *, named: bool) -> None:
    path = tmp_path / "missing" if named else None
    assert fresh(path, INIT, opened=False) == "error 9"


def test_a_file_that_is_no_board_is_refused(fresh: Probe, tmp_path: Path) -> None:
    (tmp_path / "board").write_bytes(b"x" * 100_000)
    assert fresh(tmp_path / "board", INIT, opened=False) == "error 999"


def test_init_fails_as_the_board_says(fresh: Probe, h100: Board) -> None:
    h100.header.init_result = 18
    assert fresh(h100.path, INIT, opened=False) == "error 18"


def test_calls_need_init(fresh: Probe, h100: Board) -> None:
    code = """
count = ctypes.c_uint()
fake = ctypes.CDLL("libnvidia-ml.so.1")
before = fake.nvmlDeviceGetCount_v2(ctypes.byref(count))
nvmlInit(); nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
nvmlShutdown()
between = nvmlDeviceGetCount()
nvmlShutdown()
answer = [before, between, attempt(nvmlDeviceGetCount), attempt(nvmlDeviceGetName, gpu),
          attempt(nvmlEventSetCreate), attempt(nvmlGpmSampleAlloc),
          pynvml.nvmlLib.nvmlShutdown()]
nvmlInit()
answer.append(nvmlDeviceGetCount())
"""
    answer = fresh(h100.path, code, opened=False)
    assert answer == [1, 1, *["error 1"] * 4, 0, 1]


def test_versions(ask: Ask, h100: Board) -> None:
    code = """
answer = [nvmlSystemGetDriverVersion(), nvmlSystemGetNVMLVersion(),
          nvmlSystemGetCudaDriverVersion_v2(), nvmlErrorString(15)]
"""
    assert ask(h100, code) == ["580.95.05", "13.580.95.05", 13000, "GPU is lost"]


SYMBOLS = {
    "nvmlDeviceGetTemperatureV, gpu, 0": 570,
    "nvmlDeviceGetMarginTemperature, gpu": 570,
    "nvmlDeviceGetCurrentClocksEventReasons, gpu": 535,
    "nvmlDeviceGetSupportedClocksEventReasons, gpu": 535,
    "nvmlGpmQueryDeviceSupport, gpu": 520,
    "nvmlDeviceGetMemoryInfo, gpu, nvmlMemory_v2": 510,
    "nvmlDeviceGetComputeRunningProcesses_v3, gpu": 510,
    "nvmlDeviceGetMPSComputeRunningProcesses_v2, gpu": 470,
    "nvmlDeviceGetMigMode, gpu": 450,
    "nvmlDeviceGetRemappedRows, gpu": 450,
    "nvmlDeviceGetComputeRunningProcesses_v2, gpu": 450,
    "nvmlDeviceGetCurrentClocksThrottleReasons, gpu": 0,
}


@pytest.mark.parametrize("branch", [440, 450, 470, 530, 580])
def test_an_older_library_lacks_symbols(tmp_path: Path, branch: int) -> None:
    with create(tmp_path / "board") as board:
        calls = ", ".join(f"attempt({call})" for call in SYMBOLS)
        code = f'answer = [value == "error 13" for value in ({calls})]'
        with probe(build(tmp_path / "lib", branch)) as ask:
            answer = ask(board.path, code)
    assert answer == [branch < since for since in SYMBOLS.values()]


# Identity and gauges


def test_devices_say_who_they_are(ask: Ask, tmp_path: Path) -> None:
    with create(tmp_path / "board", [H100, A100]) as board:
        code = """
second = nvmlDeviceGetHandleByIndex(1)
pci = nvmlDeviceGetPciInfo(second)
answer = [nvmlDeviceGetCount(), nvmlDeviceGetUUID(second), nvmlDeviceGetName(second),
          nvmlDeviceGetIndex(second), nvmlDeviceGetMinorNumber(second),
          nvmlDeviceGetArchitecture(second), pci.busId, pci.busIdLegacy, pci.bus,
          attempt(nvmlDeviceGetHandleByIndex, 2), attempt(nvmlDeviceGetName, None)]
"""
        uuid = board.gpus[1].record.uuid.decode()
        assert ask(board, code) == [
            *(2, uuid, A100.name, 1, 1, 7, "00000000:11:00.0", "0000:11:00.0", 0x11),
            *("error 2", "error 2"),
        ]


def test_gauges(ask: Ask, h100: Board) -> None:
    record = h100.gpus[0].record
    record.temperature, record.event_reasons = 55, 0x24
    record.clock_mhz[0], record.pcie_generation, record.pcie_replays = 1200, 4, 7
    record.ecc_corrected, record.ecc_uncorrected = 3, 1
    record.remapped_corrected, record.remap_pending = 2, 1
    code = """
answer = [nvmlDeviceGetTemperature(gpu, 0), nvmlDeviceGetTemperatureV(gpu, 0),
          nvmlDeviceGetClockInfo(gpu, 0), nvmlDeviceGetMaxClockInfo(gpu, 0),
          attempt(nvmlDeviceGetClockInfo, gpu, 4),
          nvmlDeviceGetCurrentClocksEventReasons(gpu),
          nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
          nvmlDeviceGetEnforcedPowerLimit(gpu),
          nvmlDeviceGetPowerManagementDefaultLimit(gpu),
          nvmlDeviceGetCurrPcieLinkGeneration(gpu), nvmlDeviceGetMaxPcieLinkGeneration(gpu),
          nvmlDeviceGetCurrPcieLinkWidth(gpu), nvmlDeviceGetMaxPcieLinkWidth(gpu),
          nvmlDeviceGetPcieReplayCounter(gpu),
          nvmlDeviceGetTotalEccErrors(gpu, 0, 0), nvmlDeviceGetTotalEccErrors(gpu, 1, 1),
          nvmlDeviceGetRemappedRows(gpu)]
"""
    expected = [55, 55, 1200, 1980, "error 2", 0x24, 0x24, 700_000, 700_000, 4, 5, 16, 16, 7, 3, 1]
    assert ask(h100, code) == [*expected, [2, 0, 1, 0]]


def test_thresholds_are_absolute_before_ada_and_offsets_since(ask: Ask, tmp_path: Path) -> None:
    with create(tmp_path / "board", [H100, A100]) as board:
        code = """
answer = [[attempt(nvmlDeviceGetTemperatureThreshold, gpu, kind) for kind in range(4)]
          + [attempt(nvmlDeviceGetMarginTemperature, gpu)] + fields(gpu, 193, 194, 195, 196)
          for gpu in (gpu, nvmlDeviceGetHandleByIndex(1))]
"""
        no = "error 3"
        assert ask(board, code) == [
            [no, no, no, no, 85 - 41, 85 - 92, 85 - 87, 0, 0],
            [92, 87, 85, 85, no, no, no, no, no],
        ]


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
both = lambda: (nvmlDeviceGetTotalEnergyConsumption(gpu), *fields(gpu, 83))
answer = [board.header.created_ns, *at_once(both)]
"""
    created, read_at, (energy, field) = ask(h100, code)
    assert energy == pytest.approx(72 * (read_at - created) / 1e6 + 400_000 * 2, abs=1000)
    assert field == pytest.approx(energy, abs=1000)


def test_power_is_averaged_over_a_second_or_nearly_instant(ask: Ask, h100: Board) -> None:
    now = time.monotonic_ns()
    book(h100, 0, now - SECOND // 2, now + LONG)
    code = """
ids = 185, 186, (186, 1), 187, 188, 189, 190
answer = at_once(lambda: (nvmlDeviceGetPowerUsage(gpu), *fields(gpu, *ids)))
"""
    read_at, (usage, average, instant, module, *limits) = ask(h100, code)
    seconds = (read_at - now) / SECOND + 0.5
    assert usage == pytest.approx(72_000 + 400_000 * min(seconds, 1), abs=20_000)
    assert average == pytest.approx(usage, abs=4_000), "10 ms may have passed"
    assert (instant, module) == (472_000, "error 3")
    assert limits == [175_000, 700_000, 700_000, 700_000]


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
answer = attempt(samples, gpu, 0) is not None
"""
    assert ask(h100, code)


# Sample rings


@pytest.fixture
def ringing(h100: Board) -> Board:
    """Of the last 40 windows the newest ten but two are busy, and ten that are older.

    What is staged stays in the ring for some seconds.
    """
    record = h100.gpus[0].record
    record.period_slots, record.ring_samples = WINDOW_US * 1000 // SLOT_NS, 40
    age(h100, 20)
    for first, last in ((60, 50), (12, 2)):
        book(h100, 0, windows_ago(h100, first), windows_ago(h100, last))
    return h100


def test_samples_are_percent_per_window(ask: Ask, ringing: Board) -> None:
    reference = windows_ago(ringing, 12)
    code = """
answer = [samples(gpu, kind) for kind in (1, 2, 0, 3, 4, 5, 6)]
"""
    gpu, memory, power, encoder, decoder, sm_clock, memory_clock = ask(ringing, code)
    first = timestamp_us(ringing, reference) + WINDOW_US
    busy = [first + WINDOW_US * position for position in range(10)]
    assert len(gpu) == len(memory) == 40
    assert {stamp for stamp, value in gpu if value} == set(busy)
    assert {value for _, value in gpu} == {0, 100}
    assert {value for stamp, value in memory if stamp in busy} == {40}
    assert {value for stamp, value in power if stamp in busy} == {472_000}
    assert {value for stamp, value in power if stamp not in busy} == {72_000}
    assert {value for _, value in encoder + decoder} == {0}
    assert {value for _, value in sm_clock} == {1980}
    assert {value for _, value in memory_clock} == {2619}
    stamps = [stamp for stamp, _ in gpu]
    assert stamps == list(range(stamps[0], stamps[0] + 40 * WINDOW_US, WINDOW_US))


def test_a_window_half_busy_is_half(ask: Ask, ringing: Board) -> None:
    start = windows_ago(ringing, 20)
    book(ringing, 0, start, start + WINDOW_US * 1000 // 2)
    stamp = timestamp_us(ringing, start) + WINDOW_US
    assert dict(ask(ringing, "answer = samples(gpu, 1)"))[stamp] == 50


def test_only_newer_samples_are_returned(ask: Ask, ringing: Board) -> None:
    code = """
everything = samples(gpu, 1)
rest = samples(gpu, 1, everything[-4][0])
future = attempt(samples, gpu, 1, 2**62)
answer = [everything[-3:], rest[:3], future]
"""
    last, rest, future = ask(ringing, code)
    assert last == rest
    assert future == "error 6"


RAW = """
def raw(kind, room):
    count, value_type = ctypes.c_uint(room or 0), ctypes.c_uint(99)
    buffer = (c_nvmlSample_t * room)() if room else None
    result = pynvml.nvmlLib.nvmlDeviceGetSamples(
        gpu, kind, ctypes.c_ulonglong(0), ctypes.byref(value_type), ctypes.byref(count), buffer)
    stamps = [sample.timeStamp for sample in buffer[:count.value]] if room else []
    return [result, value_type.value, count.value, stamps]
"""


def test_the_size_call_names_the_room_of_the_ring(ask: Ask, ringing: Board) -> None:
    code = RAW + "answer = [raw(1, None), raw(0, None)]"
    assert ask(ringing, code) == [[0, 1, 100, []], [0, 1, 120, []]]


def test_a_small_buffer_gets_the_newest(ask: Ask, ringing: Board) -> None:
    both = "[[stamp for stamp, _ in samples(gpu, 1)], raw(1, 10)]"
    code = RAW + f"answer = at_once(lambda: {both})[1]"
    everything, (result, _, count, stamps) = ask(ringing, code)
    assert (result, count) == (0, 10)
    assert stamps[:9] in (everything[-10:-1], everything[-9:])


def test_nothing_is_older_than_the_board(ask: Ask, h100: Board) -> None:
    h100.gpus[0].record.period_slots = WINDOW_US * 1000 // SLOT_NS
    time.sleep(0.26)
    code = "answer = [samples(gpu, 1), board.header.created_ns, samples(gpu, 1)[0][0]]"
    all_of_them, created, oldest = ask(h100, code)
    assert oldest == all_of_them[0][0]
    assert 0 <= oldest - timestamp_us(h100, created) <= WINDOW_US


def test_a_ring_may_be_empty_while_idle(ask: Ask, h100: Board) -> None:
    age(h100, 15)
    h100.gpus[0].record.ring_empty_when_idle = 1
    code = "answer = [attempt(samples, gpu, 1), len(samples(gpu, 0))]"
    assert ask(h100, code) == ["error 6", 60]
    book(h100, 0, windows_ago(h100, 5), windows_ago(h100, 4))
    assert len(ask(h100, code)[0]) == 60


def test_ghost_utilization_and_parts_without_memory_samples(ask: Ask, ringing: Board) -> None:
    record = ringing.gpus[0].record
    record.stuck_utilization, record.memory_always_zero = 100, 1
    code = """
rates = nvmlDeviceGetUtilizationRates(gpu)
answer = [samples(gpu, 1), samples(gpu, 2), rates.gpu, rates.memory]
"""
    gpu, memory, *rates = ask(ringing, code)
    assert {value for _, value in gpu} == {100}
    assert {value for _, value in memory} == {0}
    assert rates == [100, 0]


def test_utilization_rates_are_the_last_window(ask: Ask, h100: Board) -> None:
    now = time.monotonic_ns()
    code = "rates = nvmlDeviceGetUtilizationRates(gpu)\nanswer = [rates.gpu, rates.memory]"
    assert ask(h100, code) == [0, 0]
    book(h100, 0, now - 2 * SECOND, now + LONG)
    age(h100, 5)
    assert ask(h100, code) == [100, 40]


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


def test_violation_reference_time_is_in_microseconds(ask: Ask, h100: Board) -> None:
    code = "answer = nvmlDeviceGetViolationStatus(gpu, 0).referenceTime"
    assert ask(h100, code) == pytest.approx(time.time_ns() / 1000, abs=60e6)


def test_throttled_time_grows(ask: Ask, h100: Board) -> None:
    h100.gpus[0].throttle("power_cap", 0.5)
    code = """
then, (first,) = at_once(lambda: fields(gpu, 74))
time.sleep(0.2)
now, (second,) = at_once(lambda: fields(gpu, 74))
answer = (second - first) / (now - then)
"""
    assert ask(h100, code) == pytest.approx(0.5, abs=0.05)


NO = "error 3"
SETTINGS = (1, 0, 75)
OVERRIDES = (100, 50, 5)
TIMES = tuple(number * SECOND + 1000 for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("driver", "at_251", "at_269"),
    [
        ("560.35", (NO, NO, NO), (NO, NO, NO)),
        ("570.10", SETTINGS, (NO, NO, NO)),
        ("575.51", TIMES, OVERRIDES),
        ("580.65.06", TIMES, OVERRIDES),
        ("580.82.07", SETTINGS, TIMES),
        ("580.126.09", SETTINGS, TIMES),
        ("590.44", SETTINGS, TIMES),
        ("595.10", SETTINGS, TIMES),
    ],
)
def test_throttle_fields_moved(
    ask: Ask, tmp_path: Path, driver: str, at_251: tuple[object], at_269: tuple[object]
) -> None:
    with create(tmp_path / "board", driver_version=driver) as board:
        throttled(board)
        answer = ask(board, "answer = fields(gpu, 251, 252, 253, 269, 270, 271)")
    assert answer == [*at_251, *at_269]


def test_what_is_no_counter_runs_backwards(ask: Ask, tmp_path: Path) -> None:
    with create(tmp_path / "board", driver_version="595.10") as board:
        code = "answer = [fields(gpu, 252)[0] for _ in range(4)]"
        assert ask(board, code) == [0, 1, 0, 1]


def test_health_fields(ask: Ask, h100: Board) -> None:
    record = h100.gpus[0].record
    record.remapped_corrected, record.remapped_uncorrected = 4, 3
    record.remap_pending, record.remap_failed, record.pcie_replays = 1, 0, 9
    code = "answer = fields(gpu, 82, 94, 142, 143, 144, 145, 1, 197, 191, 9999)"
    assert ask(h100, code) == [47, 9, 4, 3, 1, 0, NO, NO, NO, NO]


def test_field_values_carry_a_time_and_errors_of_their_own(ask: Ask, h100: Board) -> None:
    h100.gpus[0].fail("DeviceGetMemoryTemperature", 3)
    h100.gpus[0].fail("DeviceGetTotalEnergyConsumption", 999)
    code = """
began = time.time()
values = nvmlDeviceGetFieldValues(gpu, [82, 83, 94])
stamps = [began, values[2].timestamp / 1e6, time.time()]
answer = [[value.nvmlReturn for value in values], stamps]
"""
    results, (began, stamp, ended) = ask(h100, code)
    assert results == [3, 999, 0]
    assert began - 1 <= stamp <= ended + 1


def test_ga100_and_turing_give_the_power_of_the_moment_only(ask: Ask, tmp_path: Path) -> None:
    with create(tmp_path / "board", [A100, H100]) as board:
        board.gpus[1].record.architecture = 6
        now = time.monotonic_ns()
        for gpu in (0, 1):
            book(board, gpu, now, now + LONG)
        code = """
time.sleep(0.2)
gpus = [gpu, nvmlDeviceGetHandleByIndex(1)]
answer = [[*fields(gpu, 185, 186), nvmlDeviceGetPowerUsage(gpu)] for gpu in gpus]
answer.append(attempt(nvmlDeviceGetMigMode, gpus[1]))
"""
        assert ask(board, code) == [[NO, 455_000, 455_000], [NO, 472_000, 472_000], NO]


def test_later_event_reasons_are_supported_by_later_drivers(ask: Ask, tmp_path: Path) -> None:
    code = "answer = nvmlDeviceGetSupportedClocksEventReasons(gpu)"
    for version, bits in (("580.95.05", 0x1FF), ("615.71", 0x7FF)):
        with create(tmp_path / version, driver_version=version) as board:
            assert ask(board, code) == bits


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


def dead_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_living_processes_and_their_memory(ask: Ask, h100: Board) -> None:
    gpu = h100.gpus[0]
    gpu.hold(os.getpid(), 1000)
    gpu.hold(os.getppid(), 200, PROCESS_GRAPHICS)
    gpu.hold(dead_pid(), 30_000)
    code = f"""{PROCESSES}
compute = listed(nvmlDeviceGetComputeRunningProcesses(gpu))
answer = [compute, compute == listed(nvmlDeviceGetComputeRunningProcesses_v2(gpu)),
          listed(nvmlDeviceGetGraphicsRunningProcesses(gpu)),
          nvmlDeviceGetMPSComputeRunningProcesses(gpu), memory(gpu)]
"""
    compute, same, graphics, mps, memory = ask(h100, code)
    assert compute == [[os.getpid(), 1000, NOT_MIG, NOT_MIG]]
    assert same
    assert graphics == [[os.getppid(), 200, NOT_MIG, NOT_MIG]]
    assert mps == []
    reserved = H100.reserved_bytes
    assert memory == [reserved + 1200, reserved + 1200, 1200, reserved, reserved + 1200]


def test_process_lists_follow_the_size_protocol(ask: Ask, h100: Board) -> None:
    code = """
def raw(room):
    count = ctypes.c_uint(room)
    buffer = (c_nvmlProcessInfo_v3_t * room)() if room else None
    call = pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3
    return [call(gpu, ctypes.byref(count), buffer), count.value]
answer = [raw(0), raw(1), raw(5)]
"""
    assert ask(h100, code) == [[0, 0]] * 3
    h100.gpus[0].hold(os.getpid(), 1)
    h100.gpus[0].hold(os.getppid(), 1)
    assert ask(h100, code) == [[7, 2], [7, 2], [0, 2]]


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


def test_mig_instances_are_found(ask: Ask, sliced: Board) -> None:
    code = f"""{INSTANCES}
other = nvmlDeviceGetHandleByIndex(1)
attributes = nvmlDeviceGetAttributes(parts[1])
answer = [nvmlDeviceGetCount(), nvmlDeviceGetMaxMigDeviceCount(gpu),
          nvmlDeviceGetMigMode(gpu), nvmlDeviceGetMigMode(other),
          [nvmlDeviceGetUUID(part) for part in parts],
          [nvmlDeviceGetGpuInstanceId(part) for part in parts],
          [nvmlDeviceGetComputeInstanceId(part) for part in parts],
          [nvmlDeviceIsMigDeviceHandle(handle).value for handle in (gpu, parts[0])],
          nvmlDeviceGetUUID(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(parts[1])),
          [attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount,
           attributes.memorySizeMB],
          attempt(nvmlDeviceGetMigDeviceHandleByIndex, gpu, 2),
          attempt(nvmlDeviceGetMigDeviceHandleByIndex, other, 0),
          attempt(nvmlDeviceGetGpuInstanceId, gpu)]
"""
    uuids = [gpu.record.uuid.decode() for gpu in sliced.gpus]
    memory = sliced.gpus[3].record.memory_total >> 20
    assert ask(sliced, code) == [
        *(2, 7, [1, 1], [0, 0], uuids[2:], [1, 2], [0, 0], [0, 1], uuids[0]),
        *([4, 4, memory], "error 6", "error 6", NO),
    ]


def test_mig_has_no_utilization(ask: Ask, sliced: Board) -> None:
    code = f"""{INSTANCES}
answer = [attempt(call, handle, *rest) for handle in (gpu, parts[0])
          for call, *rest in ((samples, 1), (samples, 2), (nvmlDeviceGetUtilizationRates,))]
answer.append(len(samples(gpu, 0)))
"""
    assert ask(sliced, code) == [NO] * 6 + [60]


def test_a_gpu_in_mig_mode_sums_its_instances(ask: Ask, sliced: Board) -> None:
    now = time.monotonic_ns()
    book(sliced, 2, now - 3 * SECOND, now + LONG)
    book(sliced, 3, now - 3 * SECOND, now + LONG)
    sliced.gpus[2].hold(os.getpid(), 10)
    sliced.gpus[3].hold(os.getpid(), 5)
    sliced.gpus[3].record.compute_instance = 1
    code = f"""{PROCESSES}{INSTANCES}
answer = [nvmlDeviceGetPowerUsage(gpu), listed(nvmlDeviceGetComputeRunningProcesses(gpu)),
          listed(nvmlDeviceGetComputeRunningProcesses(parts[0])),
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


# GPM

GPM_SAMPLES = """
def take(get, *target):
    sample = nvmlGpmSampleAlloc()
    get(*target, sample)
    return sample
first = take(nvmlGpmSampleGet, gpu)
"""
BUSY_IDS = "1, 2, 3, 4, 5, 10, 11, 12, 13, 20, 21, 60, 61"


def test_gpm_averages_between_two_samples(ask: Ask, h100: Board) -> None:
    now = time.monotonic_ns()
    book(h100, 0, now - SECOND, now + LONG)
    code = f"""{GPM_SAMPLES}
time.sleep(0.15)
answer = gpm(first, take(nvmlGpmSampleGet, gpu), {BUSY_IDS}, 255, 256, 9)
"""
    expected = [100, 50, 50, 10, 30, 35, 0, 10, 5, 50, 100, 20, 10]
    answer = ask(h100, code)
    assert answer[:13] == pytest.approx(expected, rel=1e-3)
    assert answer[13:] == [NO, NO, NO]


def test_gpm_samples_too_close_are_not_a_number(ask: Ask, h100: Board) -> None:
    code = f"""{GPM_SAMPLES}
pair = at_once(lambda: [take(nvmlGpmSampleGet, gpu) for _ in range(2)])[1]
answer = gpm(*pair, 1, 2, 9)
"""
    *values, unknown = ask(h100, code)
    assert all(math.isnan(value) for value in values)
    assert unknown == NO


def test_gpm_needs_a_gpu_that_has_it(ask: Ask, tmp_path: Path) -> None:
    with create(tmp_path / "board", [H100, A100]) as board:
        code = """
gpus = [gpu, nvmlDeviceGetHandleByIndex(1)]
sample = nvmlGpmSampleAlloc()
answer = [[nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice for gpu in gpus],
          attempt(nvmlGpmSampleGet, gpus[1], sample)]
nvmlGpmSampleFree(sample)
"""
        assert ask(board, code) == [[1, 0], NO]


def test_gpm_of_mig_instances_and_of_their_gpu(ask: Ask, sliced: Board) -> None:
    now = time.monotonic_ns()
    book(sliced, 3, now - SECOND, now + LONG)
    code = f"""{INSTANCES}{GPM_SAMPLES}
whole, part = first, take(nvmlGpmMigSampleGet, gpu, 2)
idle, handle = take(nvmlGpmMigSampleGet, gpu, 1), take(nvmlGpmSampleGet, parts[1])
time.sleep(0.15)
answer = [gpm(whole, take(nvmlGpmSampleGet, gpu), 1, 21),
          gpm(part, take(nvmlGpmMigSampleGet, gpu, 2), 1, 60, 20, 21),
          gpm(idle, take(nvmlGpmMigSampleGet, gpu, 1), 1),
          gpm(handle, take(nvmlGpmSampleGet, parts[1]), 1),
          attempt(take, nvmlGpmMigSampleGet, gpu, 9),
          attempt(gpm, whole, part, 1)]
"""
    whole, part, idle, handle, *errors = ask(sliced, code)
    assert whole == pytest.approx([400 / 7, 100], rel=1e-3)
    assert part[:2] == pytest.approx([100, 20], rel=1e-3)
    assert part[2:] == [NO, NO]
    assert (idle, handle) == ([0], [pytest.approx(100)])
    assert errors == ["error 6", "error 2"]


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
    answer.append([nvmlDeviceGetIndex(data.device), data.eventType, data.eventData,
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


def test_an_overrun_event_ring_keeps_the_newest(ask: Ask, h100: Board) -> None:
    code = """
events = nvmlEventSetCreate()
nvmlDeviceRegisterEvents(gpu, 8, events)
for xid in range(100):
    board.raise_xid(0, xid)
answer = [nvmlEventSetWait(events, 0).eventData for _ in range(64)]
"""
    assert ask(h100, code) == list(range(36, 100))


# Faults


def test_one_call_may_fail(ask: Ask, h100: Board) -> None:
    h100.gpus[0].fail("DeviceGetName", 999)
    code = "answer = [attempt(nvmlDeviceGetName, gpu), nvmlDeviceGetIndex(gpu)]"
    assert ask(h100, code) == ["error 999", 0]


def test_a_lost_gpu_fails_in_every_call_and_leaves_the_others(ask: Ask, tmp_path: Path) -> None:
    with create(tmp_path / "board", [H100, H100]) as board:
        code = """
board.gpus[0].record.device_result = 15
answer = [attempt(nvmlDeviceGetHandleByIndex, 0), attempt(nvmlDeviceGetUUID, gpu),
          attempt(nvmlDeviceGetSamples, gpu, 1, 0), attempt(fields, gpu, 83),
          attempt(nvmlDeviceGetMigMode, gpu), attempt(nvmlDeviceGetMinorNumber, gpu),
          nvmlDeviceGetName(nvmlDeviceGetHandleByIndex(1)), nvmlDeviceGetCount()]
"""
        assert ask(board, code) == [*["error 15"] * 6, H100.name, 2]


def test_a_slow_call(ask: Ask, h100: Board) -> None:
    code = """
from gpu_bottleneck_exporter.demo.board.layout import CALL
board.gpus[0].record.call_delay_us[CALL["DeviceGetMemoryInfo"]] = 100_000
at_once(lambda: nvmlDeviceGetName(gpu))
started = time.monotonic()
nvmlDeviceGetMemoryInfo(gpu)
answer = time.monotonic() - started
"""
    assert ask(h100, code) >= 0.1


def test_a_hanging_gpu_blocks_itself_alone(ask: Ask, sliced: Board) -> None:
    code = f"""{INSTANCES}
other = nvmlDeviceGetHandleByIndex(1)
board.gpus[0].record.hang = 1
done = []
def call(handle):
    done.append(nvmlDeviceGetName(handle))
threads = [threading.Thread(target=call, args=(handle,)) for handle in (gpu, parts[0])]
for thread in threads:
    thread.start()
time.sleep(0.1)
answer = [len(done), nvmlDeviceGetName(other)]
board.gpus[0].record.hang = 0
for thread in threads:
    thread.join()
answer.append(len(done))
"""
    assert ask(sliced, code) == [0, H100.name, 2]
