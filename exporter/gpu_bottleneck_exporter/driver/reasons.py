"""Reasons for reduced clocks: the bits of NVML's clocks event reasons.

Named after the throttle counters. GPU idle (1) and display clocks (0x100) are left out, as they do
not throttle. Hardware slowdown (8) covers both hardware causes.
"""

from __future__ import annotations

from collections.abc import Mapping

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
HW_SLOWDOWN = 0x8
LATER = EVENT_REASONS["board_limit"] | EVENT_REASONS["reliability"]
"""Bits since driver 615: from an older driver, 0 does not mean no."""
