"""Why clocks are held down, as bits: NVML's clocks event reasons.

Named after the throttle counters. GPU idle (1) and display clocks (0x100) hold nothing down, and
hardware slowdown (8) is the umbrella of the two hardware causes.
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
"""Bits that came with driver 615: in the answer of an older one 0 does not mean no."""
