"""Throttle time by reason, in nanoseconds since the driver was loaded.

The field ids of the finer causes moved twice, the second time within a driver branch. The
binding's constants follow the newest driver: with another one they read power-smoothing settings
as time. So ids are chosen by the driver's full version, and in doubt only those that never moved
are read. A value that keeps running backwards is not a counter and is dropped.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping

import pynvml

from gpu_bottleneck_exporter.driver.nvml.fields import FieldReader
from gpu_bottleneck_exporter.driver.nvml.queries import Queries
from gpu_bottleneck_exporter.driver.protocol import Unsupported
from gpu_bottleneck_exporter.driver.reasons import EVENT_REASONS, HW_SLOWDOWN, LATER

_EVERY_VERSION = {
    74: "power_cap",
    76: "sync_boost",
    77: "board_limit",
    79: "reliability",
    80: "app_clocks",
}
# All thermal throttling in one counter; see the family's help.
_COARSE = {75: "sw_thermal"}
_FINE_FIRST = {251: "sw_thermal", 252: "hw_thermal", 253: "hw_power_brake"}
_FINE_MOVED = {269: "sw_thermal", 270: "hw_thermal", 271: "hw_power_brake"}
_FINE = frozenset(_FINE_MOVED.values())
# The headers of 575.51 to 580.65 have the first ids, those from 580.82 on the moved ones. Those
# of 580.66 to 580.81 are not published.
_FIRST, _LAST_OF_FIRST, _MOVED = (575, 0), (580, 65), (580, 82)
_VERSION = re.compile(r"\D*(\d{3,4})(?:\.(\d+))?")

_POLICIES = {
    pynvml.NVML_PERF_POLICY_POWER: "power_cap",
    pynvml.NVML_PERF_POLICY_THERMAL: "sw_thermal",
    pynvml.NVML_PERF_POLICY_SYNC_BOOST: "sync_boost",
    pynvml.NVML_PERF_POLICY_BOARD_LIMIT: "board_limit",
    pynvml.NVML_PERF_POLICY_RELIABILITY: "reliability",
    pynvml.NVML_PERF_POLICY_TOTAL_APP_CLOCKS: "app_clocks",
}
_HW_CAUSES = EVENT_REASONS["hw_thermal"] | EVENT_REASONS["hw_power_brake"]
_FIELDS = ("throttle fields",)
_DISTRUSTED = 3
"""The number of times after which a value that runs backwards is no counter."""


def field_ids(driver_version: str | None) -> Mapping[int, str]:
    """Throttle reason by field id for driver `driver_version`, such as 580.95.05."""
    lowest, highest = _versions(driver_version)
    if lowest >= _MOVED:
        return _EVERY_VERSION | _FINE_MOVED
    if lowest >= _FIRST and highest <= _LAST_OF_FIRST:
        return _EVERY_VERSION | _FINE_FIRST
    return _EVERY_VERSION | _COARSE


def _versions(text: str | None) -> tuple[tuple[float, float], tuple[float, float]]:
    """The lowest and the highest (branch, minor version) that `text` may mean."""
    found = _VERSION.match(text or "")
    if found is None or "\ufffd" in (text or ""):  # undecodable text is not trusted
        return (0, 0), (math.inf, math.inf)
    branch, minor = found.groups()
    return (int(branch), int(minor or 0)), (int(branch), int(minor) if minor else math.inf)


def active_reasons(bits: int, supported: int = 0) -> dict[str, bool]:
    """Whether each reason's event bit is set; `supported`: the bits that the GPU can set.

    Bit 8 (hardware slowdown) covers both hardware causes. If a driver sets it alone, the cause is
    unknown and both are left out. So are `LATER` bits that are neither set nor supported.
    """
    unknown = LATER & ~(bits | supported)
    if bits & HW_SLOWDOWN and not bits & _HW_CAUSES:
        unknown |= _HW_CAUSES
    return {reason: bool(bits & bit) for reason, bit in EVENT_REASONS.items() if not bit & unknown}


class ThrottleCounters:
    """The throttle counters of one GPU."""

    def __init__(self, queries: Queries, handle: object, driver_version: str | None) -> None:
        self._queries = queries
        self._handle = handle
        # A GPU without the finer counters still has the coarse one.
        self._reasons = {**_COARSE, **field_ids(driver_version)}
        self._fields = FieldReader(queries.calls, handle, list(self._reasons))
        self._counts_finely = False
        self._last: dict[str, int] = {}
        self._backwards: Counter[str] = Counter()

    def read(self) -> dict[str, int]:
        """Nanoseconds by reason; failures are kept in the queries' `last_error`."""
        spent = self._from_fields()
        if not spent and not self._queries.refusals.was_answered(_FIELDS):
            spent = self._from_policies()
        self._backwards.update(r for r, value in spent.items() if value < self._last.get(r, 0))
        self._last |= spent
        return {r: value for r, value in spent.items() if self._backwards[r] < _DISTRUSTED}

    def _from_fields(self) -> dict[str, int]:
        values = self._queries.attempt(_FIELDS, self._read_fields) or {}
        self._counts_finely |= any(self._is_fine(field) for field in values)
        return {
            self._reasons[field]: int(value)
            for field, value in values.items()
            if field not in _COARSE or not self._counts_finely
        }

    def _is_fine(self, field: int) -> bool:
        return self._reasons[field] in _FINE and field not in _COARSE

    def _read_fields(self) -> dict[int, float]:
        values = self._fields.read()
        if not values:
            raise Unsupported("no throttle counter among the field values")
        return values

    def _from_policies(self) -> dict[str, int]:
        # Deprecated, to be removed in CUDA 14; the only way with drivers that lack the fields.
        found = {
            reason: self._queries.ask(pynvml.nvmlDeviceGetViolationStatus, self._handle, policy)
            for policy, reason in _POLICIES.items()
        }
        return {r: int(status.violationTime) for r, status in found.items() if status is not None}
