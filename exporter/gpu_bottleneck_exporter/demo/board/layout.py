"""The layout of a board file: fixed-size records shared by Python and C."""

from __future__ import annotations

import ctypes

MAGIC = 0x4A52414F42555047
"""`GPUBOARJ`; differs in each layout."""
SLOT_NS = 10_000_000
"""Slot of 10 ms; a utilization window has 17."""
SLOTS = 2048
"""Slots per GPU: 20 s, for the sample ring of 10 s and queued work."""
MAX_QUEUED_NS = 8_000_000_000
MAX_PROCESSES = MAX_EVENTS = 64
"""Capacity for processes per GPU and for events."""

ENGINES = ("encoder", "decoder", "jpeg", "ofa")
SHARES = (
    *("memory", "sm_active", "sm_occupancy", "tensor", "fp64", "fp32", "fp16", "int", "dram"),
    *ENGINES,
)
TRAFFIC = tuple(
    f"{link}_{way}" for link in ("pcie", "nvlink", "c2c") for way in ("receive", "transmit")
)
LANES = (
    "index",
    "busy_ns",
    *(f"{part}_ns" for part in SHARES),
    *(f"{way}_bytes" for way in TRAFFIC),
    "energy_uj",
)
"""Sums of a slot; `index` is its number, which shows an overwritten row."""
LANE = {name: position for position, name in enumerate(LANES)}

CLOCKS = ("graphics", "sm", "memory", "video")
"""Clocks in the order of NVML's types."""


def _each(kind: type, *names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names]


class ProcessRecord(ctypes.Structure):
    """A context's process, dead or alive; `pid` 0: a free entry; `kind` 1: graphics."""

    _fields_ = [*_each(ctypes.c_uint32, "pid", "kind"), ("used_bytes", ctypes.c_uint64)]


class Event(ctypes.Structure):
    """An XID error, NVML's event type 8."""

    _fields_ = [("gpu", ctypes.c_uint32), ("xid", ctypes.c_uint64)]


class GpuRecord(ctypes.Structure):
    """A virtual GPU or MIG instance."""

    _fields_ = [
        *_each(ctypes.c_char * 96, "uuid", "name", "pci_bus_id"),
        *_each(ctypes.c_uint32, "architecture", "gpm_supported", "no_power_average", "c2c_links"),
        *_each(ctypes.c_uint32, "process_list_version", "module_limit_mw", "module_cpu_mw"),
        *_each(ctypes.c_uint32, "engines", "no_engine_rings"),
        # MIG, in the stand-in for NVML only; `kind` is 1 for an instance
        *_each(ctypes.c_uint32, "kind", "parent", "gpu_instance", "compute_instance"),
        *_each(ctypes.c_uint32, "slices", "mig_enabled"),
        # Faults, set by tests only; `tests/support/board.py` names the calls
        ("device_result", ctypes.c_int32),
        ("hang", ctypes.c_uint32),
        ("call_result", ctypes.c_int32 * 64),
        ("call_delay_us", ctypes.c_uint32 * 64),
        # The utilization ring
        *_each(ctypes.c_uint32, "period_slots", "ring_samples", "ring_empty_when_idle"),
        *_each(ctypes.c_uint32, "memory_always_zero", "stuck_utilization"),
        *_each(ctypes.c_uint32, "process_entries", "process_means", "process_zombies"),
        # Gauges, in NVML's units
        *_each(ctypes.c_uint32, "idle_mw", "power_limit_mw", "power_default_limit_mw"),
        *_each(ctypes.c_int32, "temperature", "memory_temperature", "slowdown_temperature"),
        *_each(ctypes.c_int32, "shutdown_temperature", "max_operating_temperature"),
        *_each(ctypes.c_uint32 * len(CLOCKS), "clock_mhz", "clock_max_mhz"),
        *_each(ctypes.c_uint32, "pcie_generation", "pcie_generation_max"),
        *_each(ctypes.c_uint32, "pcie_width", "pcie_width_max", "pcie_replays"),
        *_each(ctypes.c_uint32, "remapped_corrected", "remapped_uncorrected"),
        *_each(ctypes.c_uint32, "remap_pending", "remap_failed"),
        # Health, set by tests only
        *_each(ctypes.c_uint32, "recovery_action", "fabric_state", "fabric_status"),
        *_each(ctypes.c_uint32, "nvlinks", "nvlinks_active", "nvlink_replays", "nvlink_recoveries"),
        *_each(ctypes.c_uint32, "unrepairable_memory", "repairs_pending", "hottest_above"),
        *_each(ctypes.c_uint64, "ecc_corrected", "ecc_uncorrected", "event_reasons"),
        *_each(ctypes.c_uint64, "memory_total", "memory_reserved"),
        # Throttling by reason, set and read by tests only
        ("throttle_since_ns", ctypes.c_uint64),
        ("throttle_base_ns", ctypes.c_uint64 * 8),
        ("throttle_ppm", ctypes.c_uint32 * 8),
        ("processes", ProcessRecord * MAX_PROCESSES),
        # Work; `sequence` is odd during a write
        *_each(ctypes.c_uint64, "sequence", "free_at_ns"),
        ("submitted", ctypes.c_uint64 * len(LANES)),
        ("slots", ctypes.c_uint64 * (SLOTS * len(LANES))),
        # Busy microseconds by slot and row of `processes`
        ("process_us", ctypes.c_uint16 * (SLOTS * MAX_PROCESSES)),
    ]


class Header(ctypes.Structure):
    """The header of a board file: the system."""

    _fields_ = [
        ("magic", ctypes.c_uint64),
        ("created_ns", ctypes.c_uint64),
        ("timestamp_offset_ns", ctypes.c_int64),
        ("init_result", ctypes.c_int32),
        *_each(ctypes.c_uint32, "gpu_count", "cuda_version", "driver_branch"),
        ("driver_version", ctypes.c_char * 80),
        ("event_count", ctypes.c_uint64),
        ("events", Event * MAX_EVENTS),
    ]
