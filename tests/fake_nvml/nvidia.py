"""What of the stand-in, of our own code and of pynvml answers to what in NVIDIA's nvml.h.

Each line of the tables becomes a static assertion: C names of ours on the left, NVIDIA's on the
right.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pynvml

from gpu_bottleneck_exporter.driver.nvml import fields, gpm, rings
from gpu_bottleneck_exporter.driver.nvml.throttle import field_ids
from gpu_bottleneck_exporter.driver.reasons import EVENT_REASONS

Pair = tuple[str, str]

NUMBERS = {
    "OURS_SUCCESS": "NVML_SUCCESS",
    "NVML_UNINITIALIZED": "NVML_ERROR_UNINITIALIZED",
    "NVML_INVALID_ARGUMENT": "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_NOT_SUPPORTED": "NVML_ERROR_NOT_SUPPORTED",
    "NVML_NOT_FOUND": "NVML_ERROR_NOT_FOUND",
    "NVML_INSUFFICIENT_SIZE": "NVML_ERROR_INSUFFICIENT_SIZE",
    "NVML_DRIVER_NOT_LOADED": "NVML_ERROR_DRIVER_NOT_LOADED",
    "NVML_TIMEOUT": "NVML_ERROR_TIMEOUT",
    "NVML_MEMORY": "NVML_ERROR_MEMORY",
    "NVML_VERSION_MISMATCH": "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_UNKNOWN": "NVML_ERROR_UNKNOWN",
    "TYPE_UINT": "NVML_VALUE_TYPE_UNSIGNED_INT",
    "TYPE_ULL": "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG",
    "TYPE_INT": "NVML_VALUE_TYPE_SIGNED_INT",
    "ARCHITECTURE_AMPERE": "NVML_DEVICE_ARCH_AMPERE",
    "ARCHITECTURE_ADA": "NVML_DEVICE_ARCH_ADA",
    "CLOCK_GRAPHICS": "NVML_CLOCK_GRAPHICS",
    "CLOCK_SM": "NVML_CLOCK_SM",
    "CLOCK_MEMORY": "NVML_CLOCK_MEM",
    "CLOCK_VIDEO": "NVML_CLOCK_VIDEO",
    "CLOCK_TYPES": "NVML_CLOCK_COUNT",
    "SENSOR_GPU": "NVML_TEMPERATURE_GPU",
    "THRESHOLD_SHUTDOWN": "NVML_TEMPERATURE_THRESHOLD_SHUTDOWN",
    "THRESHOLD_SLOWDOWN": "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN",
    "THRESHOLD_MEMORY_MAX": "NVML_TEMPERATURE_THRESHOLD_MEM_MAX",
    "THRESHOLD_GPU_MAX": "NVML_TEMPERATURE_THRESHOLD_GPU_MAX",
    "ECC_CORRECTED": "NVML_MEMORY_ERROR_TYPE_CORRECTED",
    "ECC_UNCORRECTED": "NVML_MEMORY_ERROR_TYPE_UNCORRECTED",
    "ECC_TYPES": "NVML_MEMORY_ERROR_TYPE_COUNT",
    "ECC_VOLATILE": "NVML_VOLATILE_ECC",
    "ECC_AGGREGATE": "NVML_AGGREGATE_ECC",
    "ECC_COUNTERS": "NVML_ECC_COUNTER_TYPE_COUNT",
    "PCIE_TRANSMIT": "NVML_PCIE_UTIL_TX_BYTES",
    "PCIE_RECEIVE": "NVML_PCIE_UTIL_RX_BYTES",
    "SAMPLE_POWER": "NVML_TOTAL_POWER_SAMPLES",
    "SAMPLE_GPU": "NVML_GPU_UTILIZATION_SAMPLES",
    "SAMPLE_MEMORY": "NVML_MEMORY_UTILIZATION_SAMPLES",
    "SAMPLE_DECODER": "NVML_DEC_UTILIZATION_SAMPLES",
    "SAMPLE_SM_CLOCK": "NVML_PROCESSOR_CLK_SAMPLES",
    "SAMPLE_MEMORY_CLOCK": "NVML_MEMORY_CLK_SAMPLES",
    "POLICY_POWER": "NVML_PERF_POLICY_POWER",
    "POLICY_THERMAL": "NVML_PERF_POLICY_THERMAL",
    "POLICY_SYNC_BOOST": "NVML_PERF_POLICY_SYNC_BOOST",
    "POLICY_BOARD_LIMIT": "NVML_PERF_POLICY_BOARD_LIMIT",
    "POLICY_LOW_UTILIZATION": "NVML_PERF_POLICY_LOW_UTILIZATION",
    "POLICY_RELIABILITY": "NVML_PERF_POLICY_RELIABILITY",
    "POLICY_APP_CLOCKS": "NVML_PERF_POLICY_TOTAL_APP_CLOCKS",
    "POLICY_BASE_CLOCKS": "NVML_PERF_POLICY_TOTAL_BASE_CLOCKS",
    "FIELD_POLICY_POWER": "NVML_FI_DEV_PERF_POLICY_POWER",
    "FIELD_POLICY_RELIABILITY": "NVML_FI_DEV_PERF_POLICY_RELIABILITY",
    "FIELD_POLICY_APP_CLOCKS": "NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS",
    "FIELD_POLICY_BASE_CLOCKS": "NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS",
    "FIELD_MEMORY_TEMPERATURE": "NVML_FI_DEV_MEMORY_TEMP",
    "FIELD_ENERGY": "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "FIELD_C2C_LINKS": "NVML_FI_DEV_C2C_LINK_COUNT",
    "FIELD_PCIE_REPLAYS": "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
    "FIELD_REMAPPED_CORRECTED": "NVML_FI_DEV_REMAPPED_COR",
    "FIELD_REMAP_FAILED": "NVML_FI_DEV_REMAPPED_FAILURE",
    "FIELD_POWER_AVERAGE": "NVML_FI_DEV_POWER_AVERAGE",
    "FIELD_POWER_INSTANT": "NVML_FI_DEV_POWER_INSTANT",
    "FIELD_POWER_LIMIT_MIN": "NVML_FI_DEV_POWER_MIN_LIMIT",
    "FIELD_POWER_LIMIT_CURRENT": "NVML_FI_DEV_POWER_CURRENT_LIMIT",
    "FIELD_LIMIT_SHUTDOWN": "NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT",
    "FIELD_LIMIT_GPU_MAX": "NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT",
    "GPM_GRAPHICS": "NVML_GPM_METRIC_GRAPHICS_UTIL",
    "GPM_SM_ACTIVE": "NVML_GPM_METRIC_SM_UTIL",
    "GPM_SM_OCCUPANCY": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "GPM_INT": "NVML_GPM_METRIC_INTEGER_UTIL",
    "GPM_TENSOR": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "GPM_DRAM": "NVML_GPM_METRIC_DRAM_BW_UTIL",
    "GPM_FP64": "NVML_GPM_METRIC_FP64_UTIL",
    "GPM_FP32": "NVML_GPM_METRIC_FP32_UTIL",
    "GPM_FP16": "NVML_GPM_METRIC_FP16_UTIL",
    "GPM_PCIE_TRANSMIT": "NVML_GPM_METRIC_PCIE_TX_PER_SEC",
    "GPM_PCIE_RECEIVE": "NVML_GPM_METRIC_PCIE_RX_PER_SEC",
    "GPM_NVLINK_RECEIVE": "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC",
    "GPM_NVLINK_TRANSMIT": "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC",
    "GPM_C2C_TRANSMIT": "NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC",
    "GPM_C2C_RECEIVE": "NVML_GPM_METRIC_C2C_TOTAL_RX_PER_SEC",
    "GPM_C2C_DATA_TRANSMIT": "NVML_GPM_METRIC_C2C_DATA_TX_PER_SEC",
    "GPM_C2C_DATA_RECEIVE": "NVML_GPM_METRIC_C2C_DATA_RX_PER_SEC",
    "GPM_CYCLES_ELAPSED": "NVML_GPM_METRIC_SM_CYCLES_ELAPSED",
    "GPM_CYCLES_ACTIVE": "NVML_GPM_METRIC_SM_CYCLES_ACTIVE",
    "GPM_PCIE_TRANSMITTED": "NVML_GPM_METRIC_PCIE_TX",
    "GPM_PCIE_RECEIVED": "NVML_GPM_METRIC_PCIE_RX",
    "GPM_METRICS_VERSION": "NVML_GPM_METRICS_GET_VERSION",
    "GPM_SUPPORT_VERSION": "NVML_GPM_SUPPORT_VERSION",
    "TEMPERATURE_V1": "nvmlTemperature_v1",
    "MARGIN_TEMPERATURE_V1": "nvmlMarginTemperature_v1",
    "MEMORY_V2": "nvmlMemory_v2",
    "EVENT_XID": "nvmlEventTypeXidCriticalError",
}
"""Numbers that have never changed."""

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
    "pci_info": (
        "nvmlPciInfo_t",
        {
            "bus_id_legacy": "busIdLegacy",
            "domain": "domain",
            "bus": "bus",
            "device": "device",
            "device_id": "pciDeviceId",
            "subsystem_id": "pciSubSystemId",
            "bus_id": "busId",
        },
    ),
    "temperature_v1": (
        "nvmlTemperature_v1_t",
        {"version": "version", "sensor": "sensorType", "temperature": "temperature"},
    ),
    "margin_temperature_v1": (
        "nvmlMarginTemperature_v1_t",
        {"version": "version", "margin": "marginTemperature"},
    ),
    "memory_v1": ("nvmlMemory_t", {"total": "total", "free": "free", "used": "used"}),
    "memory_v2": (
        "nvmlMemory_v2_t",
        {
            "version": "version",
            "total": "total",
            "reserved": "reserved",
            "free": "free",
            "used": "used",
        },
    ),
    "violation": (
        "nvmlViolationTime_t",
        {"reference_us": "referenceTime", "violation_ns": "violationTime"},
    ),
    "utilization": ("nvmlUtilization_t", {"gpu": "gpu", "memory": "memory"}),
    "ring_sample": ("nvmlSample_t", {"timestamp_us": "timeStamp", "value": "sampleValue"}),
    "field": (
        "nvmlFieldValue_t",
        {
            "id": "fieldId",
            "scope": "scopeId",
            "timestamp_us": "timestamp",
            "latency_us": "latencyUsec",
            "value_type": "valueType",
            "result": "nvmlReturn",
            "value": "value",
        },
    ),
    "process_info": (
        "nvmlProcessInfo_t",
        {
            "pid": "pid",
            "used_bytes": "usedGpuMemory",
            "gpu_instance": "gpuInstanceId",
            "compute_instance": "computeInstanceId",
        },
    ),
    "event_data": (
        "nvmlEventData_t",
        {
            "device": "device",
            "type": "eventType",
            "data": "eventData",
            "gpu_instance": "gpuInstanceId",
            "compute_instance": "computeInstanceId",
        },
    ),
    "attributes": (
        "nvmlDeviceAttributes_t",
        {
            "multiprocessors": "multiprocessorCount",
            "copy_engines": "sharedCopyEngineCount",
            "decoders": "sharedDecoderCount",
            "encoders": "sharedEncoderCount",
            "jpeg_engines": "sharedJpegCount",
            "optical_flow_engines": "sharedOfaCount",
            "gpu_slices": "gpuInstanceSliceCount",
            "compute_slices": "computeInstanceSliceCount",
            "memory_mb": "memorySizeMB",
        },
    ),
    "metric": (
        "nvmlGpmMetric_t",
        {
            "id": "metricId",
            "result": "nvmlReturn",
            "value": "value",
            "short_name": "metricInfo.shortName",
            "long_name": "metricInfo.longName",
            "unit": "metricInfo.unit",
        },
    ),
    "support": ("nvmlGpmSupport_t", {"version": "version", "supported": "isSupportedDevice"}),
}
"""Structure of ours: NVIDIA's, and NVIDIA's members by ours."""
REQUEST = "metrics_request"
_REQUEST = {
    "version": "version",
    "count": "numMetrics",
    "first": "sample1",
    "second": "sample2",
    "metrics": "metrics",
}
"""Its last member is as long as its maker wants it."""
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
    "power_cap": "NVML_FI_DEV_PERF_POLICY_POWER",
    "sync_boost": "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST",
    "board_limit": "NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT",
    "reliability": "NVML_FI_DEV_PERF_POLICY_RELIABILITY",
    "app_clocks": "NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS",
    "sw_thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "hw_thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "hw_power_brake": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}
_THERMAL = "NVML_FI_DEV_PERF_POLICY_THERMAL"
_FIELDS = {
    "NVML_FI_DEV_MEMORY_TEMP": fields.MEMORY_TEMPERATURE,
    "NVML_FI_DEV_C2C_LINK_COUNT": fields.C2C_LINKS,
    "NVML_FI_DEV_POWER_AVERAGE": fields.POWER_AVERAGE,
    "NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT": fields.TEMPERATURE_LIMIT_SHUTDOWN,
    "NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT": fields.TEMPERATURE_LIMIT_SLOWDOWN,
    "NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT": fields.TEMPERATURE_LIMIT_GPU_MAX,
}
_METRICS = {
    "graphics": "NVML_GPM_METRIC_GRAPHICS_UTIL",
    "sm_active": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "dram": "NVML_GPM_METRIC_DRAM_BW_UTIL",
    "tensor": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "fp64": "NVML_GPM_METRIC_FP64_UTIL",
    "fp32": "NVML_GPM_METRIC_FP32_UTIL",
    "fp16": "NVML_GPM_METRIC_FP16_UTIL",
    "int": "NVML_GPM_METRIC_INTEGER_UTIL",
    "pcie_transmit": "NVML_GPM_METRIC_PCIE_TX_PER_SEC",
    "pcie_receive": "NVML_GPM_METRIC_PCIE_RX_PER_SEC",
    "nvlink_receive": "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC",
    "nvlink_transmit": "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC",
    "c2c_receive": "NVML_GPM_METRIC_C2C_TOTAL_RX_PER_SEC",
    "c2c_transmit": "NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC",
    "c2c_data_receive": "NVML_GPM_METRIC_C2C_DATA_RX_PER_SEC",
    "c2c_data_transmit": "NVML_GPM_METRIC_C2C_DATA_TX_PER_SEC",
}
_FORMATS = (
    (
        fields._LAYOUT,
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
_CODE = Path(fields.__file__).parent


def of_the_stand_in(version: str) -> Iterator[Pair]:
    """Numbers and structures of the C files, for driver `version`."""
    yield from NUMBERS.items()
    yield from MOVED.get(version, {}).items()
    for ours, (theirs, members) in STRUCTURES.items():
        yield f"sizeof(struct {ours})", f"sizeof({theirs})"
        for mine, his in members.items():
            yield f"offsetof(struct {ours}, {mine})", f"offsetof({theirs}, {his})"
            size = f"sizeof((({theirs} *)0)->{his})"
            yield f"sizeof(((struct {ours} *)0)->{mine})", size
    for mine, his in _REQUEST.items():
        yield f"offsetof(struct {REQUEST}, {mine})", f"offsetof(nvmlGpmMetricsGet_t, {his})"


def of_our_code(version: str) -> Iterator[Pair]:
    """Numbers and layouts that the package itself names, for driver `version`."""
    yield from ((f"{number}", name) for name, number in _FIELDS.items())
    yield from ((f"{bit}", _REASONS[reason]) for reason, bit in EVENT_REASONS.items())
    counters = field_ids(version)
    fine = "hw_thermal" in counters.values()
    for number, reason in counters.items():
        coarse = reason == "sw_thermal" and not fine
        yield f"{number}", _THERMAL if coarse else _COUNTERS[reason]
    metrics = gpm._PIPES | gpm._RATES
    metrics |= {gpm._GRAPHICS: "graphics", gpm._SM_ACTIVE: "sm_active"}
    metrics |= {gpm._SM_OCCUPANCY: "sm_occupancy", gpm._DRAM: "dram"}
    yield from ((f"{number}", _METRICS[metrics[number]]) for number in gpm._IDS)
    yield f"{gpm._VERSION}", "NVML_GPM_METRICS_GET_VERSION"
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
