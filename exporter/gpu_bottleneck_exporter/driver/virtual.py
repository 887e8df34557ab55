"""The virtual board as a driver, in pure Python: what `demo` serves."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gpu_bottleneck_exporter.driver import view
from gpu_bottleneck_exporter.driver.board import (
    CALL,
    CLOCKS,
    LANE,
    MAX_EVENTS,
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_NOT_SUPPORTED,
    PROCESS_GRAPHICS,
    SLOT_NS,
    THROTTLE_REASONS,
    Board,
    VirtualGpu,
    throttled_ns,
)
from gpu_bottleneck_exporter.driver.protocol import (
    Device,
    DeviceLost,
    DriverError,
    Unsupported,
)
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
    System,
    Thermal,
    Throttle,
    Utilization,
    Xid,
)
from gpu_bottleneck_exporter.driver.reasons import EVENT_REASONS

_ARCHITECTURES = {7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell"}
_MINIMUM_INTERVAL_NS = 200_000_000
_PIPES = {"tensor": "tensor_ns", "fp64": "fp64_ns", "fp32": "fp32_ns", "fp16": "fp16_ns"}
_PIPES["int"] = "int_ns"
_TRAFFIC = ("pcie_receive", "pcie_transmit", "nvlink_receive", "nvlink_transmit")
_POLL_SECONDS = 0.05


@dataclass(slots=True)
class Meter:
    """Readings of one GPU, over all times it was opened."""

    calls: int = 0
    nanoseconds: int = 0


class VirtualDriver:
    """A board as a driver; the board stays open as long as the driver lives."""

    name = "virtual"

    def __init__(self, board: Board) -> None:
        self._board = board
        self._next_event = board.header.event_count
        self._meters: dict[int, Meter] = {}

    @property
    def system(self) -> System:
        """Versions as the board says."""
        cuda = self._board.header.cuda_version
        version = self._board.header.driver_version.decode()
        return System(version, f"{cuda // 1000}.{cuda % 1000 // 10}")

    @property
    def calls(self) -> int:
        """Readings of the board so far."""
        return sum(meter.calls for meter in list(self._meters.values()))

    @property
    def seconds(self) -> float:
        """Seconds spent reading the board so far."""
        return sum(meter.nanoseconds for meter in list(self._meters.values())) / 1e9

    def count(self) -> int:
        """Number of whole GPUs."""
        return sum(not _is_mig(gpu) for gpu in self._board.gpus)

    def open(self, index: int) -> list[Device]:
        """GPU `index` and, after it, its MIG instances."""
        meter = self._meters.setdefault(index, Meter())
        whole = VirtualDevice(self._board, self._board.gpus[index], meter)
        whole.guard("DeviceGetHandleByIndex")
        devices = [
            whole,
            *(VirtualDevice(self._board, gpu, meter) for gpu in self._children(index)),
        ]
        return list(devices)

    def instances(self, index: int) -> tuple[str, ...]:
        """UUIDs of the MIG instances of GPU `index`."""
        return tuple(gpu.record.uuid.decode() for gpu in self._children(index))

    def _children(self, index: int) -> list[VirtualGpu]:
        if not self._board.gpus[index].record.mig_enabled:
            return []
        return view.instances(self._board, index)

    def watch_xids(self, index: int) -> None:
        """Nothing to do: the board reports them all."""

    def wait_xid(self, timeout_seconds: float) -> Xid | None:
        """Wait for the next event on the board."""
        deadline = time.monotonic() + timeout_seconds
        while self._next_event >= self._board.header.event_count:
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_SECONDS)
        event = self._board.header.events[self._next_event % MAX_EVENTS]
        self._next_event += 1
        return Xid(int(event.gpu), int(event.xid))


class VirtualDevice:
    """One virtual GPU or MIG instance."""

    trouble: DriverError | None = None

    def __init__(self, board: Board, gpu: VirtualGpu, meter: Meter) -> None:
        self._meter = meter
        self._board = board
        self._gpu = gpu
        self._record = gpu.record
        self._parent = board.gpus[gpu.record.parent].record
        self._marks = {"busy_ns": 0, "memory_ns": 0}
        self._before: tuple[int, list[int]] | None = None

    @property
    def identity(self) -> Identity:
        """Who it is, as the board describes it."""
        record = self._record
        name = record.name.decode()
        mig = _is_mig(self._gpu)
        return Identity(
            index=int(record.parent),
            uuid=record.uuid.decode(),
            name=name,
            architecture=_ARCHITECTURES.get(record.architecture),
            pci_bus_id=record.pci_bus_id.decode(),
            mig_profile=name.rpartition("MIG ")[2] if mig else None,
            parent_uuid=self._parent.uuid.decode() if mig else None,
            gpu_instance=int(record.gpu_instance) if mig else None,
        )

    def check(self) -> None:
        """Raises DeviceLost when the board says so of all calls, not of a single one."""
        if NVML_ERROR_GPU_IS_LOST in (self._record.device_result, self._parent.device_result):
            raise DeviceLost("GPU is lost")

    def close(self) -> None:
        """Nothing to give back."""

    def guard(self, call: str) -> None:
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
        """The windows that ended since the last call."""
        if _is_mig(self._gpu) or self._record.mig_enabled:
            raise Unsupported("the driver samples no utilization under MIG")
        record = self._record
        last = (time.monotonic_ns() // SLOT_NS) // record.period_slots - 1
        try:
            self.guard("DeviceGetSamples")
            rings = self._drain("busy_ns", last), self._drain("memory_ns", last)
        except Unsupported:
            rings = Utilization().gpu, Utilization().memory
        if all(ring.state is RingState.SAMPLES for ring in rings):
            return Utilization(*rings)
        self.guard("DeviceGetUtilizationRates")
        rates = [view.percent(record, lane, last) for lane in ("busy_ns", "memory_ns")]
        return Utilization(*rings, *rates)

    def activity(self) -> Activity | None:
        """Means since the last call."""
        self.guard("GpmSampleGet")
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
        return _activity([new - old for new, old in zip(sums, before[1], strict=True)], interval)

    def power(self) -> Power:
        """Mean power of the last second, the limit, and energy since the board was made."""
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
            self.guard("DeviceGetTotalEnergyConsumption")
        except Unsupported:
            return None
        record = self._record
        idle_joules = record.idle_mw / 1000 * (now - self._board.header.created_ns) / 1e9
        work_joules = view.done(self._gpu, now)[LANE["energy_uj"]] / 1e6
        return float(idle_joules + work_joules)

    def thermal(self) -> Thermal:
        """Temperatures and limits."""
        self._whole("DeviceGetTemperature")
        record = self._record
        return Thermal(
            sensors={"gpu": record.temperature, "memory": record.memory_temperature},
            limits={
                "slowdown": record.slowdown_temperature,
                "shutdown": record.shutdown_temperature,
                "max_operating": record.max_operating_temperature,
            },
        )

    def clocks(self) -> Clocks:
        """Clocks now and at most."""
        self._whole("DeviceGetClockInfo")
        record = self._record
        return Clocks(
            now={clock: record.clock_mhz[at] * 1e6 for at, clock in enumerate(CLOCKS)},
            maximum={clock: record.clock_max_mhz[at] * 1e6 for at, clock in enumerate(CLOCKS)},
        )

    def throttle(self) -> Throttle:
        """Throttle counters, and the event-reason bits."""
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
        """Total, used by living processes, reserved."""
        self.guard("DeviceGetMemoryInfo")
        used = sum(process.used_bytes or 0 for process in self._holders())
        return Memory(self._record.memory_total, used, self._record.memory_reserved)

    def health(self) -> Health:
        """ECC counters and row remapping."""
        self._whole("DeviceGetTotalEccErrors")
        record = self._record
        return Health(
            ecc_errors={
                "corrected": record.ecc_corrected,
                "uncorrected": record.ecc_uncorrected,
            },
            remapped_rows={
                "corrected": record.remapped_corrected,
                "uncorrected": record.remapped_uncorrected,
            },
            remap_pending=bool(record.remap_pending),
            remap_failed=bool(record.remap_failed),
        )

    def link(self) -> Link:
        """The PCIe link."""
        self._whole("DeviceGetCurrPcieLinkGeneration")
        record = self._record
        return Link(
            replays=record.pcie_replays,
            generation=record.pcie_generation,
            generation_max=record.pcie_generation_max,
            width=record.pcie_width,
            width_max=record.pcie_width_max,
        )

    def processes(self) -> Processes:
        """Living processes with a context, those of the MIG instances included."""
        self.guard("DeviceGetComputeRunningProcesses")
        return Processes(tuple(self._holders()))

    def _whole(self, call: str) -> None:
        if _is_mig(self._gpu):
            raise Unsupported("a property of the whole GPU")
        self.guard(call)

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


def _is_mig(gpu: VirtualGpu) -> bool:
    return bool(gpu.record.kind)


def _activity(amounts: list[int], interval_ns: int) -> Activity:
    def ratio(lane: str) -> float:
        return min(amounts[LANE[lane]] / interval_ns, 1.0)

    return Activity(
        interval_ns=interval_ns,
        graphics=ratio("busy_ns"),
        sm_active=ratio("sm_active_ns"),
        sm_occupancy=ratio("sm_occupancy_ns"),
        dram_active=ratio("dram_ns"),
        pipes={pipe: ratio(lane) for pipe, lane in _PIPES.items()},
        traffic_bytes={name: amounts[LANE[f"{name}_bytes"]] for name in _TRAFFIC},
    )
