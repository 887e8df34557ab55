"""Throttle time by reason, in nanoseconds since the driver was loaded.

Field ids of finer causes moved twice, once within a driver branch, and would be read as
power-smoothing settings: they follow the driver's full version; in doubt only constant ids are
read. A value that keeps running backwards is dropped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping

import pynvml

from gpu_bottleneck_exporter.driver.nvml.queries import Queries

EVENT_REASONS: Mapping[str, int] = {
    "app_clocks": 0x2,
    "power_cap": 0x4,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "board_limit": 0x200,
    "reliability": 0x400,
}
"""Bits of clocks event reasons, named after the throttle counters.

GPU idle (1) and display clocks (0x100) do not throttle.
"""
HW_SLOWDOWN = "hw_slowdown"
"""Hardware slowdown without a stated cause."""
_HW_CAUSES = EVENT_REASONS["hw_thermal"] | EVENT_REASONS["hw_power_brake"]

_EVERY_VERSION = {
    pynvml.NVML_FI_DEV_PERF_POLICY_POWER: "power_cap",
    pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST: "sync_boost",
    pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT: "board_limit",
    pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY: "reliability",
    pynvml.NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS: "app_clocks",
}
_COARSE = {pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL: "sw_thermal"}
"""All thermal throttling in one counter; see the family's help."""
_FINE_FIRST = {251: "sw_thermal", 252: "hw_thermal", 253: "hw_power_brake"}
_FINE_MOVED = {269: "sw_thermal", 270: "hw_thermal", 271: "hw_power_brake"}
_POLICIES = {
    "power_cap": pynvml.NVML_PERF_POLICY_POWER,
    "sw_thermal": pynvml.NVML_PERF_POLICY_THERMAL,
    "sync_boost": pynvml.NVML_PERF_POLICY_SYNC_BOOST,
    "board_limit": pynvml.NVML_PERF_POLICY_BOARD_LIMIT,
    "reliability": pynvml.NVML_PERF_POLICY_RELIABILITY,
    "app_clocks": pynvml.NVML_PERF_POLICY_TOTAL_APP_CLOCKS,
}
_MAX_BACKWARD_STEPS = 2
"""Backward steps beyond which a value is no counter (judged)."""


def field_ids(driver_version: str | None) -> Mapping[int, str]:
    """Throttle reason by field id for driver `driver_version`, such as 580.95.05."""
    # The headers of 575.51 to 580.65 have the first ids, those from 580.82 on the moved ones; those
    # between are not published.
    branch_and_minor = r"[^\d\ufffd]*(\d{3,4})(?:\.(\d+))?"
    found = re.match(branch_and_minor, driver_version or "")
    version = (int(found[1]), int(found[2] or 66)) if found else (0, 0)
    if version >= (580, 82):
        return _EVERY_VERSION | _FINE_MOVED
    if (575, 0) <= version < (580, 66):
        return _EVERY_VERSION | _FINE_FIRST
    return _EVERY_VERSION | _COARSE


def active_reasons(bits: int, supported: int = 0, growing: Collection[str] = ()) -> dict[str, bool]:
    """Whether each reason's event bit is set; `supported`: possible bits.

    `growing`: reasons with growing counters, which name the cause if only bit 8 (hardware slowdown)
    is set; else it is `HW_SLOWDOWN`, without both hardware causes.
    """
    later = EVENT_REASONS["board_limit"] | EVENT_REASONS["reliability"]
    unknown = later & ~(bits | supported)
    # Both hardware causes, and the fast trigger against current peaks, which has no bit.
    slowed = bool(bits & pynvml.nvmlClocksThrottleReasonHwSlowdown)
    if slowed and not bits & _HW_CAUSES:
        bits |= _HW_CAUSES & sum(EVENT_REASONS[reason] for reason in growing)
    alone = slowed and not bits & _HW_CAUSES
    if alone:
        unknown |= _HW_CAUSES
    stated = {reason: bit for reason, bit in EVENT_REASONS.items() if not bit & unknown}
    return {reason: bool(bits & bit) for reason, bit in stated.items()} | {HW_SLOWDOWN: alone}


class ThrottleCounters:
    """The throttle counters of one GPU."""

    def __init__(self, queries: Queries, driver_version: str | None) -> None:
        self._queries = queries
        # A GPU without the finer counters still has the coarse one.
        self._reasons = {**_COARSE, **field_ids(driver_version)}
        self._has_fields = False
        self._last: dict[str, int] = {}
        self.growing: frozenset[str] = frozenset()
        """Reasons with growing counters."""
        self._backwards: Counter[str] = Counter()

    def read(self) -> dict[str, int]:
        """Nanoseconds by reason; failures in `last_error`."""
        spent = self._from_fields()
        self._has_fields |= bool(spent)
        if not self._has_fields:
            spent = self._from_policies()
        self._backwards.update(r for r, value in spent.items() if value < self._last.get(r, 0))
        last = self._last
        self.growing = frozenset(r for r, value in spent.items() if value > last.get(r, value))
        self._last |= spent
        return {r: value for r, value in spent.items() if self._backwards[r] <= _MAX_BACKWARD_STEPS}

    def _from_fields(self) -> dict[str, int]:
        values = self._queries.fields(*self._reasons)
        if not values.keys().isdisjoint(_FINE_FIRST | _FINE_MOVED):
            self._reasons.pop(pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL, None)
        reasons = self._reasons
        return {reasons[field]: int(n) for field, n in values.items() if field in reasons}

    def _from_policies(self) -> dict[str, int]:
        # Deprecated, to be removed in CUDA 14; for drivers that lack the fields.
        found = self._queries.ask_each(pynvml.nvmlDeviceGetViolationStatus, _POLICIES)
        return {reason: int(status.violationTime) for reason, status in found.items()}
