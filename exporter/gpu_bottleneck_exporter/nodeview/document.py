"""A node as JSON: the fields of `check --diagnose --json` and `top --json`.

Names end in their unit, as in metrics. None (null): unknown, or nothing to report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_bottleneck_exporter.jsontext import Document
from gpu_bottleneck_exporter.nodeview import advice
from gpu_bottleneck_exporter.nodeview.model import GpuReading, GpuView, NodeView
from gpu_bottleneck_exporter.nodeview.outlook import Change, LastChange
from gpu_bottleneck_exporter.prescription.model import REFUSALS
from gpu_bottleneck_exporter.remedies import REMEDIES


def node_document(view: NodeView) -> Document:
    """Everything about a node except its trends."""
    now = view.now
    return {
        "status": now.status,
        "version": now.version,
        "driver_version": now.driver_version,
        "simulated": now.simulated,
        "host": _host(view),
        "gpus": [{**diagnosis(gpu), **_figures(gpu.now)} for gpu in view.gpus],
        "signals": now.signals,
        "collectors": [
            {"collector": one.name, "success": one.success, "error": one.error}
            for one in now.collectors
        ],
    }


def diagnosis(gpu: GpuView) -> Document:
    """One GPU or MIG instance: what it is, what it did lately, why, and what to try."""
    now = gpu.now
    return {
        "gpu": now.key.gpu,
        "uuid": now.key.uuid,
        "name": now.name,
        "mig_profile": now.mig_profile,
        "up": now.up,
        "down_reason": now.down,
        "holder_pids": None if now.pids is None else list(now.pids),
        **_shares(gpu),
        **_verdict(gpu),
        "prescription": gpu.prescription and _change(gpu.prescription),
        "prescription_refused": gpu.refused and _refusal(gpu.refused),
        "last_change": gpu.now.last_change and _last_change(gpu.now.last_change),
    }


def _shares(gpu: GpuView) -> Document:
    shares = gpu.shares
    return {
        "observed_seconds": shares and shares.seconds,
        "busy_ratio": shares and shares.busy,
        "sm_active_ratio": shares and shares.sm_active,
        "stall_ratios": shares and dict(shares.stalls),
    }


def _verdict(gpu: GpuView) -> Document:
    meaning, remedy = REMEDIES.get(gpu.cause or "", (None, None))
    return {
        "verdict": gpu.shares and gpu.shares.verdict,
        "verdict_seconds": gpu.verdict_seconds,
        "cause": gpu.cause,
        "meaning": meaning,
        "remedy": gpu.now.down_remedy or remedy,
        "evidence": list(gpu.now.evidence) or None,
    }


def _change(change: Change) -> Document:
    return {
        "text": advice.in_full(change),
        "cause": change.cause,
        "knob": change.knob,
        "current_value": change.current,
        "value": change.value,
        "current_busy_ratio": change.busy,
        "busy_ratio": change.predicted,
        "busy_low_ratio": change.low,
        "busy_high_ratio": change.high,
        "at_most": change.at_most,
        "needs_cores": change.cores,
        "free_cores": change.free_cores,
        "needs_memory_bytes": change.memory_bytes,
        "free_memory_bytes": change.free_bytes,
        "needs_bytes_per_second": change.bytes_per_second,
        "then": change.then,
    }


def _refusal(reason: str) -> Document:
    return {"text": REFUSALS[reason], "reason": reason}


def _last_change(change: LastChange) -> Document:
    return {
        "text": advice.outcome(change),
        "knob": change.knob,
        "value_before": change.before,
        "value_after": change.after,
        "predicted_busy_ratio": change.predicted,
        "predicted_low_ratio": change.low,
        "predicted_high_ratio": change.high,
        "busy_ratio": change.outcome,
        "error_ratio": change.outcome - change.predicted,
    }


def _figures(now: GpuReading) -> Mapping[str, Any]:
    return {
        "power_watts": now.power_watts,
        "power_limit_watts": now.power_limit_watts,
        "temperature_celsius": now.temperature,
        "slowdown_temperature_celsius": now.slowdown_temperature,
        "memory_used_bytes": now.memory_used_bytes,
        "memory_total_bytes": now.memory_total_bytes,
        "sm_clock_hertz": now.sm_clock,
        "sm_clock_max_hertz": now.sm_clock_max,
        "throttle_reasons": list(now.held_down_by) or None,
        "xid_errors": dict(now.xids) or None,
        "trouble": list(now.trouble) or None,
        "processes": now.processes,
        "workers": now.workers,
        "owners": [dict(labels) for labels in now.owners] or None,
    }


def _host(view: NodeView) -> Document:
    host = view.now.host
    return {
        "cpus": host.cpus,
        "cpu_busy_ratio": view.cpu_busy,
        "memory_total_bytes": host.memory_total_bytes,
        "memory_available_bytes": host.memory_available_bytes,
        "shm_size_bytes": host.shm_size_bytes,
        "shm_used_bytes": host.shm_used_bytes,
        "pressure_ratios": dict(view.pressure) or None,
    }
