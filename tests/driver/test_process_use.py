"""Utilization by process: on both drivers, and NVML's two calls with their faults."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable

import pynvml
import pytest

from gpu_bottleneck_exporter.demo.board.work import Work
from gpu_bottleneck_exporter.driver.nvml import processuse
from gpu_bottleneck_exporter.driver.nvml.library import Calls
from gpu_bottleneck_exporter.driver.nvml.processuse import MAX_ROWS, ProcessUseReader
from gpu_bottleneck_exporter.driver.nvml.queries import Queries
from gpu_bottleneck_exporter.driver.plausible import plausible
from gpu_bottleneck_exporter.driver.protocol import DriverError, Unsupported
from gpu_bottleneck_exporter.driver.readings import ProcessSample
from support.children import Parent
from support.waiting import until

from .conftest import Machine, Make

Start = Callable[[], Parent]
WINDOW_US = 170_000
OLD, NEW = "DeviceGetProcessUtilization", "DeviceGetProcessesUtilizationInfo"
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
WORKED_US = 400_000, 200_000
"""Work of both processes of `shared`."""


def shared(machine: Machine, start: Start) -> tuple[int, int]:
    """Two processes that hold the GPU, of which the driver was asked before."""
    pids = os.getpid(), start().pid
    for pid in pids:
        machine.gpu.hold(pid, 2**20)
    assert machine.device.process_use().samples == ()
    return pids


def work(machine: Machine, *pids: int) -> None:
    """Work of processes, until its windows have ended."""
    for pid, us in zip(pids, WORKED_US, strict=False):
        end = machine.gpu.launch(us / 1e6, Work(kernel=1.0), pid)
    machine.gpu.synchronize(end + 2 * 1000 * WINDOW_US)


def used_us(samples: Iterable[ProcessSample]) -> dict[int, float]:
    """Busy time by process."""
    used: Counter[int] = Counter()
    for sample in samples:
        used[sample.pid] += sample.percent
    return {pid: percents / 100 * WINDOW_US for pid, percents in used.items()}


def assert_shared(machine: Machine, pids: tuple[int, int]) -> None:
    samples = machine.device.process_use().samples
    assert used_us(samples) == pytest.approx(dict(zip(pids, WORKED_US, strict=True)), rel=0.05)
    assert [*samples] == sorted(samples)


def test_each_process_has_its_part_of_the_busy_time(both: Make, start: Start) -> None:
    machine = both()
    pids = shared(machine, start)
    machine.device.utilization()
    work(machine, *pids)
    samples = machine.device.process_use().samples
    assert used_us(samples) == pytest.approx(dict(zip(pids, WORKED_US, strict=True)), rel=0.05)
    ring = {
        sample.timestamp_us: sample.percent for sample in machine.device.utilization().gpu or ()
    }
    parts: Counter[int] = Counter()
    for sample in samples:
        parts[sample.timestamp_us] += sample.percent
    assert parts.keys() <= ring.keys()
    assert all(abs((ring[at] or 0) - percent) <= 1 for at, percent in parts.items())
    assert machine.device.process_use().samples == ()
    assert machine.device.last_error is None


def test_work_before_the_first_reading_is_not_reported(both: Make, start: Start) -> None:
    machine = both()
    machine.gpu.hold(os.getpid(), 2**20)
    work(machine, os.getpid())
    assert shared(machine, start)
    assert machine.device.process_use().samples == ()


def test_a_process_without_a_context_has_no_part(both: Make, start: Start) -> None:
    machine = both()
    pids = shared(machine, start)
    machine.gpu.release(pids[1])
    work(machine, *pids)
    used = used_us(machine.device.process_use().samples)
    assert used == pytest.approx({pids[0]: WORKED_US[0]}, rel=0.05)


def test_a_place_taken_over_by_another_process_brings_it_no_work(both: Make, start: Start) -> None:
    machine = both()
    pids = shared(machine, start)
    machine.gpu.launch(1.0, pid=pids[1])
    machine.gpu.release(pids[1])
    machine.gpu.hold(other := start().pid, 2**20)
    work(machine, os.getpid())
    assert other not in used_us(machine.device.process_use().samples)


def test_a_process_works_for_itself(nvml: Make, start: Start) -> None:
    machine = nvml()
    shared(machine, start)
    code = (
        "import os, sys; from pathlib import Path\n"
        "from gpu_bottleneck_exporter.demo.board.board import Board\n"
        "gpu = Board(Path(sys.argv[1])).gpus[0]\n"
        "gpu.run(0.2); gpu.hold(os.getpid(), 1); gpu.run(0.2); print(os.getpid())"
    )
    command = [sys.executable, "-c", code, f"{machine.board.path}"]
    pid = int(subprocess.run(command, capture_output=True, check=True).stdout)
    time.sleep(2 * WINDOW_US / 1e6)
    used = used_us(machine.device.process_use().samples)
    assert used == pytest.approx({pid: 200_000}, rel=0.05)


# --- NVML alone -----------------------------------------------------------------------------------
@pytest.mark.parametrize("branch", [470, 535, 580])
def test_the_older_call_is_enough(nvml: Make, start: Start, branch: int) -> None:
    machine = nvml(driver_version=f"{branch}.10")
    machine.gpu.fail(NEW, NOT_SUPPORTED)
    pids = shared(machine, start)
    work(machine, *pids)
    assert_shared(machine, pids)


def test_the_newer_call_is_used_where_the_older_one_is_refused(nvml: Make, start: Start) -> None:
    machine = nvml()
    machine.gpu.fail(OLD, NOT_SUPPORTED)
    pids = shared(machine, start)
    work(machine, *pids)
    assert_shared(machine, pids)


def test_without_either_call_it_is_unsupported(nvml: Make) -> None:
    for branch in (535, 580):
        machine = nvml(driver_version=f"{branch}.10")
        for call in (OLD, NEW):
            machine.gpu.fail(call, NOT_SUPPORTED)
        with pytest.raises(Unsupported):
            machine.device.process_use()


def test_under_mig_it_is_unsupported(nvml: Make) -> None:
    for device in nvml(mig=[(0, 3)]).driver.open(0):
        with pytest.raises(Unsupported):
            device.process_use()


def test_a_refusal_after_an_answer_is_a_failure(nvml: Make, start: Start) -> None:
    machine = nvml()
    pids = shared(machine, start)
    work(machine, *pids)
    assert machine.device.process_use().samples
    machine.gpu.fail(OLD, NOT_SUPPORTED)
    with pytest.raises(DriverError, match=OLD) as raised:
        machine.device.process_use()
    assert not isinstance(raised.value, Unsupported)


def test_work_after_an_idle_start_is_reported_in_full(nvml: Make, start: Start) -> None:
    machine = nvml()
    machine.gpu.fail(OLD, pynvml.NVML_ERROR_NOT_FOUND)
    pids = shared(machine, start)
    assert machine.device.last_error is None
    machine.gpu.fail(OLD, 0)
    work(machine, *pids)
    assert_shared(machine, pids)


@pytest.mark.parametrize("refused", [NEW, OLD])
def test_several_entries_of_a_window_are_parts(nvml: Make, start: Start, refused: str) -> None:
    machine = nvml()
    machine.record.process_entries = 3
    machine.gpu.fail(refused, NOT_SUPPORTED)
    pids = shared(machine, start)
    work(machine, *pids)
    samples = machine.device.process_use().samples
    assert max(Counter(sample[:2] for sample in samples).values()) == 3
    assert used_us(samples) == pytest.approx(dict(zip(pids, WORKED_US, strict=True)), rel=0.05)


def test_a_driver_of_means_gives_one_entry_per_process(nvml: Make, start: Start) -> None:
    machine = nvml()
    machine.record.process_means = 1
    pids = shared(machine, start)
    work(machine, *pids)
    samples = machine.device.process_use().samples
    assert {sample.pid for sample in samples} == {*pids}
    assert len(samples) == 2
    first, second = (next(s.percent for s in samples if s.pid == pid) for pid in pids)
    assert first == pytest.approx(2 * second, abs=2)
    machine.gpu.run(0.2)
    machine.gpu.synchronize(time.monotonic_ns() + 2 * 1000 * WINDOW_US)
    (only,) = machine.device.process_use().samples
    assert only.pid == pids[0]
    assert only.timestamp_us > samples[-1].timestamp_us


def test_a_short_ring_loses_its_oldest_windows(nvml: Make, start: Start) -> None:
    machine = nvml()
    machine.record.ring_samples = 3
    shared(machine, start)
    machine.gpu.run(1.0)
    assert len(machine.device.process_use().samples) <= 3


@pytest.mark.parametrize("refused", [NEW, OLD])
def test_more_entries_than_expected_are_read(nvml: Make, start: Start, refused: str) -> None:
    machine = nvml()
    machine.gpu.fail(refused, NOT_SUPPORTED)
    pids = shared(machine, start)
    machine.record.process_zombies = 300
    work(machine, *pids)
    reading = machine.device.process_use()
    assert sum(sample.percent > 100 for sample in reading.samples) == 300
    dropped: list[tuple[str, object]] = []
    possible = plausible(reading, lambda name, value: dropped.append((name, value)))
    assert {sample.pid for sample in possible.samples} == {*pids}  # type: ignore[attr-defined]
    assert dropped == [("samples", 300)]


def test_entries_beyond_the_bound_are_a_failure(nvml: Make, start: Start) -> None:
    machine = nvml()
    pids = shared(machine, start)
    machine.record.process_zombies = MAX_ROWS + 1
    work(machine, *pids)
    with pytest.raises(DriverError, match=r"INSUFFICIENT_SIZE \(7\)"):
        machine.device.process_use()
    machine.record.process_zombies = 0
    assert_shared(machine, pids)


def test_a_writer_that_died_costs_a_wait_only(nvml: Make, start: Start) -> None:
    machine = nvml()
    pids = shared(machine, start)
    work(machine, *pids)
    machine.record.sequence |= 1
    assert_shared(machine, pids)


def test_the_binding_reads_the_same(nvml: Make, start: Start) -> None:
    machine = nvml()
    pids = shared(machine, start)
    work(machine, *pids)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    ours = machine.device.process_use().samples
    for call in (
        pynvml.nvmlDeviceGetProcessUtilization,
        pynvml.nvmlDeviceGetProcessesUtilizationInfo,
    ):
        theirs = [ProcessSample(row.timeStamp, row.pid, row.smUtil) for row in call(handle, 0)]
        assert sorted(theirs) == [*ours]


# --- The mark -------------------------------------------------------------------------------------
class Ring:
    """A reader of a ring that keeps all its entries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[ProcessSample] = []
        self.reader = ProcessUseReader(Queries(Calls(), None))
        # As after a long silence: whether the clock was set back is asked at once.
        monkeypatch.setattr(processuse, "SILENCE_BEFORE_PROBE_NS", 0)
        monkeypatch.setattr(self.reader, "_read", self._newer)

    def _newer(self, _: str, mark: int) -> tuple[ProcessSample, ...]:
        return tuple(sorted(entry for entry in self.entries if entry.timestamp_us > mark))

    def after(self, *entries: tuple[int, int]) -> list[tuple[int, int]]:
        """Result once `entries` came: timestamp and pid of each."""
        self.entries += [ProcessSample(at, pid, 50) for at, pid in entries]
        samples = self.reader.drain()
        assert samples is not None
        return [sample[:2] for sample in samples]


