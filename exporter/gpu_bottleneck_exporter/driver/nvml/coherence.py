"""GPUs that share memory with the CPU over NVLink-C2C (GB10, GH200, GB200).

NVML describes them as if they were on PCIe: the GB10's link is a placeholder, and its memory, which
is the machine's, is refused.
"""

from __future__ import annotations

import os

from gpu_bottleneck_exporter.driver.nvml import fields
from gpu_bottleneck_exporter.driver.nvml.fields import FieldReader
from gpu_bottleneck_exporter.driver.nvml.library import Calls
from gpu_bottleneck_exporter.driver.readings import Link, Memory

_PLACEHOLDER = (1, 1)
"""Generation and width."""


class C2cLinks:
    """The NVLink-C2C links of one GPU (field 170)."""

    def __init__(self, calls: Calls, handle: object) -> None:
        self._reader = FieldReader(calls, handle, [fields.C2C_LINKS])

    def read(self) -> float:
        """Their number. Raises Unsupported, DeviceLost or DriverError."""
        return self._reader.read().get(fields.C2C_LINKS, 0)


def is_placeholder(link: Link) -> bool:
    """Whether `link` stands for none, if the GPU is on NVLink-C2C."""
    return (link.generation, link.width) == _PLACEHOLDER


def machine_memory() -> Memory:
    """The machine's memory (`MemTotal` of /proc/meminfo, through sysinfo(2)) as a GPU's."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Memory(total, of_machine=True)
