"""Nodes of a made-up fleet as dcgm-exporter shows them: see `fleet` for signals and phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rules.fleet import FILES, GROUPS, RULES, Fleet
from rules.series import Labels, Signal, mapped

DCGM_FILES = (*FILES, RULES / "dcgm.yml")
DCGM_GROUPS = tuple(
    name for group in GROUPS for name in (["gpu-inputs-dcgm"] * (group == "gpu-inputs") + [group])
)
JOB = "dcgm"
MEBIBYTE = 1024 * 1024


def without(names: str) -> dict[str, Any]:
    """These fields of `Dcgm` not enabled."""
    return {name: {} if name == "pipes" else None for name in names.split()}


def dcgm_fleet(minutes: int, evaluation_interval: str = "1m") -> Fleet:
    """A fleet for the whole pack, both dialects loaded; made-up series have a value a minute."""
    return Fleet(minutes, DCGM_FILES, DCGM_GROUPS, evaluation_interval)


@dataclass(slots=True, kw_only=True)
class Dcgm:
    """What dcgm-exporter shows of one GPU, in its units. The defaults are a healthy H100.

    None: the field is not enabled.
    """

    gpu_util: Signal | None = 98
    """Percent."""
    mem_copy_util: Signal | None = 40
    gr_engine: Signal | None = 0.97
    sm: Signal | None = 0.85
    dram: Signal | None = 0.4
    pipes: Mapping[str, Signal] = field(
        default_factory=lambda: {"TENSOR": 0.5, "FP32": 0.1, "FP64": 0.0}
    )
    power: Signal | None = 560
    """Watts."""
    power_limit: Signal | None = 700
    sm_clock: Signal | None = 1980
    """MHz."""
    max_sm_clock: Signal | None = 1980
    throttle: Mapping[str, Signal] | None = field(default_factory=dict)
    """Nanoseconds a second, by field; power and heat are there anyway."""
    fb_used: Signal | None = 57344
    """MiB, of 80 GiB."""
    fb_free: Signal | None = 24576
    fb_reserved: Signal | None = None
    pcie_bytes: Signal | None = 2e8
    """A second, received; a tenth of it is sent."""
    nvlink_bytes: Signal | None = 1e9
    link_width: Signal | None = 16
    link_generation: Signal | None = 5
    replays: Signal | None = 0.0
    xid: Signal | None = 0
    row_remap_failure: Signal | None = 0
    row_remap_pending: Signal | None = 0
    labels: Labels = field(default_factory=dict)
    """On all metrics: pod, exported_pod, GPU_I_ID, hpc_job, ..."""
    target: Labels = field(default_factory=dict)
    """Labels that the scrape adds, to `up` too, beside job and instance."""
    uuid: str = ""
    more: Mapping[str, Signal] = field(default_factory=dict)
    """Further gauges, by their full names."""
    totals: Mapping[str, Signal] = field(default_factory=dict)
    """Further counters: rates."""


BUSY_INEFFICIENT = {"sm": 0.3, "gr_engine": 0.95, "dram": 0.2, "fb_used": 20480, "fb_free": 61440}
"""Kernels too small for the SMs, memory mostly free."""


DEFAULT_CSV = without(
    "sm power_limit max_sm_clock throttle nvlink_bytes link_width link_generation row_remap_pending"
)
"""What the shipped counters of dcgm-exporter 4 leave out."""
NO_PROFILING = without("gr_engine sm dram pipes pcie_bytes nvlink_bytes")
"""What is missing where the profiling module does not load."""
NOTHING = {
    **DEFAULT_CSV,
    **NO_PROFILING,
    **without(
        "gpu_util mem_copy_util power sm_clock fb_used fb_free replays xid row_remap_failure"
    ),
}


def add_dcgm(fleet: Fleet, node: str, gpu: Dcgm, index: int = 0) -> None:
    """The series of `gpu`; with GPU 0 also `up`."""
    host = {"job": JOB, "instance": node, **gpu.target}
    if index == 0:
        fleet.gauge("up", 1, **host)
    who = {
        **host,
        "gpu": f"{index}",
        "UUID": gpu.uuid or f"GPU-{node}-{index}",
        "pci_bus_id": f"00000000:{index:02d}:00.0",
        "device": f"nvidia{index}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": node,
        "DCGM_FI_DRIVER_VERSION": "550.54.15",
        **gpu.labels,
    }
    for name, signal in _gauges(gpu).items():
        if signal is not None:
            fleet.gauge(name, signal, **who)
    for name, rate in _counters(gpu).items():
        if rate is not None:
            fleet.counter(name, rate, reset_at=None, **who)


def _gauges(gpu: Dcgm) -> dict[str, Signal | None]:
    device: dict[str, Signal | None] = {
        "GPU_UTIL": gpu.gpu_util,
        "MEM_COPY_UTIL": gpu.mem_copy_util,
        "POWER_USAGE": gpu.power,
        "ENFORCED_POWER_LIMIT": gpu.power_limit,
        "SM_CLOCK": gpu.sm_clock,
        "MAX_SM_CLOCK": gpu.max_sm_clock,
        "FB_USED": gpu.fb_used,
        "FB_FREE": gpu.fb_free,
        "FB_RESERVED": gpu.fb_reserved,
        "XID_ERRORS": gpu.xid,
        "ROW_REMAP_FAILURE": gpu.row_remap_failure,
        "ROW_REMAP_PENDING": gpu.row_remap_pending,
        "PCIE_LINK_WIDTH": gpu.link_width,
        "PCIE_MAX_LINK_WIDTH": None if gpu.link_width is None else 16,
        "PCIE_LINK_GEN": gpu.link_generation,
        "PCIE_MAX_LINK_GEN": None if gpu.link_generation is None else 5,
    }
    profiling: dict[str, Signal | None] = {
        "GR_ENGINE_ACTIVE": gpu.gr_engine,
        "SM_ACTIVE": gpu.sm,
        "DRAM_ACTIVE": gpu.dram,
        "PCIE_RX_BYTES": gpu.pcie_bytes,
        "PCIE_TX_BYTES": gpu.pcie_bytes and mapped(gpu.pcie_bytes, lambda value: value / 10),
        "NVLINK_RX_BYTES": gpu.nvlink_bytes,
        "NVLINK_TX_BYTES": gpu.nvlink_bytes,
        **{f"PIPE_{pipe}_ACTIVE": share for pipe, share in gpu.pipes.items()},
    }
    return {
        **{f"DCGM_FI_DEV_{name}": signal for name, signal in device.items()},
        **{f"DCGM_FI_PROF_{name}": signal for name, signal in profiling.items()},
        **gpu.more,
    }


def _counters(gpu: Dcgm) -> dict[str, Signal | None]:
    throttle = gpu.throttle
    if throttle is not None and not any("VIOLATION" in name for name in throttle):
        reasons = "SW_POWER_CAP SW_THERM_SLOWDOWN HW_THERM_SLOWDOWN HW_POWER_BRAKE_SLOWDOWN"
        quiet = {f"CLOCKS_EVENT_REASON_{reason}_NS": 0.0 for reason in reasons.split()}
        throttle = {**quiet, **throttle}
    return {
        **{f"DCGM_FI_DEV_{name}": rate for name, rate in (throttle or {}).items()},
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": gpu.replays,
        **gpu.totals,
    }
