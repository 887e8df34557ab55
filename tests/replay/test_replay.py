"""A capture of the virtual board, replayed: the exporter must see the same GPUs."""

from __future__ import annotations

import json
import os
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpu_bottleneck_exporter.commands import capture as capturing
from gpu_bottleneck_exporter.commands.capture import capture
from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.driver.nvml import signatures
from gpu_bottleneck_exporter.driver.nvml.processuse import PROCESS_USE
from gpu_bottleneck_exporter.driver.nvml.recording import NvmlRecording
from gpu_bottleneck_exporter.driver.nvml.signatures import Signature
from gpu_bottleneck_exporter.driver.protocol import DriverError, Unsupported
from support.board import Board, VirtualGpu
from support.command import run
from support.drivers import Libraries
from support.models import A100
from support.rights import as_user
from support.waiting import until

from .build import build
from .judged import CAPTURES, judged, load

pytestmark = pytest.mark.processes
BUS_ID = re.compile(r'pci_bus_id="[^"]*"')
Make = Callable[..., Board]


@contextmanager
def busy(gpu: VirtualGpu) -> Iterator[None]:
    """A GPU that always has work queued."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            gpu.launch(0.5)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def captured(board: Board, libraries: Libraries, path: Path, seconds: float = 10.0) -> None:
    libraries.open(board)
    capture(lambda: NvmlRecording(masked=True), seconds, path)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def replayed(path: Path, folder: Path) -> str:
    return BUS_ID.sub("", judged(load(build(path, folder))))


def test_a_replay_gives_the_metrics_of_the_capture(
    make_board: Make, libraries: Libraries, tmp_path: Path
) -> None:
    board = make_board(gpus=[H100, H100, A100], mig=[(1, 2), (1, 3)])
    path = tmp_path / "board.jsonl"
    board.gpus[2].fail("DeviceGetEnforcedPowerLimit", pynvml.NVML_ERROR_NOT_SUPPORTED)
    board.gpus[2].record.event_reasons = 0x4
    board.gpus[2].record.pcie_width = 8
    with busy(board.gpus[0]), busy(board.gpus[3]):
        power = libraries.open(board).open(0)[0].power
        until(lambda: (power().watts or 0) > 491, "a second of full load")
        captured(board, libraries, path)
        expected = BUS_ID.sub("", judged(libraries.open(board)))
    assert 'gpu gpu_busy_seconds_total{gpu="0"} 1.00 of the time' in expected
    assert 'gpu_power_limit_watts{gpu="1"} 700' in expected
    assert 'gpu_power_limit_watts{gpu="2"}' not in expected
    assert "instance 0 gpu_sm_active_seconds_total{" in expected
    assert replayed(path, tmp_path / "replay") == expected


def numbers(signature: Signature, arguments: tuple[Any, ...]) -> Iterator[int]:
    """Arguments of a call after its device, and the members of its structure that are set."""
    count, presets = len(signature.arguments[0]), len(signature.presets[0])
    yield from (int(getattr(number, "value", number)) for number in arguments[:count])
    if presets:
        structure = getattr(arguments[count], "_obj", arguments[count])
        yield from struct.unpack_from(f"={presets}I", bytes(structure))


def test_each_call_of_the_driver_layer_is_captured_with_its_arguments(
    make_board: Make, libraries: Libraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: set[tuple[object, ...]] = set()
    look_up = pynvml._nvmlGetFunctionPointer
    plain = {s.name: s for s in (*signatures.OF_DEVICES, signatures.LINK_STATE)}

    def noted(name: str) -> Callable[..., int]:
        function = look_up(name)

        def call(*arguments: Any) -> int:  # noqa: ANN401 - of ctypes
            called.add((name, *(numbers(plain[name], arguments[1:]) if name in plain else ())))
            return int(function(*arguments))

        return call

    board = make_board(gpus=[H100, A100], mig=[(0, 2)])
    board.gpus[0].hold(1, 2**20)
    driver = libraries.open(board)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", noted)
    judged(driver)
    with pytest.raises(Unsupported):
        driver.open(0)[0].process_use()  # of a divided GPU: tries both calls
    monkeypatch.undo()
    assert {(name,) for name in PROCESS_USE} <= called
    path = tmp_path / "board.jsonl"
    captured(board, libraries, path, seconds=3.0)
    lines = [line for line in lines_of(path) if "call" in line]
    recorded = {(line["call"], *(line["args"] if line["call"] in plain else ())) for line in lines}
    unrecorded = ("nvmlInit", "nvmlEventSet", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree")
    assert ("nvmlDeviceGetTemperatureV", 0x100000C, 0) in called
    fields = [line["value"] for line in lines if line["call"] == signatures.FIELDS]
    assert sum(len(rows) > signatures.LAST_FIELD for rows in fields) == 2 * len(board.gpus)
    assert {call for call in called if not f"{call[0]}".startswith(unrecorded)} <= recorded


def test_refusals_are_captured_and_replayed_as_they_were(
    make_board: Make, libraries: Libraries, tmp_path: Path
) -> None:
    board = make_board(gpus=[H100])
    codes = {
        "DeviceGetPowerUsage": pynvml.NVML_ERROR_NO_PERMISSION,
        "DeviceGetMemoryInfo": pynvml.NVML_ERROR_UNKNOWN,
        "DeviceGetSamples": pynvml.NVML_ERROR_NOT_SUPPORTED,
        "GpmSampleGet": pynvml.NVML_ERROR_NO_PERMISSION,
    }
    for call, code in codes.items():
        board.gpus[0].fail(call, code)
    path = tmp_path / "board.jsonl"
    captured(board, libraries, path, seconds=3.0)
    device = load(build(path, tmp_path / "replay")).open(0)[0]
    for read, code in ((device.memory, "999"), (device.activity, "(4)")):
        with pytest.raises(DriverError, match=re.escape(code)):
            read()
    assert device.utilization().gpu is None
    assert device.power().limit_watts == 700


def test_a_capture_holds_nothing_that_identifies_a_gpu(
    make_board: Make, libraries: Libraries, tmp_path: Path
) -> None:
    board = make_board(gpus=[H100, A100], mig=[(0, 2)])
    board.gpus[0].hold(1, 2**20)
    path = tmp_path / "board.jsonl"
    captured(board, libraries, path, seconds=3.0)
    text = path.read_text()
    for gpu in board.gpus:
        assert gpu.record.uuid.decode() not in text
    assert ":10:00.0" not in text
    listing = "nvmlDeviceGetComputeRunningProcesses_v2"
    lists = [line["value"] for line in lines_of(path) if line.get("call") == listing]
    assert [[2**20, 0xFFFFFFFF, 0xFFFFFFFF]] in lists


@pytest.mark.parametrize("refused", [0, 1])
def test_use_by_process_is_captured_without_pids_and_replayed(
    make_board: Make,
    libraries: Libraries,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: int,
) -> None:
    board = make_board(gpus=[H100])
    gpu, calls = board.gpus[0], [*PROCESS_USE]
    gpu.fail(calls[refused].removeprefix("nvml"), pynvml.NVML_ERROR_NOT_SUPPORTED)
    for pid in (os.getpid(), os.getppid()):
        gpu.hold(pid, 2**20)
    for _ in range(80):
        gpu.launch(0.06)
        gpu.launch(0.03, pid=os.getppid())
    path = tmp_path / "board.jsonl"
    captured(board, libraries, path, seconds=4.0)
    lines = [line for line in lines_of(path) if line.get("call") in calls and line.get("value")]
    assert {line["call"] for line in lines} == {calls[1 - refused]}
    assert {row[1] for line in lines for row in line["value"]["samples"]} == {0, 1}
    monkeypatch.setenv("REPLAY_PIDS", "11 12")
    device = load(build(path, tmp_path / "replay")).open(0)[0]
    assert device.process_use().samples == ()
    time.sleep(2.0)
    samples = device.process_use().samples
    percents = {pid: sum(s.percent for s in samples if s.pid == pid) for pid in (11, 12)}
    assert {sample.pid for sample in samples} == {11, 12}
    assert percents[11] == pytest.approx(2 * percents[12], rel=0.3)


def test_a_capture_from_before_a_call_refuses_it(tmp_path: Path) -> None:
    device = load(build(CAPTURES[0].with_name("h100-busy.jsonl"), tmp_path)).open(0)[0]
    with pytest.raises(Unsupported):
        device.process_use()


def test_a_full_file_ends_the_capture_with_its_last_line(
    make_board: Make,
    libraries: Libraries,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(capturing, "MAX_CAPTURE_BYTES", 150_000)
    path = tmp_path / "board.jsonl"
    captured(make_board(gpus=[H100] * 2), libraries, path, seconds=600.0)
    assert path.stat().st_size <= 150_000
    assert "end" in lines_of(path)[-1]
    assert "the file is full" in capsys.readouterr().err


def test_a_gpu_that_hangs_is_named_and_costs_only_itself(
    make_board: Make, libraries: Libraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_bottleneck_exporter.driver.nvml.recording._HANG_SECONDS", 0.5)
    board = make_board(gpus=[H100] * 2)
    board.gpus[0].record.hang = 1
    path = tmp_path / "board.jsonl"
    try:
        captured(board, libraries, path, seconds=3.0)
    finally:
        board.gpus[0].record.hang = 0
    (hung,) = [line for line in lines_of(path) if "hung_in" in line]
    assert hung == {"device": "0", "hung_in": "nvmlDeviceGetHandleByIndex_v2"}
    values = {line["device"] for line in lines_of(path) if line.get("call") == "nvmlDeviceGetName"}
    assert values == {"1"}


def test_the_command_names_the_content_and_overwrites_nothing(
    make_board: Make, libraries: Libraries, tmp_path: Path
) -> None:
    board = make_board(gpus=[H100])
    way = as_user(0) if os.geteuid() == 0 else ()
    variables = {
        "FAKE_NVML_BOARD": f"{board.path}",
        "LD_LIBRARY_PATH": f"{libraries.path(580).parent}",
    }

    def command(file: str) -> tuple[int, list[str]]:
        done = run(tmp_path, "capture", "1s", "-o", file, way=way, **variables)
        assert done.stdout == ""
        return done.returncode, done.stderr.splitlines()

    status, (first, holds, identities, last) = command("gpu.jsonl")
    assert status == 0
    assert first == "capturing for 1 s into gpu.jsonl, which is sent nowhere"
    assert holds.startswith("holds: versions, symbols and checksum of the driver's library; ")
    assert "UUIDs and bus addresses are masked" in identities
    assert last.startswith("wrote gpu.jsonl: ")
    written = (tmp_path / "gpu.jsonl").read_bytes()
    exists = "gpu-bottleneck-exporter: --output: gpu.jsonl exists; name another file"
    assert command("gpu.jsonl") == (1, [exists])
    assert (tmp_path / "gpu.jsonl").read_bytes() == written
    status, errors = command("none/gpu.jsonl")
    assert status == 1
    assert errors[-1].endswith("--output: cannot write none/gpu.jsonl: No such file or directory")


def test_without_a_driver_no_file_is_left(tmp_path: Path) -> None:
    done = run(tmp_path, "capture", "1s")
    assert done.returncode == 1
    assert done.stderr.startswith("gpu-bottleneck-exporter: no GPU to capture: nvmlInit: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "gpu-capture.jsonl").exists()


def test_identifiers_of_a_gpu_are_kept_only_on_request(
    make_board: Make, libraries: Libraries, tmp_path: Path
) -> None:
    board = make_board(gpus=[H100])
    libraries.open(board)
    capture(lambda: NvmlRecording(masked=False), 1.0, tmp_path / "gpu.jsonl")
    assert board.gpus[0].record.uuid.decode() in (tmp_path / "gpu.jsonl").read_text()
