"""Events on a node: their cause here, and their cost.

Each row is provoked by `test_events.py` on the stand-in for the driver's library, and is a line of
the table in exporter/OPERATIONS.md (`events_table.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pynvml

from gpu_bottleneck_exporter.demo.board.create import H100
from support.board import Board
from support.children import Parent

COLLECTOR_FAILS = "`gpu_exporter_collector_success` is 0"
AT_THE_NEXT_READING = "at the next reading"
"""Usual report and end of an event, in words."""


@dataclass(frozen=True)
class Scene:
    """GPU 0 is the one that it happens to."""

    board: Board
    main: Parent
    """Holds GPU 0."""
    start: Callable[[], Parent]
    """Another process."""


Change = Callable[[Scene], object]


@dataclass(frozen=True)
class Event:
    """One row."""

    name: str
    goes: str
    """Families that GPU 0 lacks meanwhile, by name or by first letters and a star; empty: all but
    `LEFT`."""
    provoke: Change
    mend: Change
    besides: str = ""
    """Other visible effects, in words."""
    back: str = AT_THE_NEXT_READING
    """When it is as before, in words."""


LEFT = ("gpu_info", "gpu_up")
"""Families of a GPU that does not answer."""


def _answering(code: int, *calls: str) -> tuple[Change, Change]:
    def answer(with_code: int, scene: Scene) -> None:
        for call in calls:
            scene.board.gpus[0].fail(call, with_code)

    return partial(answer, code), partial(answer, 0)


def _set(value: int, **usual: int) -> tuple[Change, Change]:
    """Give fields of the board this value, and then their usual ones."""

    def put(fields: dict[str, int], scene: Scene) -> None:
        for field, chosen in fields.items():
            setattr(scene.board.gpus[0].record, field, chosen)

    return partial(put, dict.fromkeys(usual, value)), partial(put, usual)


def _hold_anew(scene: Scene) -> None:
    gpu = scene.board.gpus[0]
    gpu.release(scene.main.pid)
    gpu.hold(scene.start().pid, 2**30)


_BUSY = (
    "gpu_busy_seconds_total gpu_observed_seconds_total gpu_unobserved_seconds_total "
    "gpu_stall_seconds_total gpu_storage_stall_seconds_total gpu_utilization_ratio "
    "gpu_window_utilization_ratio_*"
)
_COUNTS = "`gpu_exporter_implausible_values_total` grows"
EVENTS = (
    Event(
        "One call answers UNKNOWN (999)",
        "gpu_energy_joules_total",
        *_answering(pynvml.NVML_ERROR_UNKNOWN, "DeviceGetTotalEnergyConsumption"),
        COLLECTOR_FAILS,
    ),
    Event(
        "One call answers NOT_SUPPORTED, after it has worked",
        "gpu_memory_total_bytes gpu_memory_used_bytes gpu_memory_reserved_bytes",
        *_answering(pynvml.NVML_ERROR_NOT_SUPPORTED, "DeviceGetMemoryInfo"),
        COLLECTOR_FAILS,
    ),
    Event(
        "The process lists answer NO_PERMISSION",
        "gpu_processes gpu_feeder_* gpu_workload_info",
        *_answering(
            pynvml.NVML_ERROR_NO_PERMISSION,
            "DeviceGetComputeRunningProcesses",
            "DeviceGetGraphicsRunningProcesses",
            "DeviceGetMPSComputeRunningProcesses",
        ),
        f"{COLLECTOR_FAILS}; idle time counts as `unknown`",
    ),
    Event(
        "GPM answers NO_PERMISSION",
        "gpu_sm_active_seconds_total gpu_sm_occupancy_seconds_total gpu_dram_active_seconds_total "
        "gpu_pipe_active_seconds_total gpu_pcie_receive_bytes_total gpu_pcie_transmit_bytes_total "
        "gpu_nvlink_receive_bytes_total gpu_nvlink_transmit_bytes_total",
        *_answering(pynvml.NVML_ERROR_NO_PERMISSION, "GpmSampleGet"),
        COLLECTOR_FAILS,
    ),
    Event(
        "Utilization times out, samples and single readings",
        f"{_BUSY} gpu_memory_controller_*",
        *_answering(pynvml.NVML_ERROR_TIMEOUT, "DeviceGetSamples", "DeviceGetUtilizationRates"),
        COLLECTOR_FAILS,
    ),
    Event(
        "Kernel utilization is 808334905 %",
        _BUSY,
        *_set(808334905, stuck_utilization=0),
        f"{COLLECTOR_FAILS}; {_COUNTS}",
    ),
    Event(
        "Temperatures are 644245923 °C",
        "gpu_temperature_celsius gpu_temperature_margin_celsius",
        *_set(644245923, temperature=41, memory_temperature=47),
        f"{COLLECTOR_FAILS}; {_COUNTS}",
    ),
    Event(
        "Reserved memory is 18446744073709551615 bytes",
        "gpu_memory_reserved_bytes",
        *_set(2**64 - 1, memory_reserved=H100.memory_reserved),
        _COUNTS,
    ),
    Event(
        "A GPU falls off the bus",
        "",
        *_set(pynvml.NVML_ERROR_GPU_IS_LOST, device_result=0),
        "`gpu_up` is 0",
        "when it answers; the exporter reopens it after 1 s, 2 s, … 60 s",
    ),
    Event(
        "All calls on a GPU answer NO_PERMISSION or DRIVER_NOT_LOADED",
        "",
        *_set(pynvml.NVML_ERROR_NO_PERMISSION, device_result=0),
        "`gpu_up` is 0, after `--sampling.deadline`",
        "when it answers; the exporter reopens it after 1 s, 2 s, … 60 s",
    ),
    Event(
        "A driver call hangs",
        "",
        *_set(1, hang=0),
        "`gpu_up` is 0, after `--sampling.deadline`",
        "when the call returns",
    ),
    Event(
        "A holder is killed, and the driver still lists it",
        "gpu_feeder_age_seconds gpu_feeder_cpus_allowed gpu_feeder_interactive "
        "gpu_feeder_memory_* gpu_feeder_network_shared gpu_feeder_shm_* gpu_workload_info "
        "gpu_feeder_socket_bytes_total",
        lambda scene: scene.main.end(),
        _hold_anew,
        "idle time counts as `unknown`",
        "when another process holds it",
    ),
)
