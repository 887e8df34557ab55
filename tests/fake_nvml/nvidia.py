"""Counterparts in the stand-in and in our own code of NVIDIA's nvml.h.

Each pair becomes a static assertion: C of ours on the left, NVIDIA's on the right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpu_bottleneck_exporter.driver.nvml.throttle import EVENT_REASONS

Pair = tuple[str, str]
ABI = (Path(__file__).parent / "abi.h").read_text()
_NAME = re.compile(r"\b(NVML_\w+|nvml(?!Return\b)[A-Z]\w+)\b")
"""Constants that the stand-in names as NVIDIA does; they have never changed."""

_FINE = {
    "SW_THERMAL": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "POWER_BRAKE": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}
MOVED = {
    "575.57.08": {f"FIELD_575_{name}": theirs for name, theirs in _FINE.items()},
    "580.65.06": {f"FIELD_575_{name}": theirs for name, theirs in _FINE.items()},
    "580.82.07": {f"FIELD_580_{name}": theirs for name, theirs in _FINE.items()},
    "9999.1": {
        **{f"FIELD_580_{name}": theirs for name, theirs in _FINE.items()},
        "(REASONS_OF_ALL | REASONS_SINCE_615)": "nvmlClocksEventReasonAll",
    },
}
"""Numbers of some drivers."""

STRUCTURES = {
    "pci_info": "nvmlPciInfo_t",
    "temperature_v1": "nvmlTemperature_v1_t",
    "margin_temperature_v1": "nvmlMarginTemperature_v1_t",
    "fabric_info_v3": "nvmlGpuFabricInfo_v3_t",
    "repair_status": "nvmlRepairStatus_v1_t",
    "unrepairable_memory": "nvmlUnrepairableMemoryStatus_v1_t",
    "memory_v1": "nvmlMemory_t",
    "memory_v2": "nvmlMemory_v2_t",
    "violation": "nvmlViolationTime_t",
    "utilization": "nvmlUtilization_t",
    "ring_sample": "nvmlSample_t",
    "field": "nvmlFieldValue_t",
    "process_info_v1": "nvmlProcessInfo_v1_t",
    "process_info_v2": "nvmlProcessInfo_v2_t",
    "process_info": "nvmlProcessInfo_t",
    "process_sample": "nvmlProcessUtilizationSample_t",
    "process_use": "nvmlProcessUtilizationInfo_v1_t",
    "process_use_request": "nvmlProcessesUtilizationInfo_v1_t",
    "event_data": "nvmlEventData_t",
    "metric": "nvmlGpmMetric_t",
    "metrics_request": "nvmlGpmMetricsGet_t",
    "support": "nvmlGpmSupport_t",
}
"""Structure of ours: NVIDIA's. Their members have NVIDIA's names."""
_STRUCTURE = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_MEMBER = re.compile(r"(\w+)(?:\[\w*\])?(?=[,;])")
HANDLES = {
    "device": "struct nvmlDevice_st",
    "fabric_info": "nvmlGpuFabricInfoV_t",
    "event_set": "struct nvmlEventSet_st",
    "gpm_sample": "struct nvmlGpmSample_st",
}
"""Types of the pointers that we hand out: NVIDIA's name for each."""

_REASONS = {
    "app_clocks": "nvmlClocksEventReasonApplicationsClocksSetting",
    "power_cap": "nvmlClocksEventReasonSwPowerCap",
    "sync_boost": "nvmlClocksEventReasonSyncBoost",
    "sw_thermal": "nvmlClocksEventReasonSwThermalSlowdown",
    "hw_thermal": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "hw_power_brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
    "board_limit": "nvmlClocksEventReasonBoardLimit",
    "reliability": "nvmlClocksEventReasonReliability",
}


def renamed(text: str) -> str:
    """`text` of ours with other names for constants than NVIDIA's, so that both can meet."""
    return _NAME.sub(r"OURS_\1", text)


def constants() -> frozenset[str]:
    """NVIDIA's constants that the stand-in has."""
    return frozenset(_NAME.findall(ABI))


def structures() -> Iterator[tuple[str, list[str]]]:
    """The stand-in's structures and their members."""
    for name, body in _STRUCTURE.findall(ABI):
        yield name, _MEMBER.findall(re.sub(r"  struct \{\n.*?\} ", "", body, flags=re.DOTALL))


def of_the_stand_in(version: str) -> Iterator[Pair]:
    """Numbers and structures of the C files, for driver `version`."""
    yield from ((renamed(name), name) for name in sorted(constants()))
    yield from MOVED.get(version, {}).items()
    for ours, members in structures():
        theirs = STRUCTURES[ours]
        for member in members:
            yield f"offsetof(struct {ours}, {member})", f"offsetof({theirs}, {member})"
            if ours != "metrics_request":  # its last member is as long as its maker wants it
                size = f"sizeof((({theirs} *)0)->{member})"
                yield f"sizeof(((struct {ours} *)0)->{member})", size
        if ours != "metrics_request":
            yield f"sizeof(struct {ours})", f"sizeof({theirs})"


def of_our_code() -> Iterator[Pair]:
    """Bits that no field of the stand-in names; all else of ours is held to the stand-in."""
    yield from ((f"{bit}", _REASONS[reason]) for reason, bit in EVENT_REASONS.items())


def assertions(pairs: Iterable[Pair], known: frozenset[str]) -> Iterator[str]:
    """C for those of `pairs` of which the header, with the words `known`, has the right side."""
    for ours, theirs in pairs:
        names = [word for word in re.findall(r"[A-Za-z_]\w*", theirs) if word not in _C_WORDS]
        if all(name in known for name in names):
            yield f'_Static_assert(({ours}) == ({theirs}), "{ours} is not {theirs}");'


_C_WORDS = frozenset({"sizeof", "offsetof"})
