"""One whole GPU through NVML."""

from __future__ import annotations

from collections.abc import Mapping

import pynvml

from gpu_bottleneck_exporter.driver import readings
from gpu_bottleneck_exporter.driver.nvml import condition
from gpu_bottleneck_exporter.driver.nvml.instance import PLACEHOLDER, NvmlInstance
from gpu_bottleneck_exporter.driver.nvml.library import Calls
from gpu_bottleneck_exporter.driver.nvml.processuse import ProcessUseReader
from gpu_bottleneck_exporter.driver.nvml.rings import RingReader
from gpu_bottleneck_exporter.driver.nvml.throttle import ThrottleCounters, active_reasons

_ENGINES = {
    "encoder": (pynvml.NVML_ENC_UTILIZATION_SAMPLES, pynvml.nvmlDeviceGetEncoderUtilization),
    "decoder": (pynvml.NVML_DEC_UTILIZATION_SAMPLES, pynvml.nvmlDeviceGetDecoderUtilization),
    "jpeg": (pynvml.NVML_JPG_UTILIZATION_SAMPLES, pynvml.nvmlDeviceGetJpgUtilization),
    "ofa": (pynvml.NVML_OFA_UTILIZATION_SAMPLES, pynvml.nvmlDeviceGetOfaUtilization),
}
"""Ring and single reading of each video engine."""
_CLOCK_KINDS = {
    "graphics": pynvml.NVML_CLOCK_GRAPHICS,
    "sm": pynvml.NVML_CLOCK_SM,
    "memory": pynvml.NVML_CLOCK_MEM,
    "video": pynvml.NVML_CLOCK_VIDEO,
}
_LIMITS = {
    "shutdown": pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
    "slowdown": pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
    "max_operating": pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
    "memory_max_operating": pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
}
_MODULE = (pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT)
"""Power fields of a superchip's GPU and CPU (GH200, GB200)."""
_LINK_CALLS = (
    pynvml.nvmlDeviceGetPcieReplayCounter,
    pynvml.nvmlDeviceGetCurrPcieLinkGeneration,
    pynvml.nvmlDeviceGetMaxPcieLinkGeneration,
    pynvml.nvmlDeviceGetCurrPcieLinkWidth,
    pynvml.nvmlDeviceGetMaxPcieLinkWidth,
)
"""Calls in the order of `Link`; nvmlDeviceGetPcieThroughput would block for 20 ms."""


