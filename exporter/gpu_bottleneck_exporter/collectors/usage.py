"""The time of each GPU: busy, and how well used; idle, by cause."""

from functools import partial

from gpu_bottleneck_exporter.accounting.stall import REQUESTS, VIDEO_ENGINE
from gpu_bottleneck_exporter.sampling.collector import (
    Histogram,
    Table,
    Values,
    collector,
    counter,
    gauge,
    histogram,
    seconds,
    seconds_by,
)
from gpu_bottleneck_exporter.sampling.ledger import GpuTotals
from gpu_bottleneck_exporter.schedule import CADENCE


def _if_observed(totals: GpuTotals, value: Values) -> Values:
    return None if totals.observed_ns is None else value


def _stalls(totals: GpuTotals) -> dict[str, float]:
    stalls = (totals.stall_ns or {}).items()
    # No series before their first second, as few GPUs ever have these.
    return seconds_by({on: ns for on, ns in stalls if ns or on not in {REQUESTS, VIDEO_ENGINE}})


_UTILIZATION: Table[GpuTotals] = {
    counter(
        "gpu_observed_seconds_total",
        "Seconds for which it is known whether the GPU was busy: the time that the driver's "
        "utilization samples cover (under MIG the GPM interval).",
    ): lambda totals: seconds(totals.observed_ns),
    counter(
        "gpu_unobserved_seconds_total",
        "Seconds since the exporter first read the GPU that no utilization sample covers: neither "
        "busy nor idle.",
    ): lambda totals: _if_observed(totals, totals.unobserved_ns / 1e9),
    counter(
        "gpu_busy_seconds_total",
        "Seconds in which at least one kernel ran (integral of the driver's utilization "
        "samples; under MIG of the GPM graphics activity). gpu_sm_active_seconds_total counts "
        "how much of the GPU worked.",
    ): lambda totals: _if_observed(totals, totals.busy_ns / 1e9),
    counter(
        "gpu_memory_controller_busy_seconds_total",
        "Seconds in which device memory was read or written (integral of the driver's samples). "
        "9-37 % of the time on an idle GPU that drives a desktop. Absent where the driver always "
        "reports 0 (unified memory).",
    ): lambda totals: seconds(totals.memory_busy_ns),
    gauge(
        "gpu_utilization_ratio",
        "Share of the last tick in which a kernel ran, 0-1. For viewing only: alert on "
        "rate(gpu_busy_seconds_total).",
    ): lambda totals: totals.last_busy_ratio,
    gauge(
        "gpu_memory_controller_utilization_ratio",
        "Share of the last tick in which device memory was read or written, 0-1.",
    ): lambda totals: totals.last_memory_ratio,
    histogram(
        "gpu_window_utilization_ratio",
        "Busy share of each of the driver's sample windows (1/6 to 1 s), 0-1. Distinguishes a "
        "steady half load from full load half of the time.",
    ): lambda totals: _if_observed(totals, Histogram(totals.window_counts, totals.window_sum)),
}

_VIDEO: Table[GpuTotals] = {
    counter(
        "gpu_video_engine_busy_seconds_total{engine}",
        "Seconds x share in which the GPU's video engines of a kind worked: encoder, decoder, "
        "jpeg, ofa (optical flow); only those that it has. Read every 5 s, at each tick while one "
        "works.",
    ): lambda totals: seconds_by(totals.engine_ns),
}

_STALL: Table[GpuTotals] = {
    counter(
        "gpu_stall_seconds_total{waiting_on}",
        "Idle seconds of the GPU, by the activity of the processes that hold or feed it: "
        "unallocated (no holder), host_code (the main thread ran), worker_cpu (it waited for "
        "workers that ran), cpu_queue (they waited for a CPU), cpu_quota (the CPU limit held "
        "them back), storage, memory (reading evicted data again), network (they waited for a "
        "response), requests (a server had none in flight; absent until first seen), peer "
        "(another GPU of the job worked), video_engine (an encoder, decoder, JPEG or OFA "
        "engine worked; absent until first seen), asleep (all slept), unknown. Adds up to "
        "observed minus busy seconds, exactly.",
    ): _stalls,
    counter(
        "gpu_storage_stall_seconds_total{filesystem}",
        "Seconds that the GPU waited for storage, by where the files are: local or remote "
        "(NFS, SMB, Lustre, FUSE and others, by the mount's type). A wait whose place is "
        "unknown counts as neither.",
    ): lambda totals: seconds_by(totals.storage_ns),
}

_TRAFFIC = {
    "gpu_pcie_receive_bytes_total": "that the GPU received over PCIe (GPM metric 21)",
    "gpu_pcie_transmit_bytes_total": "that the GPU sent over PCIe (GPM metric 20)",
    "gpu_nvlink_receive_bytes_total": "that the GPU received over all NVLinks (GPM metric 60)",
    "gpu_nvlink_transmit_bytes_total": "that the GPU sent over all NVLinks (GPM metric 61)",
    "gpu_c2c_receive_bytes_total": "that the GPU received over NVLink-C2C (GPM metric 101). Absent "
    "without such links",
    "gpu_c2c_transmit_bytes_total": "that the GPU sent over NVLink-C2C (GPM metric 100)",
    "gpu_c2c_data_receive_bytes_total": "of payload received over NVLink-C2C (GPM metric 103)",
    "gpu_c2c_data_transmit_bytes_total": "of payload sent over NVLink-C2C (GPM metric 102)",
}
"""Metrics of traffic, each with the reading's name of its bytes."""


def _traffic(name: str, totals: GpuTotals) -> float | None:
    return totals.traffic_bytes.get(name.removeprefix("gpu_").removesuffix("_bytes_total"))


_ACTIVITY: Table[GpuTotals] = {
    counter(
        "gpu_sm_active_seconds_total",
        "Seconds x share of SMs with at least one warp (GPM metric 2): its rate is the mean share "
        "of SMs at work, 0-1.",
    ): lambda totals: seconds(totals.active_ns.get("sm")),
    counter(
        "gpu_sm_occupancy_seconds_total",
        "Seconds x share of warp slots in use (GPM metric 3): its rate is the mean occupancy, 0-1.",
    ): lambda totals: seconds(totals.active_ns.get("occupancy")),
    counter(
        "gpu_dram_active_seconds_total",
        "Seconds x share of the device memory's bandwidth in use (GPM metric 10).",
    ): lambda totals: seconds(totals.active_ns.get("dram")),
    counter(
        "gpu_pipe_active_seconds_total{pipe}",
        "Seconds x share of cycles in which the pipe worked (GPM metrics 5 tensor, 11 fp64, 12 "
        "fp32, 13 fp16, 4 int).",
    ): lambda totals: seconds_by(totals.pipe_ns),
    **{
        counter(name, f"Bytes {about}."): partial(_traffic, name)
        for name, about in _TRAFFIC.items()
    },
}


TIME = (
    collector("video", _VIDEO, lambda gpu: gpu.totals, lambda one: one.video(), CADENCE.probe_ns),
    collector("utilization", _UTILIZATION, lambda gpu: gpu.totals, lambda one: one.utilization()),
    collector("stall", _STALL, lambda gpu: gpu.totals),
)
"""Collectors of the GPU's time, in the order of reading."""
ACTIVITY = collector(
    "activity",
    _ACTIVITY,
    lambda gpu: gpu.totals,
    lambda one: one.activity(),
    CADENCE.gauge_ns,
)
