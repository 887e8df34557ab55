"""Colours: the same for the same wait and the same cause, wherever people look.

Dashboards, the status page and the terminal read them from here. The waits' colours are those of
Okabe and Ito, with a few between them. Causes of one family share a hue, and one that stands for
a single wait has its colour. Tests hold every two colours apart in normal, red-blind and
green-blind sight: waits by 16 (CIE L*a*b*), the many causes by 8, which is enough side by side
but not from memory. So a name always stands beside a colour. On Grafana's dark panels each has a
contrast of 3 at least, as thin lines need.
"""

from __future__ import annotations

BUSY = "#0AA175"

WAITING_ON: dict[str, str] = {
    "unallocated": "#D9D9D9",
    "host_code": "#CC79A7",
    "worker_cpu": "#E69F00",
    "cpu_queue": "#D65F02",
    "cpu_quota": "#BC412D",
    "storage": "#0072B2",
    "memory": "#3363C9",
    "network": "#56B4E9",
    "requests": "#D2D8FC",
    "peer": "#F0E442",
    "asleep": "#D9C68D",
    "unknown": "#6F6569",
}

CAUSES: dict[str, str] = {
    # Telemetry and hardware: reds
    "telemetry_lost": "#C42353",
    "gpu_fault": "#DD0117",
    "hw_slowdown": "#CB4B54",
    "thermal_throttle": "#D9727A",
    "clock_limited": "#E699A0",
    "power_capped": "#F3C2C3",
    "near_thermal_limit": "#D24778",
    "pcie_link_degraded": "#987883",
    # Held and not used: sand
    "job_stalled": "#8F7E3F",
    "startup_stall": "#AE995B",
    "restart_loop": "#BFA857",
    "allocated_never_used": "#F0E6C0",
    "interactive_session": "#C4AF74",
    "allocated_idle": WAITING_ON["asleep"],
    "oversized_gpu": "#76682D",
    # Without demand: pale, as what nobody is to blame for
    "waits_for_requests": WAITING_ON["requests"],
    # The CPU, in orange
    "cpu_throttled": WAITING_ON["cpu_quota"],
    "cpu_oversubscribed": WAITING_ON["cpu_queue"],
    "cpu_preprocessing_bound": WAITING_ON["worker_cpu"],
    "too_few_workers": "#F2BC4D",
    "worker_churn": "#935D00",
    # The main process: purples
    "host_loop_bound": WAITING_ON["host_code"],
    "inline_loading": "#A2497E",
    # Storage and memory of the host: blues
    "local_storage_bound": WAITING_ON["storage"],
    "network_storage_bound": WAITING_ON["network"],
    "page_cache_thrash": WAITING_ON["memory"],
    "checkpoint_stall": "#6F8FD6",
    "shm_exhausted": "#A9BFE8",
    # Between GPUs, and to them: yellows
    "gpu_imbalance": WAITING_ON["peer"],
    "straggler": "#D6C92D",
    "communication_bound": "#A69926",
    "collective_hang": "#8E8921",
    "sharing_contention": "#DAD67E",
    "pcie_transfer_bound": "#92903C",
    # On the GPU: greens
    "gpu_memory_capped": "#057748",
    "small_batch": "#33B38F",
    "memory_bandwidth_bound": "#00825F",
    "tensor_cores_idle": "#66C7AB",
    "low_parallelism": "#A3E7D5",
    "near_oom": "#D1FBF0",
    # Nothing speaks for anything
    "unexplained_low_utilization": WAITING_ON["unknown"],
}

_BLACK, _WHITE = "#000000", "#FFFFFF"


def text_on(colour: str) -> str:
    """Black or white, whichever reads better on `colour` (#RRGGBB): a contrast of 4.5 at least."""
    return max((_BLACK, _WHITE), key=lambda text: contrast(text, colour))


def contrast(one: str, other: str) -> float:
    """How much two colours (#RRGGBB) differ in lightness: 1 to 21, as WCAG 2 has it."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    """A channel of sRGB (0-1) as light."""
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4  # noqa: PLR2004 - as the standard has it
