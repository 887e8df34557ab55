"""One virtual GPU or MIG instance as a device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields

from gpu_bottleneck_exporter.demo.board.board import Board, VirtualGpu
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
from gpu_bottleneck_exporter.driver.nvml.coherence import is_placeholder, machine_memory
from gpu_bottleneck_exporter.driver.protocol import DeviceLost, DriverError, Unsupported
from gpu_bottleneck_exporter.driver.readings import (
    EMPTY_RING,
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
    RingState,
    Thermal,
    Throttle,
    Utilization,
)
from gpu_bottleneck_exporter.driver.reasons import EVENT_REASONS

_ARCHITECTURES = {7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell"}
_MINIMUM_INTERVAL_NS = 200_000_000
"""As for NVML: see `driver.nvml.gpm`."""
_PIPES = ("tensor", "fp64", "fp32", "fp16", "int")
_LIMITS = ("slowdown", "shutdown", "max_operating")
_ERRORS = ("corrected", "uncorrected")
_WAYS = ("receive", "transmit")
_TRAFFIC = {f"{link}_{way}": f"{link}_{way}_bytes" for link in ("pcie", "nvlink") for way in _WAYS}
_C2C = {f"{link}_{way}": f"c2c_{way}_bytes" for link in ("c2c", "c2c_data") for way in _WAYS}
"""Lanes of what is counted: without a protocol, all of it is data."""


@dataclass(slots=True)
class Meter:
    """Number and duration of readings of one GPU, kept when it is reopened."""

    calls: int = 0
    nanoseconds: int = 0


class VirtualDevice:
    """One virtual GPU or MIG instance."""

    last_error: DriverError | None = None

    def __init__(self, board: Board, gpu: VirtualGpu, meter: Meter) -> None:
        self._meter = meter
        self._board = board
        self._gpu = gpu
        self._record = gpu.record
        self._parent = board.gpus[gpu.record.parent].record
        self._coherent = bool(self._parent.c2c_links)
        self._marks = {"busy_ns": 0, "memory_ns": 0}
        self._before: tuple[int, list[int]] | None = None

    @property
    def identity(self) -> Identity:
        """Identity from the board's record."""
        record = self._record
        name = record.name.decode()
        mig = is_mig(self._gpu)
        return Identity(
            index=int(record.parent),
            uuid=record.uuid.decode(),
            name=name,
            architecture=_ARCHITECTURES.get(record.architecture),
            pci_bus_id=record.pci_bus_id.decode(),
            mig_profile=name.rpartition("MIG ")[2] if mig else None,
            parent_uuid=self._parent.uuid.decode() if mig else None,
            gpu_instance=int(record.gpu_instance) if mig else None,
            minor=int(record.parent),
        )

    def check(self) -> None:
        """Raise DeviceLost if the board sets that for all calls, not just for a single one."""
        if NVML_ERROR_GPU_IS_LOST in (self._record.device_result, self._parent.device_result):
            raise DeviceLost("GPU is lost")

    def close(self) -> None:
        """Nothing to free."""

    def inject_faults(self, call: str) -> None:
        """Let the board's faults act on NVML call `call`: hang, delay, error code."""
        self._meter.calls += 1
        began = time.perf_counter_ns()
        while self._record.hang or self._parent.hang:
            time.sleep(0.01)
        if delay := self._record.call_delay_us[CALL[call]]:
            time.sleep(delay / 1e6)
        self._meter.nanoseconds += time.perf_counter_ns() - began
        code = self._record.device_result or self._parent.device_result
        code = code or self._record.call_result[CALL[call]]
        if code == NVML_ERROR_NOT_SUPPORTED:
            raise Unsupported(f"{call}: not supported")
        if code == NVML_ERROR_GPU_IS_LOST:
            raise DeviceLost(f"{call}: GPU is lost")
        if code:
            raise DriverError(f"{call}: NVML error {code}")

    def utilization(self) -> Utilization:
        """Utilization in percent: the windows that ended since the last call."""
        if is_mig(self._gpu) or self._record.mig_enabled:
            raise Unsupported("the driver samples no utilization under MIG")
        record = self._record
        last = (time.monotonic_ns() // SLOT_NS) // record.period_slots - 1
        try:
            self.inject_faults("DeviceGetSamples")
            rings = self._drain("busy_ns", last), self._drain("memory_ns", last)
        except Unsupported:
            rings = Utilization().gpu, Utilization().memory
        if all(ring.state is RingState.SAMPLES for ring in rings):
            return Utilization(*rings)
        self.inject_faults("DeviceGetUtilizationRates")
        rates = [view.percent(record, lane, last) for lane in ("busy_ns", "memory_ns")]
        return Utilization(*rings, *rates)

    def activity(self) -> Activity | None:
        """Means since the last call, 0-1."""
        self.inject_faults("GpmSampleGet")
        if not self._record.gpm_supported:
            raise Unsupported("no GPM before Hopper")
        now = time.monotonic_ns() // SLOT_NS * SLOT_NS
        before = self._before
        if before and now - before[0] < _MINIMUM_INTERVAL_NS:
            return None
        sums = view.done_with_instances(self._board, self._gpu, now)
        self._before = now, sums
        if not before:
            return None
        interval = now - before[0]
        done = [new - old for new, old in zip(sums, before[1], strict=True)]
        return _activity(done, interval, _TRAFFIC | _C2C if self._coherent else _TRAFFIC)

    def power(self) -> Power:
        """Mean power of the last second and limits in watts, energy since the board was created."""
        self._whole("DeviceGetPowerUsage")
        now = time.monotonic_ns()
        record = self._record
        last_second = view.window(record, "energy_uj", now // SLOT_NS - 100, 100)
        return Power(
            watts=record.idle_mw / 1000 + last_second / 1e6,
            limit_watts=record.power_limit_mw / 1000,
            default_limit_watts=record.power_default_limit_mw / 1000,
            energy_joules=self._energy(now),
        )

    def _energy(self, now: int) -> float | None:
        try:
            self.inject_faults("DeviceGetTotalEnergyConsumption")
        except Unsupported:
            return None
        record = self._record
        idle_joules = record.idle_mw / 1000 * (now - self._board.header.created_ns) / 1e9
        work_joules = view.done(self._gpu, now)[LANE["energy_uj"]] / 1e6
        return float(idle_joules + work_joules)

    def thermal(self) -> Thermal:
        """Temperatures and limits, in degrees Celsius."""
        self._whole("DeviceGetTemperature")
        record = self._record
        return Thermal(
            sensors={"gpu": record.temperature, "memory": record.memory_temperature},
            limits={limit: getattr(record, f"{limit}_temperature") for limit in _LIMITS},
        )

    def clocks(self) -> Clocks:
        """Clocks now and maximum, in hertz."""
        self._whole("DeviceGetClockInfo")
        record = self._record
        return Clocks(
            now={clock: record.clock_mhz[at] * 1e6 for at, clock in enumerate(CLOCKS)},
            maximum={clock: record.clock_max_mhz[at] * 1e6 for at, clock in enumerate(CLOCKS)},
        )

    def throttle(self) -> Throttle:
        """Throttle time in nanoseconds, and the event-reason bits."""
        self._whole("DeviceGetFieldValues")
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
        if not self._record.memory_total:
            return machine_memory()
        used = sum(process.used_bytes or 0 for process in self._holders())
        return Memory(self._record.memory_total, used, self._record.memory_reserved)

    def health(self) -> Health:
        """ECC counters and row remapping."""
        self._whole("DeviceGetTotalEccErrors")
        record = self._record
        return Health(
            ecc_errors={kind: getattr(record, f"ecc_{kind}") for kind in _ERRORS},
            remapped_rows={kind: getattr(record, f"remapped_{kind}") for kind in _ERRORS},
            remap_pending=bool(record.remap_pending),
            remap_failed=bool(record.remap_failed),
        )

    def link(self) -> Link:
        """The PCIe link."""
        self._whole("DeviceGetCurrPcieLinkGeneration")
        link = Link(*(getattr(self._record, f"pcie_{part.name}") for part in fields(Link)))
        return Link(replays=link.replays) if self._coherent and is_placeholder(link) else link

    def processes(self) -> Processes:
        """Living processes with a context, those of the MIG instances included."""
        self.inject_faults("DeviceGetComputeRunningProcesses")
        return Processes(tuple(self._holders()))

    def _whole(self, call: str) -> None:
        if is_mig(self._gpu):
            raise Unsupported("a property of the whole GPU")
        self.inject_faults(call)

    def _holders(self) -> list[Process]:
        records = [self._record]
        if self._record.mig_enabled:
            records += [child.record for child in view.instances(self._board, self._gpu.index)]
        return [
            Process(int(entry.pid), int(entry.used_bytes), entry.kind == PROCESS_GRAPHICS)
            for record in records
            for entry in record.processes
            if entry.pid and view.alive(entry.pid)
        ]

    def _drain(self, lane: str, last: int) -> Ring:
        record = self._record
        period = record.period_slots * SLOT_NS
        created = self._board.header.created_ns // period
        first = max(created, last - record.ring_samples + 1)
        if record.ring_empty_when_idle and not self._worked(first, last):
            return EMPTY_RING
        # Windows are numbered by the board's clock; timestamps and marks are on the driver's.
        offset = self._board.header.timestamp_offset_ns
        marked = (self._marks[lane] * 1000 - offset) // period
        samples = [
            RingSample(timestamp, view.percent(record, lane, index))
            for index in range(max(first, marked), last + 1)
            if (timestamp := ((index + 1) * period + offset) // 1000) > self._marks[lane]
        ]
        if not samples:
            return EMPTY_RING
        self._marks[lane] = samples[-1].timestamp_us
        return Ring(RingState.SAMPLES, tuple(samples))

    def _worked(self, first: int, last: int) -> bool:
        slots = self._record.period_slots
        return view.window(self._record, "busy_ns", first * slots, (last + 1 - first) * slots) > 0


def is_mig(gpu: VirtualGpu) -> bool:
    """Whether it is a MIG instance."""
    return bool(gpu.record.kind)


def _activity(amounts: list[int], interval_ns: int, traffic: Mapping[str, str]) -> Activity:
    def ratio(lane: str) -> float:
        return min(amounts[LANE[lane]] / interval_ns, 1.0)

    return Activity(
        interval_ns=interval_ns,
        graphics=ratio("busy_ns"),
        sm_active=ratio("sm_active_ns"),
        sm_occupancy=ratio("sm_occupancy_ns"),
        dram_active=ratio("dram_ns"),
        pipes={pipe: ratio(f"{pipe}_ns") for pipe in _PIPES},
        traffic_bytes={name: amounts[LANE[lane]] for name, lane in traffic.items()},
    )
