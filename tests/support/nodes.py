"""Nodes as people see them, built from the same states as the golden exposition."""

from __future__ import annotations

from dataclasses import replace

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.nodeview.history import History
from gpu_bottleneck_exporter.nodeview.local import LocalNode
from gpu_bottleneck_exporter.nodeview.model import GpuReading, GpuTime, NodeView, Reading
from gpu_bottleneck_exporter.sampling.sampler import SamplerState
from support.states import FixedSampler


def reading(now: SamplerState) -> Reading:
    """The reading of a node in this state."""
    return LocalNode(FixedSampler(now), ALL).read()


def view(reading: Reading, steps: int = 60) -> NodeView:
    """`reading` after five minutes in which its counters grew evenly from zero."""
    history = History(60, 300)
    for step in range(steps + 1):
        history.add(5.0 * step, scaled(reading, step / steps))
    return history.view(5.0 * steps, reading)


def scaled(reading: Reading, factor: float) -> Reading:
    """The reading with this share of its counters."""
    return replace(reading, gpus=tuple(_scaled(gpu, factor) for gpu in reading.gpus))


def _scaled(gpu: GpuReading, factor: float) -> GpuReading:
    now = gpu.counters
    if now is None:
        return gpu
    stalls = {name: value * factor for name, value in now.stalls.items()}
    sm_active = None if now.sm_active is None else now.sm_active * factor
    return replace(
        gpu, counters=GpuTime(now.observed * factor, now.busy * factor, stalls, sm_active)
    )
