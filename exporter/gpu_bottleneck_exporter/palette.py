"""Colours: the same for the same wait and the same cause, wherever people look.

Dashboards, the status page and the terminal read them from here. The waits' colours are those of
Okabe and Ito, with a few between them; tests hold every two of them apart in normal, red-blind
and green-blind sight. There are too many causes for that: causes of one family share a hue, one
that stands for a single wait has its colour, and a name always stands beside a colour.
"""

from __future__ import annotations

BUSY = "#009E73"

WAITING_ON: dict[str, str] = {
    "unallocated": "#D9D9D9",
    "host_code": "#CC79A7",
    "worker_cpu": "#E69F00",
    "cpu_queue": "#D55E00",
    "cpu_quota": "#873000",
    "storage": "#0072B2",
    "memory": "#2349A7",
    "network": "#56B4E9",
    "peer": "#F0E442",
    "asleep": "#D9C68D",
    "unknown": "#5A5A5A",
}

CAUSES: dict[str, str] = {
    # Telemetry and hardware: reds
    "telemetry_lost": "#8E0F2B",
    "gpu_fault": "#B2182B",
    "hw_slowdown": "#C94A53",
    "thermal_throttle": "#D9727A",
    "clock_limited": "#E699A0",
    "power_capped": "#F2C2C6",
    "pcie_link_degraded": "#A65E66",
    # Held and not used: sand
    "job_stalled": "#8C7A45",
    "startup_stall": "#B09C60",
    "allocated_never_used": "#F0E6C0",
    "interactive_session": "#C4AF74",
    "allocated_idle": WAITING_ON["asleep"],
    "oversized_gpu": "#6E5F33",
    # The CPU, in orange
    "cpu_throttled": WAITING_ON["cpu_quota"],
    "cpu_oversubscribed": WAITING_ON["cpu_queue"],
    "cpu_preprocessing_bound": WAITING_ON["worker_cpu"],
    "too_few_workers": "#F2BC4D",
    "worker_churn": "#B07A00",
    # The main process: purples
    "host_loop_bound": WAITING_ON["host_code"],
    "inline_loading": "#A3477A",
    # Storage and memory of the host: blues
    "local_storage_bound": WAITING_ON["storage"],
    "network_storage_bound": WAITING_ON["network"],
    "page_cache_thrash": WAITING_ON["memory"],
    "checkpoint_stall": "#6F8FD6",
    "shm_exhausted": "#A9BFE8",
    # Between GPUs, and to them: yellows
    "gpu_imbalance": WAITING_ON["peer"],
    "straggler": "#C9BD1F",
    "communication_bound": "#A39900",
    "collective_hang": "#7A7300",
    "sharing_contention": "#DAD67E",
    "pcie_transfer_bound": "#8F8F3D",
    # On the GPU: greens
    "gpu_memory_capped": "#006B4E",
    "small_batch": "#33B38F",
    "memory_bandwidth_bound": "#00855F",
    "tensor_cores_idle": "#66C7AB",
    "low_parallelism": "#99DAC7",
    "near_oom": "#C2E8DC",
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
