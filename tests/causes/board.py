"""Events on a virtual board while jobs run: clocks, heat, links, faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pynvml

from gpu_bottleneck_exporter.demo.board.layout import CLOCKS
from support.board import Board, VirtualGpu

AFTER_SECONDS = 10.0
"""Faults come late: Prometheus must have seen the GPU healthy first."""
HAPPENS = (*("clock", "power_limit", "replays", "throttled", "sets"), *("late", "fails", "xid"))
"""Shares of the maximum clock of the SMs and of the board's default power limit; packets that the
link resends a second; shares of the time by reason; fields of the record. Then, of the faults:
fields of the record, results of driver calls, an XID that repeats, so that it stays current."""


def change(  # noqa: C901 - a table
    board: Board, gpu: VirtualGpu, happens: Mapping[str, Any], elapsed: float
) -> None:
    """Apply to a GPU what `happens` to it until this many seconds after the start."""
    record = gpu.record
    for what, value in happens.items():
        match what:
            case "clock":
                for at in map(CLOCKS.index, ("graphics", "sm")):
                    record.clock_mhz[at] = round(value * record.clock_max_mhz[at])
            case "power_limit":
                record.power_limit_mw = round(value * record.power_default_limit_mw)
            case "replays":
                record.pcie_replays = int(value * elapsed)
            case "throttled":
                for reason, share in value.items():
                    gpu.throttle(reason, share)
            case "fails" if elapsed >= AFTER_SECONDS:
                for call, result in value.items():
                    gpu.fail(call, _result(result))
            case "xid" if elapsed >= AFTER_SECONDS:
                board.raise_xid(gpu.index, value)
            case "sets" | "late" if what == "sets" or elapsed >= AFTER_SECONDS:
                for field, item in value.items():
                    setattr(record, field, _result(item))


def _result(value: Any) -> int:  # noqa: ANN401 - a name of NVML's, or a number
    return int(getattr(pynvml, f"NVML_ERROR_{value}")) if isinstance(value, str) else int(value)
