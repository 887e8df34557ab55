"""A driver in pure Python for a virtual board."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.layout import CLOCKS, ENGINES, LANE, SLOT_NS
from gpu_bottleneck_exporter.driver import readings
from gpu_bottleneck_exporter.driver.nvml.gpm import MINIMUM_INTERVAL_NS
from gpu_bottleneck_exporter.driver.nvml.remedies import NVIDIA
from gpu_bottleneck_exporter.driver.nvml.throttle import EVENT_REASONS, HW_SLOWDOWN
from gpu_bottleneck_exporter.driver.protocol import Device, Driver

_LAST_ARCHITECTURE_WITH_LIMITS = 7
"""Ampere, in NVML's numbers; later models report a margin."""


class VirtualDevice(Device):
    """A virtual GPU."""

    def __init__(self, board: Board, index: int) -> None:
        self._created_ns = board.header.created_ns
        self._pod = board.pods.get(index)
        self._follows_load = board.follows_load
        self._gpu = board.gpus[index]
        self._record = record = self._gpu.record
        self._next_window = self._next_process_window = 0
        self._before: tuple[int, list[int]] = (0, [])
        self.identity = readings.Identity(
            index=index,
            uuid=record.uuid.decode(),
            name=record.name.decode(),
            architecture="hopper",
            pci_bus_id=record.pci_bus_id.decode(),
            minor=index,
        )

    def utilization(self) -> readings.Utilization:
        """Utilization in percent: windows since the last call, and the last window."""
        new = self._windows(self._next_window)
        self._next_window = end = new.stop
        return readings.Utilization(
            self._ring("busy_ns", new),
            self._ring("memory_ns", new),
            self._gpu.percent("busy_ns", end - 1),
            self._gpu.percent("memory_ns", end - 1),
        )

    def process_use(self) -> readings.ProcessUse:
        """Percent by process and new window; initially none."""
        new = self._windows(self._next_process_window)
        first, self._next_process_window = not self._next_process_window, new.stop
        period_us = self._period_ns // 1000
        return readings.ProcessUse(
            tuple(
                readings.ProcessSample((window + 1) * period_us, pid, percent)
                for window in (() if first else new)
                for pid, percent in self._gpu.process_percents(window).items()
            )
        )

    @property
    def _period_ns(self) -> int:
        return int(self._record.period_slots * SLOT_NS)

    def _windows(self, since: int) -> range:
        """Completed windows in the ring."""
        end = time.monotonic_ns() // self._period_ns
        oldest = max(self._created_ns // self._period_ns, end - self._record.ring_samples)
        return range(max(oldest, since), end)

    def video(self) -> readings.Video:
        """Utilization of video engines in percent, in the last window."""
        window = time.monotonic_ns() // self._period_ns - 1
        engines = (name for at, name in enumerate(ENGINES) if self._record.engines >> at & 1)
        percents = {name: self._gpu.percent(f"{name}_ns", window) for name in engines}
        return readings.Video(percents=percents)

    def _ring(self, lane: str, windows: range) -> readings.Ring:
        period_us = self._period_ns // 1000
        return tuple(
            readings.RingSample((window + 1) * period_us, self._gpu.percent(lane, window))
            for window in windows
        )

    def activity(self) -> readings.UnitActivity | None:
        """Means since the last call, 0-1."""
        now = time.monotonic_ns() // SLOT_NS * SLOT_NS
        before_ns, before = self._before
        if now - before_ns < MINIMUM_INTERVAL_NS:
            return None
        sums = self._gpu.done(now)
        self._before = now, sums
        if not before:
            return None
        done = [new - old for new, old in zip(sums, before, strict=True)]
        return _activity(done, now - before_ns)

    def power(self) -> readings.Power:
        """Mean power of the last second and limits in watts; energy in joules."""
        now = time.monotonic_ns()
        record = self._record
        idle_joules = record.idle_mw / 1000 * (now - self._created_ns) / 1e9
        work_joules = self._gpu.done(now)[LANE["energy_uj"]] / 1e6
        return readings.Power(
            watts=record.idle_mw / 1000 + self._work_watts(1),
            limit_watts=record.power_limit_mw / 1000,
            default_limit_watts=record.power_default_limit_mw / 1000,
            energy_joules=idle_joules + work_joules,
        )

    def _work_watts(self, seconds: int) -> float:
        """Mean power above idle power."""
        slots = seconds * 1_000_000_000 // SLOT_NS
        first = time.monotonic_ns() // SLOT_NS - slots
        return self._gpu.sum_of("energy_uj", first, slots) / 1e6 / seconds

    def thermal(self) -> readings.Thermal:
        """Temperatures, and limits or the margin, in degrees Celsius."""
        record = self._record
        watts = self._work_watts(10) if self._follows_load else 0.0
        warming = round(watts * 0.07)  # an H100 at 490 W is 30 degrees above rest
        sensors = {
            "gpu": record.temperature + warming,
            "memory": record.memory_temperature + warming,
        }
        if record.architecture > _LAST_ARCHITECTURE_WITH_LIMITS:
            margin = record.max_operating_temperature - sensors["gpu"]
            return readings.Thermal(sensors, margin=margin)
        limits = {
            "slowdown": record.slowdown_temperature,
            "shutdown": record.shutdown_temperature,
            "max_operating": record.max_operating_temperature,
            "memory_max_operating": record.max_operating_temperature,
        }
        return readings.Thermal(sensors, limits)

    def clocks(self) -> readings.Clocks:
        """Clocks and their maxima, in hertz."""
        record, ratio = self._record, 1.0
        if self._follows_load:
            watts = self._work_watts(1)
            ratio = 1 - 0.0003 * watts if watts else 345 / 1980
        now = {clock: record.clock_mhz[at] * 1e6 for at, clock in enumerate(CLOCKS)}
        return readings.Clocks(
            now=now | {clock: ratio * now[clock] for clock in ("graphics", "sm")},
            maximum={clock: record.clock_max_mhz[at] * 1e6 for at, clock in enumerate(CLOCKS)},
        )

    def throttle(self) -> readings.Throttle:
        """No throttling, for any reason."""
        none = dict.fromkeys(EVENT_REASONS, 0)
        return readings.Throttle(none, dict.fromkeys((*none, HW_SLOWDOWN), False))

    def memory(self) -> readings.Memory:
        """Memory in bytes: total, used by live processes, reserved."""
        used = sum(process.used_bytes or 0 for process in self.processes().processes)
        return readings.Memory(self._record.memory_total, used, self._record.memory_reserved)

    def health(self) -> readings.Health:
        """No errors."""
        none = dict.fromkeys(("corrected", "uncorrected"), 0)
        return readings.Health(none, none, remap_pending=False, remap_failed=False)

    def link(self) -> readings.Link:
        """The PCIe link."""
        parts = (part.name for part in fields(readings.Link))
        return readings.Link(*(getattr(self._record, f"pcie_{part}") for part in parts))

    def processes(self) -> readings.Processes:
        """Live processes with a context."""
        live = (
            readings.Process(entry.pid, entry.used_bytes)
            for entry in self._record.processes
            if entry.pid and Path(f"/proc/{entry.pid}").exists()
        )
        return readings.Processes(tuple(live), pod=self._pod)


class VirtualDriver(Driver):
    """A driver for a board, which must remain open; no MIG."""

    name = "virtual"
    calls = 0
    seconds = 0.0
    about = replace(NVIDIA, title="virtual board", simulated=True, sees_all_namespaces=True)

    def __init__(self, board: Board) -> None:
        self.board = board
        cuda = board.header.cuda_version
        self.system = readings.System(
            board.header.driver_version.decode(), f"{cuda // 1000}.{cuda % 1000 // 10}"
        )

    def count(self) -> int:
        """Number of GPUs."""
        return len(self.board.gpus)

    def open(self, index: int) -> list[Device]:
        """GPU `index`."""
        return [VirtualDevice(self.board, index)]

    def wait_error(self, timeout_seconds: float) -> readings.ErrorEvent | None:
        """None after `timeout_seconds`, as there are no errors."""
        time.sleep(timeout_seconds)
        return None


def _activity(amounts: list[int], interval_ns: int) -> readings.UnitActivity:
    def ratio(lane: str) -> float:
        return min(amounts[LANE[f"{lane}_ns"]] / interval_ns, 1.0)

    return readings.UnitActivity(
        interval_ns=interval_ns,
        graphics=ratio("busy"),
        sm_active=ratio("sm_active"),
        sm_occupancy=ratio("sm_occupancy"),
        dram_active=ratio("dram"),
        pipes={pipe: ratio(pipe) for pipe in ("tensor", "fp64", "fp32", "fp16", "int")},
        traffic_bytes={
            name: amounts[LANE[f"{name}_bytes"]]
            for name in ("pcie_receive", "pcie_transmit", "nvlink_receive", "nvlink_transmit")
        },
    )
