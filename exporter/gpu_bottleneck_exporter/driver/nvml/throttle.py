"""Throttle time by reason, in nanoseconds since the driver was loaded.

The ids of the finer causes moved between driver branches, and the binding's
constants follow the newest one: on driver 580 they read power-smoothing settings
as time. So ids are chosen by branch, and a counter that ever runs backwards is not
one and is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

import pynvml

from gpu_bottleneck_exporter.driver.nvml.fields import FieldReader
from gpu_bottleneck_exporter.driver.nvml.library import Calls
from gpu_bottleneck_exporter.driver.protocol import Unsupported

_EVERY_BRANCH = {
    74: "power_cap",
    76: "sync_boost",
    77: "board_limit",
    79: "reliability",
    80: "app_clocks",
}
# Below 575 the driver counts all thermal throttling in one; see the family's help.
_BEFORE_575 = {75: "sw_thermal"}
_FROM_575 = {251: "sw_thermal", 252: "hw_thermal", 253: "hw_power_brake"}
_FROM_590 = {269: "sw_thermal", 270: "hw_thermal", 271: "hw_power_brake"}

_POLICIES = {
    pynvml.NVML_PERF_POLICY_POWER: "power_cap",
    pynvml.NVML_PERF_POLICY_THERMAL: "sw_thermal",
    pynvml.NVML_PERF_POLICY_SYNC_BOOST: "sync_boost",
    pynvml.NVML_PERF_POLICY_BOARD_LIMIT: "board_limit",
    pynvml.NVML_PERF_POLICY_RELIABILITY: "reliability",
    pynvml.NVML_PERF_POLICY_TOTAL_APP_CLOCKS: "app_clocks",
}

_ACTIVE_BITS = {
    "app_clocks": 0x2,
    "power_cap": 0x4,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
}
_HW_SLOWDOWN = 0x8
_HW_CAUSES = 0x40 | 0x80


def field_ids(branch: int) -> Mapping[int, str]:
    """Field id → throttle reason on driver branch `branch` (580 for 580.95.05)."""
    if branch >= 590:  # noqa: PLR2004 - a driver branch
        return _EVERY_BRANCH | _FROM_590
    if branch >= 575:  # noqa: PLR2004 - a driver branch
        return _EVERY_BRANCH | _FROM_575
    return _EVERY_BRANCH | _BEFORE_575


def active_reasons(bits: int) -> dict[str, bool]:
    """What the event-reason bits say, by reason.

    Bit 8 (hardware slowdown) is the umbrella of the two hardware causes; a driver that
    sets it alone does not say which, so both are left out.
    """
    active = {reason: bool(bits & bit) for reason, bit in _ACTIVE_BITS.items()}
    if bits & _HW_SLOWDOWN and not bits & _HW_CAUSES:
        del active["hw_thermal"], active["hw_power_brake"]
    return active


class ThrottleCounters:
    """The throttle counters of one GPU."""

    def __init__(self, calls: Calls, handle: object, branch: int) -> None:
        self._calls = calls
        self._handle = handle
        self._reasons = field_ids(branch)
        self._fields: FieldReader | None = FieldReader(calls, handle, list(self._reasons))
        self._policies = dict(_POLICIES)
        self._last: dict[str, int] = {}
        self._distrusted: set[str] = set()

    def read(self) -> dict[str, int]:
        """Nanoseconds by reason; raises DeviceLost or DriverError."""
        spent = self._from_fields() or self._from_policies()
        for reason, value in spent.items():
            if value < self._last.get(reason, 0):
                self._distrusted.add(reason)
        self._last = spent
        return {reason: spent[reason] for reason in spent if reason not in self._distrusted}

    def _from_fields(self) -> dict[str, int]:
        if self._fields is None:
            return {}
        try:
            values = self._fields.read()
        except Unsupported:
            values = {}
        if not values:
            self._fields = None
        return {self._reasons[field]: int(value) for field, value in values.items()}

    def _from_policies(self) -> dict[str, int]:
        # Deprecated, gone in CUDA 14; the only way on drivers without the fields.
        spent = {reason: self._policy(policy) for policy, reason in self._policies.items()}
        self._policies = {p: r for p, r in self._policies.items() if spent[r] is not None}
        return {reason: value for reason, value in spent.items() if value is not None}

    def _policy(self, policy: int) -> int | None:
        try:
            status = self._calls.ask(pynvml.nvmlDeviceGetViolationStatus, self._handle, policy)
        except Unsupported:
            return None
        return int(status.violationTime)