def test_entries_that_persist_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring(monkeypatch)
    assert ring.after((0, 9), (100, 1)) == []
    assert ring.after() == []
    assert ring.after((200, 2), (200, 1), (0, 9)) == [(200, 1), (200, 2)]
    assert ring.after() == []
    assert ring.after((300, 2), (250, 1)) == [(250, 1), (300, 2)]


def test_a_clock_that_is_set_back_silences_it_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = Ring(monkeypatch)
    assert ring.after((100, 1)) == []
    assert ring.after((200, 1)) == [(200, 1)]
    assert ring.after((50, 2)) == []
    assert ring.after((60, 2)) == []
    assert ring.after((70, 2), (70, 3)) == [(70, 2), (70, 3)]
    assert ring.after() == []
    assert ring.after((80, 2)) == [(80, 2)]
    ring.entries = ring.entries[-1:]  # the others have left the ring
    assert ring.after((90, 1)) == [(90, 1)]


def test_a_driver_with_a_clock_that_is_set_back_is_read_on(
    nvml: Make, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processuse, "SILENCE_BEFORE_PROBE_NS", 0)
    machine = nvml()
    pids = shared(machine, start)
    work(machine, *pids)
    before = machine.device.process_use().samples
    machine.board.header.timestamp_offset_ns -= 3600 * 10**9

    def read_on() -> tuple[ProcessSample, ...]:
        machine.gpu.run(0.2)
        return machine.device.process_use().samples

    samples = until(read_on, "samples of the new clock")
    assert samples[-1].timestamp_us < before[0].timestamp_us
    assert {sample.pid for sample in samples} == {pids[0]}
