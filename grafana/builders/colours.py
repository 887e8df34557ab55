"""Colours of causes: each cause has the same colour on all dashboards.

Causes of one family share a hue; a cause that equals a single wait has its colour. Most differ by
8 or more (CIE L*a*b*) in normal, red-blind and green-blind vision, which is enough side by side but
not from memory. So a name always accompanies a colour.
"""

from __future__ import annotations

from gpu_bottleneck_exporter.palette import WAIT_COLOURS

CAUSES: dict[str, str] = {
    # Telemetry and hardware: reds
    "telemetry_lost": "#C42353",
    "gpu_fault": "#DD0117",
    "fabric_unready": "#EE44FF",
    "hw_slowdown": "#CB4B54",
    "thermal_throttle": "#D9727A",
    "clock_limited": "#E699A0",
    "power_capped": "#F3C2C3",
    "near_thermal_limit": "#D24778",
    "pcie_link_degraded": "#987883",
    "nvlink_degraded": "#B9A0AA",
    "memory_worn": "#E38FBB",
    # Held and not used: sand
    "job_stalled": "#8F7E3F",
    "startup_stall": "#AE995B",
    "restart_loop": "#BFA857",
    "allocated_never_used": "#F0E6C0",
    "interactive_session": "#C4AF74",
    "allocated_idle": WAIT_COLOURS["asleep"],
    "oversized_gpu": "#76682D",
    # No demand: pale, as nothing is at fault
    "waits_for_requests": WAIT_COLOURS["requests"],
    "no_demand": "#BFC2D9",
    # Inference engines with requests: violets
    "kv_cache_full": "#B12DD2",
    "batch_limited": "#8C80FF",
    "engine_cpu_bound": "#606C9F",
    "load_imbalance": "#BF87C5",
    # The CPU, in orange
    "cpu_throttled": WAIT_COLOURS["cpu_quota"],
    "cpu_oversubscribed": WAIT_COLOURS["cpu_queue"],
    "cpu_preprocessing_bound": WAIT_COLOURS["worker_cpu"],
    "too_few_workers": "#F2BC4D",
    "worker_churn": "#935D00",
    # The main process: purples
    "host_loop_bound": WAIT_COLOURS["host_code"],
    "inline_loading": "#A2497E",
    # Storage and memory of the host: blues
    "local_storage_bound": WAIT_COLOURS["storage"],
    "network_storage_bound": WAIT_COLOURS["network"],
    "page_cache_thrash": WAIT_COLOURS["memory"],
    "checkpoint_stall": "#6F8FD6",
    "shm_exhausted": "#A9BFE8",
    "near_memory_limit": "#CFE0FA",
    # Between GPUs, and to them: yellows
    "gpu_imbalance": WAIT_COLOURS["peer"],
    "straggler": "#D6C92D",
    "uneven_work": "#BFB44A",
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
    "memory_not_released": "#B9E4E6",
    # Its video engines
    "video_engine_bound": WAIT_COLOURS["video_engine"],
    # Without evidence
    "unexplained_low_utilization": WAIT_COLOURS["unknown"],
}

OTHER_CAUSE = "#9097A3"
"""Colour of all causes that are not shown by name."""
