"""One MIG instance through NVML."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from gpu_bottleneck_exporter.driver.nvml.base import BaseDevice
from gpu_bottleneck_exporter.driver.protocol import Unsupported


def _unsupported(sentence: str) -> Callable[[BaseDevice], NoReturn]:
    def reading(_: BaseDevice) -> NoReturn:
        raise Unsupported(sentence)

    return reading


class NvmlInstance(BaseDevice):
    """A MIG instance: it has memory, processes and GPM; the rest belongs to its parent."""

    utilization = _unsupported("the driver samples no utilization under MIG")
    power = _unsupported("power is the whole GPU's")
    thermal = _unsupported("temperature is the whole GPU's")
    clocks = _unsupported("clocks are the whole GPU's")
    throttle = _unsupported("throttling is the whole GPU's")
    health = _unsupported("memory errors are the whole GPU's")
    link = _unsupported("the PCIe link is the whole GPU's")