class NvmlDevice(NvmlInstance):
    """A whole GPU; constants are queried until known."""

    def __init__(
        self,
        calls: Calls,
        handle: object,
        identity: readings.Identity,
        driver_version: str | None,
        *,
        coherent: bool,
    ) -> None:
        super().__init__(calls, handle, identity, handle, coherent=coherent)
        self._gpu_ring = RingReader(self._queries, pynvml.NVML_GPU_UTILIZATION_SAMPLES)
        self._memory_ring = RingReader(self._queries, pynvml.NVML_MEMORY_UTILIZATION_SAMPLES)
        self._engine_rings = {
            name: RingReader(self._queries, kind, merge_idle=True)
            for name, (kind, _) in _ENGINES.items()
        }
        self._process_use = ProcessUseReader(self._queries)
        self._proven: set[str] = set()
        """Engines with a filled ring, or an answered reading."""
        self._throttle = ThrottleCounters(self._queries, driver_version)
        self._supported_reasons: int | None = None
        self._default_limit: int | None = None
        self._clock_maximum: dict[str, int] = {}
        self._temperature_limits: dict[str, float] | None = None

    def utilization(self) -> readings.Utilization:
        """Percent from rings (nvmlDeviceGetSamples), else ...GetUtilizationRates."""
        queries = self._queries.begin()
        gpu, memory = self._gpu_ring.drain(), self._memory_ring.drain()
        if gpu and memory:
            return readings.Utilization(gpu, memory)
        rates = queries.ask(pynvml.nvmlDeviceGetUtilizationRates)
        # An empty ring is an answer; without a ring, the single reading is used.
        if not gpu and (gpu is None or queries.last_error):
            queries.require(rates)
        percents = () if rates is None else (int(rates.gpu), int(rates.memory))
        return readings.Utilization(gpu, memory, *percents)

    def video(self) -> readings.Video:
        """Percent from rings, else ...Get...Utilization."""
        queries = self._queries.begin()
        rings = {name: ring.drain() for name, ring in self._engine_rings.items()}
        # An empty ring does not prove an engine.
        silent = [n for n, ring in rings.items() if ring is None or not (ring or n in self._proven)]
        answers = {name: queries.ask(_ENGINES[name][1]) for name in silent}
        percents = {name: int(answer[0]) for name, answer in answers.items() if answer is not None}
        queries.require(percents, *rings.values())
        given = {name: ring for name, ring in rings.items() if ring is not None}
        self._proven |= {name for name, ring in given.items() if ring or name in percents}
        proven = {name: ring for name, ring in given.items() if name in self._proven}
        return readings.Video(proven, percents)

    def process_use(self) -> readings.ProcessUse:
        """SM percent by process."""
        queries = self._queries.begin()
        samples = self._process_use.drain()
        return queries.fail() if samples is None else readings.ProcessUse(samples)

    def power(self) -> readings.Power:
        """Watts, mean of the last second, with limits; joules since driver load."""
        queries = self._queries.begin()
        milliwatts = queries.field(
            pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT
        )
        if milliwatts is None:  # on Turing and GA100
            milliwatts = queries.ask(pynvml.nvmlDeviceGetPowerUsage)
        limit = queries.ask(pynvml.nvmlDeviceGetEnforcedPowerLimit)
        energy = queries.ask(pynvml.nvmlDeviceGetTotalEnergyConsumption)
        queries.require(milliwatts, limit, energy)
        if self._default_limit is None:
            self._default_limit = queries.ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit)
        # Only with a CPU in the module: drivers may ignore the scope elsewhere.
        scope = pynvml.NVML_POWER_SCOPE_MODULE
        module = queries.fields(*_MODULE, scope=scope) if self._coherent else {}
        values = (milliwatts, limit, energy, self._default_limit, *map(module.get, _MODULE))
        return readings.Power(*(None if value is None else value / 1000 for value in values))

    def thermal(self) -> readings.Thermal:
        """Degrees Celsius: temperatures, limits, margin.

        A margin gives no limit: it is of any sensor's nearest threshold.
        """
        queries = self._queries.begin()
        versions = (pynvml.nvmlDeviceGetTemperatureV, pynvml.nvmlDeviceGetTemperature)
        gpu = queries.ask_any(versions, pynvml.NVML_TEMPERATURE_GPU)
        memory = queries.field(pynvml.NVML_FI_DEV_MEMORY_TEMP)
        margin = queries.ask(pynvml.nvmlDeviceGetMarginTemperature)
        queries.require(gpu, memory, margin)
        limits = self._temperature_limits
        if limits is None:
            thresholds = queries.ask_each(pynvml.nvmlDeviceGetTemperatureThreshold, _LIMITS)
            limits = {name: float(degrees) for name, degrees in thresholds.items() if degrees}
            if limits or (margin is not None and not queries.last_error):
                self._temperature_limits = limits  # most GPUs with a margin have no limits
        # NVML_TEMPERATURE_GPU_MAX, the hottest part of the die (driver 615).
        hottest = queries.ask(pynvml.nvmlDeviceGetTemperatureV, 1)
        sensors = {"gpu": gpu, "memory": memory, "hottest": hottest}
        temperatures = {name: degrees for name, degrees in sensors.items() if degrees is not None}
        return readings.Thermal(temperatures, limits, margin)

    def clocks(self) -> readings.Clocks:
        """Hertz (nvmlDeviceGetClockInfo, nvmlDeviceGetMaxClockInfo)."""
        queries = self._queries.begin()
        now = queries.ask_each(pynvml.nvmlDeviceGetClockInfo, _CLOCK_KINDS)
        known = self._clock_maximum
        missing = {name: kind for name, kind in _CLOCK_KINDS.items() if name not in known}
        self._clock_maximum |= queries.ask_each(pynvml.nvmlDeviceGetMaxClockInfo, missing)
        queries.require(now, self._clock_maximum)
        return readings.Clocks(_hertz(now), _hertz(self._clock_maximum))

    def throttle(self) -> readings.Throttle:
        """Nanoseconds from field values, and event-reason bits."""
        queries = self._queries.begin()
        spent = self._throttle.read()
        bits = queries.ask_any(
            (
                pynvml.nvmlDeviceGetCurrentClocksEventReasons,
                pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,
            )
        )
        queries.require(spent, bits)
        if self._supported_reasons is None:
            self._supported_reasons = queries.ask(pynvml.nvmlDeviceGetSupportedClocksEventReasons)
        supported = self._supported_reasons or 0
        if bits is None:
            return readings.Throttle(spent)
        return readings.Throttle(spent, active_reasons(bits, supported, self._throttle.growing))

    def health(self) -> readings.Health:
        """Volatile ECC counters and row remapping."""
        queries = self._queries.begin()
        kinds = {
            "corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            "uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        }
        errors = queries.ask_each(
            pynvml.nvmlDeviceGetTotalEccErrors, kinds, pynvml.NVML_VOLATILE_ECC
        )
        rows = queries.ask(pynvml.nvmlDeviceGetRemappedRows)
        queries.require(errors, rows)
        if rows is None:
            return readings.Health(errors)
        corrected, uncorrected, pending, failed = rows
        remapped = {"corrected": corrected, "uncorrected": uncorrected}
        return readings.Health(errors, remapped, bool(pending), bool(failed))

    def condition(self) -> readings.Condition:
        """Recovery action, fabric, NVLinks and repairs."""
        return condition.read(self._queries)

    def link(self) -> readings.Link:
        """PCIe link and replays; no link if the GPU is not on PCIe."""
        queries = self._queries.begin()
        values = [queries.ask(getter) for getter in _LINK_CALLS]
        queries.require(*values)
        replays, *speed = values
        link = readings.Link(replays, *(number or None for number in speed))  # 0: unknown
        on_pcie = (link.generation, link.width) != PLACEHOLDER
        if on_pcie or not (self._coherent or self._lacks_memory()):
            return link
        return readings.Link(replays=link.replays)


def _hertz(megahertz: Mapping[str, int]) -> dict[str, float]:
    return {name: value * 1_000_000 for name, value in megahertz.items()}
