"""One GPU through NVML."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pynvml

from gpu_bottleneck_exporter.driver.nvml import fields
from gpu_bottleneck_exporter.driver.nvml.base import BaseDevice
from gpu_bottleneck_exporter.driver.nvml.coherence import is_placeholder
from gpu_bottleneck_exporter.driver.nvml.fields import FieldReader
from gpu_bottleneck_exporter.driver.nvml.library import Calls
from gpu_bottleneck_exporter.driver.nvml.queries import Queries
from gpu_bottleneck_exporter.driver.nvml.rings import RingReader
from gpu_bottleneck_exporter.driver.nvml.throttle import ThrottleCounters, active_reasons
from gpu_bottleneck_exporter.driver.readings import (
    Clocks,
    Health,
    Identity,
    Link,
    Power,
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


class NvmlDevice(BaseDevice):
    """A whole GPU."""

    def __init__(
        self, calls: Calls, handle: object, identity: Identity, driver_version: str | None
    ) -> None:
        super().__init__(calls, handle, identity)
        self._gpu_ring = RingReader(self._queries, handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES)
        self._memory_ring = RingReader(
            self._queries, handle, pynvml.NVML_MEMORY_UTILIZATION_SAMPLES
        )
        self._power = FieldReader(calls, handle, [fields.POWER_AVERAGE])
        self._memory_temperature = FieldReader(calls, handle, [fields.MEMORY_TEMPERATURE])
        self._margins = FieldReader(calls, handle, list(_MARGINS.values()))
        self._throttle = ThrottleCounters(self._queries, handle, driver_version)
        self._supported_reasons: int | None = None
        self._default_limit: int | None = None
        self._clock_maximum: dict[str, int] = {}
        self._temperature_limits: dict[str, float] = {}

    def utilization(self) -> Utilization:
        """Utilization in percent: the rings (nvmlDeviceGetSamples), else ...GetUtilizationRates."""
        queries = self._begin()
        gpu, memory = self._gpu_ring.drain(), self._memory_ring.drain()
        if gpu.state is RingState.SAMPLES and memory.state is RingState.SAMPLES:
            return Utilization(gpu, memory)
        rates = queries.ask(pynvml.nvmlDeviceGetUtilizationRates, self._handle)
        # An empty ring is an answer. Without a ring, the single reading has to do.
        if gpu.state is RingState.UNSUPPORTED or queries.last_error:
            queries.require(rates, *gpu.samples)
        if rates is None:
            return Utilization(gpu, memory)
        return Utilization(gpu, memory, int(rates.gpu), int(rates.memory))

    def power(self) -> Power:
        """Mean power of the last second and limits in watts, energy since the driver was loaded."""
        queries = self._begin()
        milliwatts = (queries.attempt(("power",), self._power.read) or {}).get(fields.POWER_AVERAGE)
        if milliwatts is None:
            milliwatts = queries.ask(pynvml.nvmlDeviceGetPowerUsage, self._handle)
        limit = queries.ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, self._handle)
        energy = queries.ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, self._handle)
        queries.require(milliwatts, limit, energy)
        if self._default_limit is None:  # it never changes
            self._default_limit = queries.ask(
                pynvml.nvmlDeviceGetPowerManagementDefaultLimit, self._handle
            )
        return Power(
            _thousandth(milliwatts),
            _thousandth(limit),
            _thousandth(energy),
            _thousandth(self._default_limit),
        )

    def thermal(self) -> Thermal:
        """Temperatures and absolute limits, in degrees Celsius."""
        queries = self._begin()
        sensors: dict[str, float] = {}
        gpu = queries.ask(
            pynvml.nvmlDeviceGetTemperatureV, self._handle, pynvml.NVML_TEMPERATURE_GPU
        )
        if gpu is None:  # before driver 570
            gpu = queries.ask(
                pynvml.nvmlDeviceGetTemperature, self._handle, pynvml.NVML_TEMPERATURE_GPU
            )
        if gpu is not None:
            sensors["gpu"] = gpu
        memory = queries.attempt(("memory temperature",), self._memory_temperature.read)
        if memory:
            sensors["memory"] = memory[fields.MEMORY_TEMPERATURE]
        queries.require(sensors)
        if len(self._temperature_limits) < len(_LIMITS) and not queries.refusals.stands("limits"):
            self._temperature_limits |= self._limits(queries, gpu)
            queries.refusals.refused("limits")  # few GPUs have them all: retry now and then
        return Thermal(sensors, dict(self._temperature_limits))

    def _limits(self, queries: Queries, temperature: int | None) -> dict[str, float]:
        found = self._each(pynvml.nvmlDeviceGetTemperatureThreshold, _LIMITS)
        limits = {name: float(degrees) for name, degrees in found.items() if degrees}
        if limits or temperature is None:
            return limits
        # From Ada on, limits are offsets from the temperature at which the margin reaches zero.
        margin = queries.ask(pynvml.nvmlDeviceGetMarginTemperature, self._handle)
        if margin is None:
            return {}
        offsets = queries.attempt(("margins",), self._margins.read) or {}
        return {
            name: temperature + margin - offsets[field]
            for name, field in _MARGINS.items()
            if field in offsets
        }

    def clocks(self) -> Clocks:
        """Clocks in hertz (nvmlDeviceGetClockInfo, nvmlDeviceGetMaxClockInfo)."""
        queries = self._begin()
        now = self._each(pynvml.nvmlDeviceGetClockInfo, _CLOCKS)
        # Constants of the GPU are read once, here and in `_limits`.
        missing = {name: kind for name, kind in _CLOCKS.items() if name not in self._clock_maximum}
        self._clock_maximum |= self._each(pynvml.nvmlDeviceGetMaxClockInfo, missing)
        queries.require(now, self._clock_maximum)
        return Clocks(_hertz(now), _hertz(self._clock_maximum))

    def _each(
        self, getter: Callable[..., int], kinds: Mapping[str, int], *further: int
    ) -> dict[str, int]:
        """The answers of `getter` by name of `kinds`, without those that the GPU does not give."""
        asked = ((name, (self._handle, kind, *further)) for name, kind in kinds.items())
        answers = {name: self._queries.ask(getter, *arguments) for name, arguments in asked}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def throttle(self) -> Throttle:
        """Throttle time in nanoseconds from field values, and the event-reason bits."""
        queries = self._begin()
        spent = self._throttle.read()
        bits = queries.ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, self._handle)
        if bits is None:  # before driver 535
            bits = queries.ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, self._handle)
        queries.require(spent, bits)
        if self._supported_reasons is None:  # it never changes
            self._supported_reasons = queries.ask(
                pynvml.nvmlDeviceGetSupportedClocksEventReasons, self._handle
            )
        supported = self._supported_reasons or 0
        return Throttle(spent, {} if bits is None else active_reasons(bits, supported))

    def health(self) -> Health:
        """Volatile ECC counters and row remapping."""
        queries = self._begin()
        errors = self._each(pynvml.nvmlDeviceGetTotalEccErrors, _ECC, pynvml.NVML_VOLATILE_ECC)
        rows = queries.ask(pynvml.nvmlDeviceGetRemappedRows, self._handle)
        queries.require(errors, rows)
        if rows is None:
            return Health(errors)
        corrected, uncorrected, pending, failed = rows
        remapped = {"corrected": corrected, "uncorrected": uncorrected}
        return Health(errors, remapped, bool(pending), bool(failed))

    def link(self) -> Link:
        """PCIe link state; never nvmlDeviceGetPcieThroughput, which blocks for 20 ms."""
        queries = self._begin()
        values = [
            queries.ask(getter, self._handle)
            for getter in (
                pynvml.nvmlDeviceGetPcieReplayCounter,
                pynvml.nvmlDeviceGetCurrPcieLinkGeneration,
                pynvml.nvmlDeviceGetMaxPcieLinkGeneration,
                pynvml.nvmlDeviceGetCurrPcieLinkWidth,
                pynvml.nvmlDeviceGetMaxPcieLinkWidth,
            )
        ]
        queries.require(*values)
        link = Link(*values)
        if is_placeholder(link) and self._is_coherent():
            return Link(replays=link.replays)
        return link


def _hertz(megahertz: Mapping[str, int]) -> dict[str, float]:
    return {name: value * _MHZ for name, value in megahertz.items()}


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1000
