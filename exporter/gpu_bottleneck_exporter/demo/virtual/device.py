"""One virtual GPU as a device."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import fields

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.layout import (
    CALL,
    CLOCKS,
    LANE,
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_NOT_SUPPORTED,
    PROCESS_GRAPHICS,
    SLOT_NS,
    THROTTLE_REASONS,
    throttled_ns,
)
from gpu_bottleneck_exporter.demo.virtual import view
from gpu_bottleneck_exporter.driver.nvml.throttle import EVENT_REASONS
from gpu_bottleneck_exporter.driver.protocol import Device, DeviceLost, DriverError, Unsupported
from gpu_bottleneck_exporter.driver.readings import (
    Activity,
    Clocks,
    Health,
    Identity,
    Link,
    Memory,
    Power,
    Process,
    Processes,
    Ring,
    RingSample,
    Thermal,
    Throttle,
    Utilization,
)

_ARCHITECTURES = {7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell"}
_MINIMUM_INTERVAL_NS = 200_000_000
"""As for NVML: see `driver.nvml.gpm`."""
_PIPES = ("tensor", "fp64", "fp32", "fp16", "int")
_TRAFFIC = ("pcie_receive", "pcie_transmit", "nvlink_receive", "nvlink_transmit")
_LIMITS = ("slowdown", "shutdown", "max_operating")
_ERRORS = ("corrected", "uncorrected")


class VirtualDevice(Device):
    """One virtual GPU."""

    def __init__(self, board: Board, index: int) -> None:
        self._created_ns = board.header.created_ns
        self._gpu = board.gpus[index]
        self._record = record = self._gpu.record
        self._next_window = {"busy_ns": 0, "memory_ns": 0}
        self._before: tuple[int, list[int]] | None = None
        self.identity = Identity(
            index=index,
            uuid=record.uuid.decode(),
            name=record.name.decode(),
            architecture=_ARCHITECTURES.get(record.architecture),
            pci_bus_id=record.pci_bus_id.decode(),
            minor=index,
        )

    def check(self) -> None:
        """Raise DeviceLost if the board sets that for all calls, not just for a single one."""
        if self._record.device_result == NVML_ERROR_GPU_IS_LOST:
            raise DeviceLost("GPU is lost")

    def inject_faults(self, call: str) -> None:
        """Let the board's faults act on NVML call `call`: hang, error code."""
        while self._record.hang:
            time.sleep(0.01)
        code = self._record.device_result or self._record.call_result[CALL[call]]
        if code == NVML_ERROR_NOT_SUPPORTED:
            raise Unsupported(f"{call}: not supported")
        if code == NVML_ERROR_GPU_IS_LOST:
            raise DeviceLost(f"{call}: GPU is lost")
        if code:
            raise DriverError(f"{call}: NVML error {code}")

    def utilization(self) -> Utilization:
        """Utilization in percent: the windows that ended since the last call."""
        last = time.monotonic_ns() // SLOT_NS // self._record.period_slots - 1
        rings: tuple[Ring | None, Ring | None] = (None, None)
        with suppress(Unsupported):
            self.inject_faults("DeviceGetSamples")
            rings = self._drain("busy_ns", last), self._drain("memory_ns", last)
        if all(rings):
            return Utilization(*rings)
        self.inject_faults("DeviceGetUtilizationRates")
        rates = [view.percent(self._record, lane, last) for lane in ("busy_ns", "memory_ns")]
        return Utilization(*rings, *rates)

    def _drain(self, lane: str, last: int) -> Ring:
        record = self._record
        period_ns = record.period_slots * SLOT_NS
        oldest = max(self._created_ns // period_ns, last - record.ring_samples + 1)
        samples = tuple(
            RingSample((index + 1) * period_ns // 1000, view.percent(record, lane, index))
            for index in range(max(oldest, self._next_window[lane]), last + 1)
        )
        self._next_window[lane] = last + 1
        return samples

    def activity(self) -> Activity | None:
        """Means since the last call, 0-1."""
        self.inject_faults("GpmSampleGet")
        if not self._record.gpm_supported:
            raise Unsupported("no GPM before Hopper")
        now = time.monotonic_ns() // SLOT_NS * SLOT_NS
        before = self._before
        if before and now - before[0] < _MINIMUM_INTERVAL_NS:
            return None
        sums = view.done(self._gpu, now)
        self._before = now, sums
        if not before:
            return None
        done = [new - old for new, old in zip(sums, before[1], strict=True)]
        return _activity(done, now - before[0])

    def power(self) -> Power:
        """Mean power of the last second and limits in watts, energy since the board was created."""
        self.inject_faults("DeviceGetPowerUsage")
        now = time.monotonic_ns()
        record = self._record
        last_second = view.window(record, "energy_uj", now // SLOT_NS - 100, 100)
        idle_joules = record.idle_mw / 1000 * (now - self._created_ns) / 1e9
        work_joules = view.done(self._gpu, now)[LANE["energy_uj"]] / 1e6
        return Power(
            watts=record.idle_mw / 1000 + last_second / 1e6,
            limit_watts=record.power_limit_mw / 1000,
            default_limit_watts=record.power_default_limit_mw / 1000,
            energy_joules=idle_joules + work_joules,
        )

    def thermal(self) -> Thermal:
        """Temperatures and limits, in degrees Celsius."""
        self.inject_faults("DeviceGetTemperature")
        record = self._record
        return Thermal(
            sensors={"gpu": record.temperature, "memory": record.memory_temperature},
            limits={limit: getattr(record, f"{limit}_temperature") for limit in _LIMITS},
        )

    def clocks(self) -> Clocks:
        """Clocks now and maximum, in hertz."""
        self.inject_faults("DeviceGetClockInfo")
        record = self._record
        return Clocks(
            now={clock: record.clock_mhz[at] * 1e6 for at, clock in enumerate(CLOCKS)},
            maximum={clock: record.clock_max_mhz[at] * 1e6 for at, clock in enumerate(CLOCKS)},
        )

    def throttle(self) -> Throttle:
        """Throttle time in nanoseconds, and the event-reason bits."""
        self.inject_faults("DeviceGetFieldValues")
        now = time.monotonic_ns()
        bits = self._record.event_reasons
        return Throttle(
            spent_ns={
                reason: throttled_ns(self._record, at, now)
                for at, reason in enumerate(THROTTLE_REASONS)
            },
            active={reason: bool(bits & bit) for reason, bit in EVENT_REASONS.items()},
        )

    def memory(self) -> Memory:
        """Memory in bytes: total, used by living processes, reserved."""
        self.inject_faults("DeviceGetMemoryInfo")
        used = sum(process.used_bytes or 0 for process in self._holders())
        return Memory(self._record.memory_total, used, self._record.memory_reserved)

    def health(self) -> Health:
        """ECC counters and row remapping."""
        self.inject_faults("DeviceGetTotalEccErrors")
        record = self._record
        return Health(
            ecc_errors={kind: getattr(record, f"ecc_{kind}") for kind in _ERRORS},
            remapped_rows={kind: getattr(record, f"remapped_{kind}") for kind in _ERRORS},
            remap_pending=bool(record.remap_pending),
            remap_failed=bool(record.remap_failed),
        )

    def link(self) -> Link:
        """The PCIe link."""
        self.inject_faults("DeviceGetCurrPcieLinkGeneration")
        return Link(*(getattr(self._record, f"pcie_{part.name}") for part in fields(Link)))

    def processes(self) -> Processes:
        """Living processes with a context."""
        self.inject_faults("DeviceGetComputeRunningProcesses")
        return Processes(tuple(self._holders()))

    def _holders(self) -> list[Process]:
        return [
            Process(int(entry.pid), int(entry.used_bytes), entry.kind == PROCESS_GRAPHICS)
            for entry in self._record.processes
            if entry.pid and view.alive(entry.pid)
        ]


def _activity(amounts: list[int], interval_ns: int) -> Activity:
    def ratio(lane: str) -> float:
        return min(amounts[LANE[f"{lane}_ns"]] / interval_ns, 1.0)

    return Activity(
        interval_ns=interval_ns,
        graphics=ratio("busy"),
        sm_active=ratio("sm_active"),
        sm_occupancy=ratio("sm_occupancy"),
        dram_active=ratio("dram"),
        pipes={pipe: ratio(pipe) for pipe in _PIPES},
        traffic_bytes={name: amounts[LANE[f"{name}_bytes"]] for name in _TRAFFIC},
    )
