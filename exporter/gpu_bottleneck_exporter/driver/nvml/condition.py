"""Condition of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pynvml

from gpu_bottleneck_exporter.driver.nvml.queries import Queries
from gpu_bottleneck_exporter.driver.nvml.remedies import RECOVERY
from gpu_bottleneck_exporter.driver.readings import Condition

_ACTIONS = (
    *("none", "gpu_reset", "node_reboot", "drain_p2p"),
    *("drain_and_reset", "recover_imex_domain", "bus_reset", "system_reboot"),
)
"""Values of nvmlDeviceGpuRecoveryAction_t."""
_STATES = {1: "not_started", 2: "in_progress", 3: "completed"}
"""NVML_GPU_FABRIC_STATE_*; 0: no fabric."""
_LINK_ERRORS = {
    "replay": pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    "recovery": pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
}
MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS of the newest binding."""


def read(queries: Queries) -> Condition:
    """The condition of the queried GPU. Raises Unsupported if nothing is known."""
    queries.begin()
    action = queries.field(230)  # without a name in older bindings
    fabric = _fabric_state(queries)
    active, errors = _nvlinks(queries)
    # nvmlRepairStatus_v1_t: version, pending repairs of memory channels and of TPCs.
    repair = queries.structure("nvmlDeviceGetRepairStatus", "=III", 0x100000C)
    # nvmlUnrepairableMemoryStatus_v1_t: one member, no version; with room.
    memory = queries.structure("nvmlDeviceGetUnrepairableMemoryFlag_v1", "=I4x")
    queries.require(action, fabric, active, repair or None, memory or None)
    condition = Condition(
        recovery_action=None if action is None else _name(int(action)),
        fabric_state=fabric,
        nvlinks_active=active,
        nvlink_errors=errors,
        repair_pending=any(repair[1:]) if repair else None,
        memory_unrepairable=bool(memory[0]) if memory else None,
    )
    return replace(condition, problems=dict(_problems(condition)))


def _problems(condition: Condition) -> Iterator[tuple[str, str]]:
    action, fabric = condition.recovery_action, condition.fabric_state
    if action is not None and action != _ACTIONS[0]:
        unknown = "look for this action in the notes of the driver's release"
        yield f"the driver asks for {action}", RECOVERY.get(action, unknown)
    if fabric is not None and fabric != _STATES[pynvml.NVML_GPU_FABRIC_STATE_COMPLETED]:
        remedy = "check nvidia-fabricmanager (nvidia-imex on GB200), its log and its version"
        yield f"NVLink fabric {fabric.replace('_', ' ')}: CUDA cannot start", remedy
    if condition.memory_unrepairable:
        yield "memory that cannot be repaired", "replace the GPU"
    if condition.repair_pending:
        yield "a repair is pending", "reset the GPU once it is free"


def _name(action: int) -> str:
    return _ACTIONS[action] if 0 <= action < len(_ACTIONS) else f"action_{action}"


def _fabric_state(queries: Queries) -> str | None:
    # nvmlGpuFabricInfo_v3_t and _v2_t, with versions, newest first.
    for layout, version in (("=I16xIIB3xIB3x", 0x3000028), ("=I16xIIB3xI", 0x2000024)):
        if info := queries.structure("nvmlDeviceGetGpuFabricInfoV", layout, version):
            _, status, _, state, *_ = info
            failed = (
                state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and status != pynvml.NVML_SUCCESS
            )
            return "failed" if failed else _STATES.get(state)
    return None


def _nvlinks(queries: Queries) -> tuple[int | None, dict[str, int]]:
    """Active links, and errors by kind over all links."""
    # Calls for links beyond the count fail on some boards.
    count = min(int(queries.field(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT) or 0), MAX_LINKS)
    states = [queries.ask(pynvml.nvmlDeviceGetNvLinkState, link) for link in range(count)]
    if not any(state is not None for state in states):
        return None, {}
    answers = [queries.fields(*_LINK_ERRORS.values(), scope=link) for link in range(count)]
    errors = {
        kind: sum(int(answer[number]) for answer in answers)
        for kind, number in _LINK_ERRORS.items()
        if all(number in answer for answer in answers)
    }
    return sum(bool(state) for state in states), errors
