"""Tenants of a virtual GPU that come, go and restart, on a clock of the test: exact sums."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_bottleneck_exporter.accounting.tenants import TenantMeter
from gpu_bottleneck_exporter.accounting.tick import UNATTRIBUTED, TenantTime, Tick
from gpu_bottleneck_exporter.accounting.windows import sums
from gpu_bottleneck_exporter.demo.board.board import VirtualGpu
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.driver.protocol import Device
from gpu_bottleneck_exporter.driver.readings import ProcessUse, Reading, System
from gpu_bottleneck_exporter.sampling.ledger import GpuLedger

SECOND = 1_000_000_000


class Clock:
    """The time of a machine, which the test advances."""

    def __init__(self) -> None:
        self.now_ns = 1000 * SECOND

    def __call__(self) -> int:
        return self.now_ns

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


class Shared:
    """A GPU whose time is divided at each reading."""

    def __init__(self, clock: Clock, gpu: VirtualGpu, device: Device) -> None:
        self.gpu, self.given = gpu, Counter[str]()
        self._clock, self._device = clock, device
        self._ledger = GpuLedger(device.identity, System(None, None), SECOND)
        self._meter = TenantMeter(self._ledger.clock)

    def read(self, names: Mapping[int, str], *, answers: bool = True) -> Sequence[TenantTime]:
        """The parts of the time since the last reading."""
        now = self._clock()
        use = self._device.process_use()
        windows = self._ledger.add(now, SECOND, self._device.utilization())
        if not windows:
            return ()
        readings: dict[type[Reading], tuple[int, Reading]] = {}
        if answers:
            readings[ProcessUse] = now, use
        tick = Tick(self._device.identity, now, frozenset(names), readings, windows)
        parts = self._meter.divide(tick, names, None, 0.0)
        observed, active = sums(windows)
        assert sum(sum(part.busy_ns.values()) for part in parts) == active
        assert sum(sum(part.stalls.values()) for part in parts) == observed - active
        amounts = (ns for part in parts for ns in (*part.busy_ns.values(), *part.stalls.values()))
        assert min(amounts, default=0) >= 0
        for part in parts:
            self.given[part.name] += sum(part.busy_ns.values())
        return parts


@contextmanager
def shared(samples: int = 60) -> Iterator[tuple[Clock, Shared]]:
    clock = Clock()
    with (
        mock.patch.object(time, "monotonic_ns", clock),
        tempfile.TemporaryDirectory() as folder,
        create(Path(folder) / "board", [H100]) as board,
    ):
        board.gpus[0].record.ring_samples = samples
        (device,) = VirtualDriver(board).open(0)
        yield clock, Shared(clock, board.gpus[0], device)


spells = st.tuples(
    st.dictionaries(st.integers(1, 8), st.floats(0.01, 0.8), min_size=1, max_size=8),
    st.frozensets(st.integers(1, 8)),
    st.floats(0.0, 3.0),
    st.booleans(),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(spells, min_size=2, max_size=12), st.integers(3, 60))
def test_sums_are_exact_whatever_tenants_and_rings_do(
    steps: list[tuple[dict[int, float], frozenset[int], float, bool]], samples: int
) -> None:
    numbers = itertools.count(100)
    pids = {tenant: next(numbers) for tenant in range(1, 9)}
    with shared(samples) as (clock, machine):
        for work, restarts, pause, answers in steps:
            pids |= {tenant: next(numbers) for tenant in restarts}
            machine.gpu.record.processes = type(machine.gpu.record.processes)()
            for tenant, seconds in work.items():
                machine.gpu.hold(pids[tenant], 1)
                clock.wait(max(machine.gpu.launch(seconds, pid=pids[tenant]) - clock(), 0) / 1e9)
            clock.wait(pause)
            before = +machine.given
            machine.read({pids[tenant]: f"{tenant}" for tenant in work}, answers=answers)
            assert all(machine.given[name] >= ns for name, ns in before.items())


@pytest.mark.parametrize("every", [0.5, 1.0, 4.0])
def test_shares_of_turns_are_true(every: float) -> None:
    names = {101: "a", 102: "b", 103: "c"}
    with shared() as (clock, machine):
        for pid in names:
            machine.gpu.hold(pid, 1)
        end = clock()
        for turn in range(400):
            for pid, seconds in {101: 0.02, 102: 0.05, 103: 0.13}.items():
                machine.gpu.launch(seconds, pid=pid)
                clock.wait(seconds)
            clock.wait(0.1 * (turn % 2))
            if clock() - end >= every * SECOND:
                end = clock()
                machine.read(names)
    whole = machine.given.total()
    shares = {name: machine.given[name] / whole for name in (*names.values(), UNATTRIBUTED)}
    expected = {"a": 0.1, "b": 0.25, "c": 0.65, UNATTRIBUTED: 0.0}
    assert shares == pytest.approx(expected, abs=0.02)
