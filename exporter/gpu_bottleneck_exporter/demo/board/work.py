"""The work of a kernel on a virtual GPU."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from gpu_bottleneck_exporter.demo.board.layout import SHARES, TRAFFIC


@dataclass(frozen=True, slots=True)
class Work:
    """The load of a kernel, in the order of `LANES`.

    Ratios are shares of its run time; `watts` adds to the idle power.
    """

    kernel: float = 1.0
    """Share of kernels; a video engine works in the rest."""
    memory: float = 0.4
    sm_active: float = 0.85
    sm_occupancy: float = 0.5
    tensor: float = 0.3
    fp64: float = 0.0
    fp32: float = 0.1
    fp16: float = 0.05
    integer: float = 0.1
    dram: float = 0.35
    encoder: float = 0.0
    decoder: float = 0.0
    jpeg: float = 0.0
    ofa: float = 0.0
    pcie_receive_bytes_per_second: float = 2e9
    pcie_transmit_bytes_per_second: float = 1e8
    nvlink_receive_bytes_per_second: float = 0.0
    nvlink_transmit_bytes_per_second: float = 0.0
    c2c_receive_bytes_per_second: float = 0.0
    c2c_transmit_bytes_per_second: float = 0.0
    watts: float = 420.0

    def per_nanosecond(self) -> tuple[float, ...]:
        """Amounts per nanosecond of run time, by lane except `index`."""
        units = (*[1.0] * (1 + len(SHARES)), *[1e-9] * len(TRAFFIC), 1e-3)
        return tuple(value * unit for value, unit in zip(astuple(self), units, strict=True))


TRAINING = Work()
