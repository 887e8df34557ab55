"""What of the stand-in, of our own code and of pynvml answers to what in NVIDIA's nvml.h.

Each pair becomes a static assertion: C of ours on the left, NVIDIA's on the right.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pynvml

from gpu_bottleneck_exporter.driver.nvml import gpm, queries, rings
from gpu_bottleneck_exporter.driver.nvml.throttle import EVENT_REASONS, field_ids

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
    "memory_v1": "nvmlMemory_t",
    "memory_v2": "nvmlMemory_v2_t",
    "violation": "nvmlViolationTime_t",
    "utilization": "nvmlUtilization_t",
    "ring_sample": "nvmlSample_t",
    "field": "nvmlFieldValue_t",
    "process_info": "nvmlProcessInfo_t",
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
    "event_set": "struct nvmlEventSet_st",
    "gpm_sample": "struct nvmlGpmSample_st",
}
"""What we hand out pointers to: NVIDIA's name for it."""

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
_COUNTERS = {
    "sw_thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "hw_thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "hw_power_brake": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}
_C2C_RATES = {
    "c2c_transmit": "NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC",
    "c2c_receive": "NVML_GPM_METRIC_C2C_TOTAL_RX_PER_SEC",
    "c2c_data_transmit": "NVML_GPM_METRIC_C2C_DATA_TX_PER_SEC",
    "c2c_data_receive": "NVML_GPM_METRIC_C2C_DATA_RX_PER_SEC",
}
_FORMATS = (
    (
        queries.FIELD,
        "nvmlFieldValue_t",
        "fieldId scopeId timestamp latencyUsec valueType nvmlReturn value",
    ),
    (gpm._METRIC, "nvmlGpmMetric_t", "metricId nvmlReturn value"),
    (gpm._HEAD, None, "version numMetrics sample1 sample2"),
    *((ring, "nvmlSample_t", "timeStamp sampleValue") for ring in rings._FORMATS.values()),
)
_BINDING = {
    "c_nvmlEventData_t": "nvmlEventData_t",
    "c_nvmlFieldValue_t": "nvmlFieldValue_t",
    "c_nvmlGpmSupport_t": "nvmlGpmSupport_t",
    "c_nvmlMarginTemperature_v1_t": "nvmlMarginTemperature_v1_t",
    "c_nvmlMemory_t": "nvmlMemory_t",
    "c_nvmlMemory_v2_t": "nvmlMemory_v2_t",
    "c_nvmlProcessInfo_v2_t": "nvmlProcessInfo_t",
    "c_nvmlProcessInfo_t": "nvmlProcessInfo_t",
    "c_nvmlSample_t": "nvmlSample_t",
    "c_nvmlTemperature_v1_t": "nvmlTemperature_v1_t",
    "c_nvmlUtilization_t": "nvmlUtilization_t",
    "c_nvmlViolationTime_t": "nvmlViolationTime_t",
    "nvmlPciInfo_t": "nvmlPciInfo_t",
}
_CODE = Path(queries.__file__).parent


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


def of_our_code(version: str) -> Iterator[Pair]:
    """Numbers and layouts that the package itself names, for driver `version`."""
    yield from ((f"{bit}", _REASONS[reason]) for reason, bit in EVENT_REASONS.items())
    yield from ((f"{number}", _C2C_RATES[name]) for number, name in gpm._C2C_RATES.items())
    counters = field_ids(version)
    if "hw_thermal" in counters.values():
        fine = ((number, _COUNTERS.get(reason)) for number, reason in counters.items())
        yield from ((f"{number}", theirs) for number, theirs in fine if theirs)
    yield f"{gpm._HEAD.size}", "offsetof(nvmlGpmMetricsGet_t, metrics)"
    for layout, structure, members in _FORMATS:
        if structure:
            yield f"{layout.size}", f"sizeof({structure})"
        for member, at in zip(members.split(), offsets(layout), strict=False):
            yield f"{at}", f"offsetof({structure or 'nvmlGpmMetricsGet_t'}, {member})"


def offsets(layout: struct.Struct) -> Iterator[int]:
    """Where each value of `layout` begins."""
    codes = re.findall(r"\d*[a-zA-Z]", layout.format.lstrip("="))
    parts = [part for code in codes for part in _repeated(code)]
    for number, part in enumerate(parts):
        if not part.endswith("x"):
            yield struct.calcsize("=" + "".join(parts[:number]))


def _repeated(code: str) -> list[str]:
    count, kind = code[:-1], code[-1]
    return [code] if kind in "sx" or not count else [kind] * int(count)


def of_the_binding() -> Iterator[Pair]:
    """Numbers of pynvml that our code uses, and the structures that it reads through pynvml."""
    for name in sorted(used_constants()):
        yield f"{int(getattr(pynvml, name))}", name
    for name, theirs in _BINDING.items():
        structure = getattr(pynvml, name)
        yield f"{ctypes.sizeof(structure)}", f"sizeof({theirs})"
        for member, *_ in structure._fields_:
            yield f"{getattr(structure, member).offset}", f"offsetof({theirs}, {member})"


def used_constants() -> frozenset[str]:
    """The constants of pynvml that the package's code names."""
    texts = (path.read_text() for path in _CODE.glob("*.py"))
    found = (re.findall(r"pynvml\.(NVML_[A-Z0-9_]+|nvmlEventType\w+)", text) for text in texts)
    return frozenset(name for names in found for name in names)


def assertions(pairs: Iterator[Pair], known: frozenset[str]) -> Iterator[str]:
    """C for those of `pairs` of which the header, with the words `known`, has the right side."""
    for ours, theirs in pairs:
        names = [word for word in re.findall(r"[A-Za-z_]\w*", theirs) if word not in _C_WORDS]
        if all(name in known for name in names):
            yield f'_Static_assert(({ours}) == ({theirs}), "{ours} is not {theirs}");'


_C_WORDS = frozenset({"sizeof", "offsetof"})
