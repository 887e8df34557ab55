"""What may happen to a node: how it is brought about here, and what it costs.

Each row is provoked by `test_events.py` on the stand-in for the driver's library, and is a line of
the list in exporter/OPERATIONS.md (`events_table.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pynvml import (
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_NO_PERMISSION,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_ERROR_TIMEOUT,
    NVML_ERROR_UNKNOWN,
)

from support.board import Board
from support.children import Parent

COLLECTOR_FAILS = "`gpu_exporter_collector_success` is 0"
AT_THE_NEXT_READING = "at the next reading"
"""What reports most events, and when most end, in words."""
_PROCESS_LISTS = (
    "DeviceGetComputeRunningProcesses",
    "DeviceGetGraphicsRunningProcesses",
    "DeviceGetMPSComputeRunningProcesses",
)


@dataclass(frozen=True)
class Scene:
    """GPU 0 is the one that it happens to."""

    board: Board
    main: Parent
    """Holds GPU 0."""
    start: Callable[[], Parent]
    """Another process."""


@dataclass(frozen=True)
class Event:
    """One row."""

    name: str
    goes: frozenset[str]
    """Families that GPU 0 has no more, each by its name or by its first words and a star."""
    provoke: Callable[[Scene], object]
    mend: Callable[[Scene], object]
    leaves: frozenset[str] = frozenset()
    """Instead of `goes`: all that it has still."""
    reported: str = COLLECTOR_FAILS
    back: str = AT_THE_NEXT_READING
    """What else can be seen, and when it is as before, in words."""


def _heat(gpu: int, memory: int, scene: Scene) -> None:
    _set("temperature", gpu, scene)
    _set("memory_temperature", memory, scene)


def _fail(calls: tuple[str, ...], code: int, scene: Scene) -> None:
    for call in calls:
        scene.board.gpus[0].fail(call, code)


def _refused(
    name: str, calls: tuple[str, ...], code: int, goes: str, reported: str = COLLECTOR_FAILS
) -> Event:
    provoke, mend = partial(_fail, calls, code), partial(_fail, calls, 0)
    return Event(name, frozenset(goes.split()), provoke, mend, reported=reported)


def _set(field: str, value: int, scene: Scene) -> None:
    setattr(scene.board.gpus[0].record, field, value)


def _hold_anew(scene: Scene) -> None:
    gpu = scene.board.gpus[0]
    gpu.release(scene.main.pid)
    gpu.hold(scene.start().pid, 2**30)


_UTILIZATION = (
    "gpu_busy_seconds_total gpu_observed_seconds_total gpu_unobserved_seconds_total "
    "gpu_stall_seconds_total gpu_storage_stall_seconds_total gpu_memory_controller_* "
    "gpu_utilization_ratio "
    "gpu_window_utilization_ratio_*"
)
EVENTS = (
    _refused(
        "One call answers UNKNOWN (999)",
        ("DeviceGetTotalEnergyConsumption",),
        NVML_ERROR_UNKNOWN,
        "gpu_energy_joules_total",
    ),
    _refused(
        "One call answers NOT_SUPPORTED, after it has worked",
        ("DeviceGetMemoryInfo",),
        NVML_ERROR_NOT_SUPPORTED,
        "gpu_memory_total_bytes gpu_memory_used_bytes gpu_memory_reserved_bytes",
    ),
    _refused(
        "The process lists answer NO_PERMISSION",
        _PROCESS_LISTS,
        NVML_ERROR_NO_PERMISSION,
        "gpu_processes gpu_feeder_* gpu_workload_info",
        f"{COLLECTOR_FAILS}; idle time counts as `unknown`",
    ),
    _refused(
        "GPM answers NO_PERMISSION",
        ("GpmSampleGet",),
        NVML_ERROR_NO_PERMISSION,
        "gpu_sm_* gpu_dram_* gpu_pipe_* gpu_nvlink_* gpu_pcie_receive_bytes_total "
        "gpu_pcie_transmit_bytes_total",
    ),
    _refused(
        "Utilization times out, samples and single readings",
        ("DeviceGetSamples", "DeviceGetUtilizationRates"),
        NVML_ERROR_TIMEOUT,
        _UTILIZATION,
    ),
    Event(
        "Kernel utilization is 808334905 %",
        frozenset(_UTILIZATION.replace("gpu_memory_controller_* ", "").split()),
        partial(_set, "stuck_utilization", 808334905),
        partial(_set, "stuck_utilization", 0),
        reported=f"{COLLECTOR_FAILS}; `gpu_exporter_implausible_values_total` grows",
    ),
    Event(
        "Temperatures are 644245923 °C",
        frozenset({"gpu_temperature_celsius"}),
        partial(_heat, 644245923, 644245923),
        partial(_heat, 41, 47),
        reported="`gpu_exporter_implausible_values_total` grows",
    ),
    Event(
        "A GPU falls off the bus",
        frozenset(),
        partial(_set, "device_result", NVML_ERROR_GPU_IS_LOST),
        partial(_set, "device_result", 0),
        leaves=frozenset({"gpu_info", "gpu_up"}),
        reported="`gpu_up` is 0",
        back="when it answers; the exporter reopens it after 1 s, 2 s, … 60 s",
    ),
    Event(
        "A driver call hangs",
        frozenset(),
        partial(_set, "hang", 1),
        partial(_set, "hang", 0),
        leaves=frozenset({"gpu_info", "gpu_up"}),
        reported="`gpu_up` is 0, after `--sampling.deadline`",
        back="when the call returns",
    ),
    Event(
        "A holder is killed, and the driver still lists it",
        frozenset(
            {
                "gpu_feeder_age_seconds",
                "gpu_feeder_cpus_allowed",
                "gpu_feeder_interactive",
                "gpu_feeder_memory_*",
                "gpu_feeder_shm_*",
                "gpu_workload_info",
            }
        ),
        lambda scene: scene.main.end(),
        _hold_anew,
        reported="idle time counts as `unknown`",
        back="when another process holds it",
    ),
)
