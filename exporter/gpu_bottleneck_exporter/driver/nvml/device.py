"""One GPU through NVML."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pynvml

from gpu_bottleneck_exporter.driver.nvml import fields
from gpu_bottleneck_exporter.driver.nvml.fields import FieldReader
from gpu_bottleneck_exporter.driver.nvml.gpm import GpmReader
from gpu_bottleneck_exporter.driver.nvml.library import Calls
from gpu_bottleneck_exporter.driver.nvml.parts import (
    Parts,
    check_basics,
    read_memory,
    read_processes,
)
from gpu_bottleneck_exporter.driver.nvml.rings import RingReader
from gpu_bottleneck_exporter.driver.nvml.throttle import ThrottleCounters, active_reasons
from gpu_bottleneck_exporter.driver.protocol import DriverError
from gpu_bottleneck_exporter.driver.readings import (
    Activity,
    Clocks,
    Health,
    Identity,
    Link,
    Memory,
    Power,
    Processes,
    RingState,
    Thermal,
    Throttle,
    Utilization,
)

_CLOCKS = {
    "graphics": pynvml.NVML_CLOCK_GRAPHICS,
    "sm": pynvml.NVML_CLOCK_SM,
    "memory": pynvml.NVML_CLOCK_MEM,
    "video": pynvml.NVML_CLOCK_VIDEO,
}
_LIMITS = {
    "shutdown": pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
    "slowdown": pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
    "max_operating": pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
}
_MARGINS = {
    "shutdown": fields.TEMPERATURE_LIMIT_SHUTDOWN,
    "slowdown": fields.TEMPERATURE_LIMIT_SLOWDOWN,
    "max_operating": fields.TEMPERATURE_LIMIT_GPU_MAX,
}
_ECC = {
    "corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
    "uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
}
_MHZ = 1_000_000


class NvmlDevice:
    """A whole GPU."""

    def __init__(
        self, calls: Calls, handle: object, identity: Identity, driver_version: str | None
    ) -> None:
        self._calls = calls
        self._handle = handle
        self._identity = identity
        self._parts = Parts(calls)
        self._gpu_ring = RingReader(self._parts, handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES)
        self._memory_ring = RingReader(self._parts, handle, pynvml.NVML_MEMORY_UTILIZATION_SAMPLES)
        self._power = FieldReader(calls, handle, [fields.POWER_AVERAGE])
        self._memory_temperature = FieldReader(calls, handle, [fields.MEMORY_TEMPERATURE])
        self._margins = FieldReader(calls, handle, list(_MARGINS.values()))
        self._throttle = ThrottleCounters(self._parts, handle, driver_version)
        self._supported_reasons: int | None = None
        self._gpm: GpmReader | None = None
        self._default_limit: int | None = None
        self._clock_maximum: dict[str, float] = {}
        self._temperature_limits: dict[str, float] = {}

    @property
    def identity(self) -> Identity:
        """Who it is."""
        return self._identity

    @property
    def trouble(self) -> DriverError | None:
        """Why the last reading is incomplete though the GPU should have given all of it."""
        return self._parts.trouble

    def check(self) -> None:
        """See `check_basics`."""
        check_basics(self._calls, self._handle)

    def close(self) -> None:
        """Free the GPM samples."""
        if self._gpm:
            self._gpm.close()
        self._gpm = None

    def utilization(self) -> Utilization:
        """NvmlDeviceGetSamples types 1 and 2, else nvmlDeviceGetUtilizationRates."""
        parts = self._begin()
        gpu, memory = self._gpu_ring.drain(), self._memory_ring.drain()
        if gpu.state is RingState.SAMPLES and memory.state is RingState.SAMPLES:
            return Utilization(gpu, memory)
        rates = parts.ask(pynvml.nvmlDeviceGetUtilizationRates, self._handle)
        if gpu.state is RingState.UNSUPPORTED or parts.trouble:
            parts.require(rates, *gpu.samples)
        if rates is None:
            return Utilization(gpu, memory)
        return Utilization(gpu, memory, int(rates.gpu), int(rates.memory))

    def activity(self) -> Activity | None:
        """GPM means since the last reading."""
        self._begin()
        if self._gpm is None:
            self._gpm = GpmReader(self._calls, self._handle)
        return self._gpm.read()

    def power(self) -> Power:
        """Mean power of the last second, limits, energy since the driver was loaded."""
        parts = self._begin()
        milliwatts = (parts.attempt(("power",), self._power.read) or {}).get(fields.POWER_AVERAGE)
        if milliwatts is None:
            milliwatts = parts.ask(pynvml.nvmlDeviceGetPowerUsage, self._handle)
        limit = parts.ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, self._handle)
        energy = parts.ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, self._handle)
        parts.require(milliwatts, limit, energy)
        if self._default_limit is None:  # it never changes
            self._default_limit = parts.ask(
                pynvml.nvmlDeviceGetPowerManagementDefaultLimit, self._handle
            )
        return Power(
            _thousandth(milliwatts),
            _thousandth(limit),
            _thousandth(energy),
            _thousandth(self._default_limit),
        )

    def thermal(self) -> Thermal:
        """Temperatures, and limits as absolute degrees."""
        parts = self._begin()
        sensors: dict[str, float] = {}
        gpu = parts.ask(pynvml.nvmlDeviceGetTemperatureV, self._handle, pynvml.NVML_TEMPERATURE_GPU)
        if gpu is None:  # before driver 570
            gpu = parts.ask(
                pynvml.nvmlDeviceGetTemperature, self._handle, pynvml.NVML_TEMPERATURE_GPU
            )
        if gpu is not None:
            sensors["gpu"] = gpu
        memory = parts.attempt(("memory temperature",), self._memory_temperature.read)
        if memory:
            sensors["memory"] = memory[fields.MEMORY_TEMPERATURE]
        parts.require(sensors)
        if len(self._temperature_limits) < len(_LIMITS) and not parts.refusals.stands("limits"):
            self._temperature_limits |= self._limits(parts, gpu)
            parts.refusals.refused("limits")  # few GPUs have them all: ask now and then
        return Thermal(sensors, dict(self._temperature_limits))

    def _limits(self, parts: Parts, temperature: int | None) -> dict[str, float]:
        limits = {
            name: float(degrees)
            for name, kind in _LIMITS.items()
            if (degrees := parts.ask(pynvml.nvmlDeviceGetTemperatureThreshold, self._handle, kind))
        }
        if limits or temperature is None:
            return limits
        # From Ada on, limits are offsets from the point at which the margin reaches zero.
        margin = parts.ask(pynvml.nvmlDeviceGetMarginTemperature, self._handle)
        if margin is None:
            return {}
        offsets = parts.attempt(("margins",), self._margins.read) or {}
        return {
            name: temperature + margin - offsets[field]
            for name, field in _MARGINS.items()
            if field in offsets
        }

    def clocks(self) -> Clocks:
        """NvmlDeviceGetClockInfo and nvmlDeviceGetMaxClockInfo."""
        parts = self._begin()
        now = self._clock_values(parts, pynvml.nvmlDeviceGetClockInfo)
        # Constants of the GPU are asked for once, here and in `_limits`.
        missing = _CLOCKS.keys() - self._clock_maximum.keys()
        self._clock_maximum |= self._clock_values(parts, pynvml.nvmlDeviceGetMaxClockInfo, missing)
        parts.require(now, self._clock_maximum)
        return Clocks(now, dict(self._clock_maximum))

    def _clock_values(
        self, parts: Parts, getter: Callable[..., int], wanted: Collection[str] = _CLOCKS.keys()
    ) -> dict[str, float]:
        values: dict[str, float] = {}
        for name in wanted:
            clock = _CLOCKS[name]
            megahertz = parts.ask(getter, self._handle, clock)
            if megahertz is not None:
                values[name] = megahertz * _MHZ
        return values

    def throttle(self) -> Throttle:
        """Throttle counters by field value, and the event-reason bits."""
        parts = self._begin()
        spent = self._throttle.read()
        bits = parts.ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, self._handle)
        if bits is None:  # before driver 535
            bits = parts.ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, self._handle)
        parts.require(spent, bits)
        if self._supported_reasons is None:  # it never changes
            self._supported_reasons = parts.ask(
                pynvml.nvmlDeviceGetSupportedClocksEventReasons, self._handle
            )
        supported = self._supported_reasons or 0
        return Throttle(spent, {} if bits is None else active_reasons(bits, supported))

    def memory(self) -> Memory:
        """nvmlDeviceGetMemoryInfo_v2, else the first version."""
        return read_memory(self._begin(), self._handle)

    def health(self) -> Health:
        """Volatile ECC counters and row remapping."""
        parts = self._begin()
        errors: dict[str, int] = {}
        for kind, error_type in _ECC.items():
            count = parts.ask(
                pynvml.nvmlDeviceGetTotalEccErrors,
                self._handle,
                error_type,
                pynvml.NVML_VOLATILE_ECC,
            )
            if count is not None:
                errors[kind] = count
        rows = parts.ask(pynvml.nvmlDeviceGetRemappedRows, self._handle)
        parts.require(errors, rows)
        if rows is None:
            return Health(errors)
        corrected, uncorrected, pending, failed = rows
        remapped = {"corrected": corrected, "uncorrected": uncorrected}
        return Health(errors, remapped, bool(pending), bool(failed))

    def link(self) -> Link:
        """PCIe link state; never nvmlDeviceGetPcieThroughput, which blocks for 20 ms."""
        parts = self._begin()
        values = [
            parts.ask(getter, self._handle)
            for getter in (
                pynvml.nvmlDeviceGetPcieReplayCounter,
                pynvml.nvmlDeviceGetCurrPcieLinkGeneration,
                pynvml.nvmlDeviceGetMaxPcieLinkGeneration,
                pynvml.nvmlDeviceGetCurrPcieLinkWidth,
                pynvml.nvmlDeviceGetMaxPcieLinkWidth,
            )
        ]
        parts.require(*values)
        return Link(*values)

    def processes(self) -> Processes:
        """Compute, graphics and MPS processes."""
        return read_processes(self._begin(), self._handle)

    def _begin(self) -> Parts:
        self._parts.trouble = None
        return self._parts


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1000
