"""How well a busy GPU was used: SMs, pipes, DRAM, PCIe, NVLink and C2C (GPM, Hopper and later)."""

from gpu_bottleneck_exporter.sampling.collector import (
    UNHURRIEDLY,
    Table,
    collector,
    counter,
    seconds,
    seconds_by,
)
from gpu_bottleneck_exporter.sampling.ledger import GpuTotals

FAMILIES: Table[GpuTotals] = {
    counter(
        "gpu_sm_active_seconds_total",
        "Seconds x share of SMs with at least one warp (integral of GPM metric 2): its rate is the "
        "mean share of SMs at work, 0-1.",
    ): lambda totals: seconds(totals.active_ns.get("sm")),
    counter(
        "gpu_sm_occupancy_seconds_total",
        "Seconds x share of warp slots in use (integral of GPM metric 3): its rate is the mean "
        "occupancy, 0-1.",
    ): lambda totals: seconds(totals.active_ns.get("occupancy")),
    counter(
        "gpu_dram_active_seconds_total",
        "Seconds x share of the device memory's bandwidth in use (integral of GPM metric 10).",
    ): lambda totals: seconds(totals.active_ns.get("dram")),
    counter(
        "gpu_pipe_active_seconds_total",
        "Seconds x share of cycles in which the pipe worked (integral of GPM metrics 5 tensor, 11 "
        "fp64, 12 fp32, 13 fp16, 4 int).",
        ("pipe",),
    ): lambda totals: seconds_by(totals.pipe_ns),
    counter(
        "gpu_pcie_receive_bytes_total",
        "Bytes that the GPU received over PCIe, that is host to device (GPM metric 21 x time).",
    ): lambda totals: totals.traffic_bytes.get("pcie_receive"),
    counter(
        "gpu_pcie_transmit_bytes_total",
        "Bytes that the GPU sent over PCIe, that is device to host (GPM metric 20 x time).",
    ): lambda totals: totals.traffic_bytes.get("pcie_transmit"),
    counter(
        "gpu_nvlink_receive_bytes_total",
        "Bytes that the GPU received over all NVLinks (GPM metric 60 x time).",
    ): lambda totals: totals.traffic_bytes.get("nvlink_receive"),
    counter(
        "gpu_nvlink_transmit_bytes_total",
        "Bytes that the GPU sent over all NVLinks (GPM metric 61 x time).",
    ): lambda totals: totals.traffic_bytes.get("nvlink_transmit"),
    counter(
        "gpu_c2c_receive_bytes_total",
        "Bytes that the GPU received over NVLink-C2C, that is from the CPU and its memory (GPM "
        "metric 101 x time). Absent without such links.",
    ): lambda totals: totals.traffic_bytes.get("c2c_receive"),
    counter(
        "gpu_c2c_transmit_bytes_total",
        "Bytes that the GPU sent over NVLink-C2C (GPM metric 100 x time).",
    ): lambda totals: totals.traffic_bytes.get("c2c_transmit"),
    counter(
        "gpu_c2c_data_receive_bytes_total",
        "Bytes of data among those received, without the protocol's (GPM metric 103 x time).",
    ): lambda totals: totals.traffic_bytes.get("c2c_data_receive"),
    counter(
        "gpu_c2c_data_transmit_bytes_total",
        "Bytes of data among those sent, without the protocol's (GPM metric 102 x time).",
    ): lambda totals: totals.traffic_bytes.get("c2c_data_transmit"),
}

COLLECTOR = collector(
    "activity", FAMILIES, lambda gpu: gpu.totals, lambda device: device.activity(), UNHURRIEDLY
)
