"""How well a busy GPU was used: SMs, pipes, DRAM, PCIe, NVLink and C2C (GPM, Hopper and later)."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.sampling.collector import UNHURRIEDLY, Collector, Sample, counter
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

_ACTIVE = {
    "gpu_sm_active_seconds_total": "sm",
    "gpu_sm_occupancy_seconds_total": "occupancy",
    "gpu_dram_active_seconds_total": "dram",
}
_TRAFFIC = {
    "gpu_pcie_receive_bytes_total": "pcie_receive",
    "gpu_pcie_transmit_bytes_total": "pcie_transmit",
    "gpu_nvlink_receive_bytes_total": "nvlink_receive",
    "gpu_nvlink_transmit_bytes_total": "nvlink_transmit",
    "gpu_c2c_receive_bytes_total": "c2c_receive",
    "gpu_c2c_transmit_bytes_total": "c2c_transmit",
    "gpu_c2c_data_receive_bytes_total": "c2c_data_receive",
    "gpu_c2c_data_transmit_bytes_total": "c2c_data_transmit",
}

FAMILIES = (
    counter(
        "gpu_sm_active_seconds_total",
        "Seconds x share of SMs with at least one warp (integral of GPM metric 2): its rate is the "
        "mean share of SMs at work, 0-1.",
    ),
    counter(
        "gpu_sm_occupancy_seconds_total",
        "Seconds x share of warp slots in use (integral of GPM metric 3): its rate is the mean "
        "occupancy, 0-1.",
    ),
    counter(
        "gpu_dram_active_seconds_total",
        "Seconds x share of the device memory's bandwidth in use (integral of GPM metric 10).",
    ),
    counter(
        "gpu_pipe_active_seconds_total",
        "Seconds x share of cycles in which the pipe worked (integral of GPM metrics 5 tensor, 11 "
        "fp64, 12 fp32, 13 fp16, 4 int).",
        ("pipe",),
    ),
    counter(
        "gpu_pcie_receive_bytes_total",
        "Bytes that the GPU received over PCIe, that is host to device (GPM metric 21 x time).",
    ),
    counter(
        "gpu_pcie_transmit_bytes_total",
        "Bytes that the GPU sent over PCIe, that is device to host (GPM metric 20 x time).",
    ),
    counter(
        "gpu_nvlink_receive_bytes_total",
        "Bytes that the GPU received over all NVLinks (GPM metric 60 x time).",
    ),
    counter(
        "gpu_nvlink_transmit_bytes_total",
        "Bytes that the GPU sent over all NVLinks (GPM metric 61 x time).",
    ),
    counter(
        "gpu_c2c_receive_bytes_total",
        "Bytes that the GPU received over NVLink-C2C, that is from the CPU and its memory (GPM "
        "metric 101 x time). Absent without such links.",
    ),
    counter(
        "gpu_c2c_transmit_bytes_total",
        "Bytes that the GPU sent over NVLink-C2C (GPM metric 100 x time).",
    ),
    counter(
        "gpu_c2c_data_receive_bytes_total",
        "Bytes of data among those received, without the protocol's (GPM metric 103 x time).",
    ),
    counter(
        "gpu_c2c_data_transmit_bytes_total",
        "Bytes of data among those sent, without the protocol's (GPM metric 102 x time).",
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    totals = gpu.totals
    for family, name in _ACTIVE.items():
        if name in totals.active_ns:
            yield Sample(family, totals.active_ns[name] / 1e9)
    for pipe, nanoseconds in totals.pipe_ns.items():
        yield Sample("gpu_pipe_active_seconds_total", nanoseconds / 1e9, (pipe,))
    for family, name in _TRAFFIC.items():
        if name in totals.traffic_bytes:
            yield Sample(family, totals.traffic_bytes[name])


COLLECTOR = Collector("activity", FAMILIES, _samples, lambda device: device.activity(), UNHURRIEDLY)
