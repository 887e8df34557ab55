"""Nodes as people see them, built from the same states as the golden exposition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpu_bottleneck_exporter.nodeview.build import moment_of, node_of
from gpu_bottleneck_exporter.nodeview.history import CounterHistory, GpuTime, Moment
from gpu_bottleneck_exporter.nodeview.model import GpuStatus, Node
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot, TenantTotals
from gpu_bottleneck_exporter.sampling.sampler import SamplerState
from support.states import FixedSampler, hopper, shared

STEPS, STEP_SECONDS = 60, 5.0


def node(now: SamplerState) -> Node:
    """The node in this state, after five minutes in which its counters grew evenly from zero."""
    lately = _watched(now).recent(STEPS * STEP_SECONDS, moment_of(now))
    return node_of(FixedSampler(now), now, lately)


def with_gpu(shown: Node, /, **changes: object) -> Node:
    """A node with its first GPU only, changed."""
    return replace(shown, gpus=(changed(shown.gpus[0], **changes),))


def changed(gpu: GpuStatus, /, **changes: object) -> GpuStatus:
    """`gpu` with other fields."""
    return replace(gpu, **changes)  # type: ignore[arg-type]


def waiting(stalls: Mapping[str, int], *, busy_ns: int) -> GpuSnapshot:
    """A Hopper with this busy and idle time, in nanoseconds."""
    gpu = hopper()
    observed_ns = busy_ns + sum(stalls.values())
    totals = replace(gpu.totals, observed_ns=observed_ns, busy_ns=busy_ns, stall_ns=stalls)
    return replace(gpu, totals=totals)


def sharing() -> GpuSnapshot:
    """A GPU that several tenants share for 100 s."""
    gpu, second = shared(), 1_000_000_000
    stall_ns = {"worker_cpu": 4 * second, "requests": 4 * second, "asleep": second}
    totals = replace(gpu.totals, observed_ns=100 * second, busy_ns=91 * second, stall_ns=stall_ns)
    return replace(gpu, totals=totals)


def _watched(now: SamplerState) -> CounterHistory:
    history = CounterHistory(60, STEPS * STEP_SECONDS)
    for step in range(STEPS + 1):
        history.add(STEP_SECONDS * step, _scaled(moment_of(now), step / STEPS))
    return history


def _scaled(moment: Moment, factor: float) -> Moment:
    """The moment with this share of its GPUs' counters."""
    return moment._replace(gpus={key: _part(value, factor) for key, value in moment.gpus.items()})


def _part(now: GpuTime, factor: float) -> GpuTime:
    stalls = {name: value * factor for name, value in now.stalls.items()}
    sm_active = None if now.sm_active is None else now.sm_active * factor
    tenants = {name: _tenant(total, factor) for name, total in now.tenants.items()}
    return GpuTime(now.observed * factor, now.busy * factor, stalls, sm_active, tenants=tenants)


def _tenant(total: TenantTotals, factor: float) -> TenantTotals:
    stall_ns = {name: round(ns * factor) for name, ns in total.stall_ns.items()}
    return TenantTotals(round(total.busy_ns * factor), stall_ns)
