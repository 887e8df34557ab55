"""Signatures of the NVML functions that a capture calls, and that the tests' replay answers.

A capture names functions as nvml.h does. Every call that the driver layer makes stands here or is
read by `recording`; a test compares the two.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pynvml

NO_ARGUMENTS: tuple[tuple[int, ...], ...] = ((),)
TEXT = "96s"
"""Format of an output that is followed by its size as a further argument."""


class Signature(NamedTuple):
    """A function that takes a device, numbers, and pointers to what it fills in."""

    name: str
    outputs: tuple[str, ...] = ("I",)
    """The `struct` format of each output."""
    arguments: tuple[tuple[int, ...], ...] = NO_ARGUMENTS
    """The numbers to call it with, one tuple per call."""
    presets: tuple[tuple[int, ...], ...] = NO_ARGUMENTS
    """First members of the output that the caller sets, such as a structure's version; a capture
    has them after the arguments."""
    polled: bool = False
    """Whether to call it every second; the others are called at the begin and at the end."""


def _each(count: int) -> tuple[tuple[int, ...], ...]:
    """One number below `count` per call."""
    return tuple((number,) for number in range(count))


_ONE, _TWO = ("I",), ("I", "I")
_LONG = ("Q",)
_VERSION_1 = 1 << 24
"""The version of a structure stands in the upper 8 bits, its size in the others."""

OF_SYSTEM = (
    Signature("nvmlSystemGetDriverVersion", (TEXT,)),
    Signature("nvmlSystemGetNVMLVersion", (TEXT,)),
    Signature("nvmlSystemGetCudaDriverVersion_v2", ("i",)),
    Signature("nvmlDeviceGetCount_v2"),
)
"""Functions that take no device."""

OF_DEVICES = (
    # Identity
    Signature("nvmlDeviceGetUUID", (TEXT,)),
    Signature("nvmlDeviceGetName", (TEXT,)),
    Signature("nvmlDeviceGetVbiosVersion", (TEXT,)),
    Signature("nvmlDeviceGetPciInfo_v3", ("16s5I32s",)),
    *map(
        Signature,
        (
            "nvmlDeviceGetArchitecture",
            "nvmlDeviceGetBrand",
            "nvmlDeviceGetComputeInstanceId",
            "nvmlDeviceGetGpuInstanceId",
            "nvmlDeviceGetMaxMigDeviceCount",
            "nvmlDeviceGetMinorNumber",
            "nvmlDeviceGetNumaNodeId",
            "nvmlDeviceGetVirtualizationMode",
        ),
    ),
    Signature("nvmlDeviceGetMigMode", _TWO),
    Signature("nvmlDeviceGetSupportedEventTypes", _LONG),
    Signature("nvmlGpmQueryDeviceSupport", ("II",), presets=((1,),)),
    Signature("nvmlDeviceGetGpuFabricInfoV", ("I4IiIB3xIB3x",), presets=((3 * _VERSION_1 + 40,),)),
    Signature("nvmlDeviceGetGpuFabricInfoV", ("I4IiIB3xI",), presets=((2 * _VERSION_1 + 36,),)),
    # Utilization
    Signature("nvmlDeviceGetUtilizationRates", ("II",), polled=True),
    Signature("nvmlDeviceGetEncoderUtilization", _TWO, polled=True),
    Signature("nvmlDeviceGetDecoderUtilization", _TWO, polled=True),
    Signature("nvmlDeviceGetJpgUtilization", _TWO, polled=True),
    Signature("nvmlDeviceGetOfaUtilization", _TWO, polled=True),
    # Power
    Signature("nvmlDeviceGetPowerUsage", polled=True),
    Signature("nvmlDeviceGetEnforcedPowerLimit", polled=True),
    Signature("nvmlDeviceGetPowerManagementDefaultLimit"),
    Signature("nvmlDeviceGetTotalEnergyConsumption", _LONG, polled=True),
    # Temperature
    Signature("nvmlDeviceGetTemperature", _ONE, ((0,),), polled=True),
    Signature(
        "nvmlDeviceGetTemperatureV",
        ("IIi",),
        presets=((_VERSION_1 + 12, 0), (_VERSION_1 + 12, 1)),
        polled=True,
    ),
    Signature("nvmlDeviceGetMarginTemperature", ("Ii",), presets=((_VERSION_1 + 8,),), polled=True),
    Signature("nvmlDeviceGetTemperatureThreshold", _ONE, _each(8), polled=True),
    # Clocks and throttling
    Signature("nvmlDeviceGetClockInfo", _ONE, _each(4), polled=True),
    Signature("nvmlDeviceGetMaxClockInfo", _ONE, _each(4)),
    Signature("nvmlDeviceGetCurrentClocksEventReasons", _LONG, polled=True),
    Signature("nvmlDeviceGetCurrentClocksThrottleReasons", _LONG, polled=True),
    Signature("nvmlDeviceGetSupportedClocksEventReasons", _LONG),
    Signature("nvmlDeviceGetViolationStatus", ("QQ",), _each(12), polled=True),
    # Memory and health
    Signature("nvmlDeviceGetMemoryInfo", ("3Q",), polled=True),
    Signature(
        "nvmlDeviceGetMemoryInfo_v2", ("I4x4Q",), presets=((2 * _VERSION_1 + 40,),), polled=True
    ),
    Signature("nvmlDeviceGetTotalEccErrors", _LONG, tuple(product((0, 1), (0, 1)))),
    Signature("nvmlDeviceGetRemappedRows", ("I", "I", "I", "I")),
    Signature("nvmlDeviceGetRepairStatus", ("III",), presets=((_VERSION_1 + 12,),)),
    Signature("nvmlDeviceGetUnrepairableMemoryFlag_v1"),
    # Links
    Signature("nvmlDeviceGetPcieReplayCounter", polled=True),
    Signature("nvmlDeviceGetCurrPcieLinkGeneration", polled=True),
    Signature("nvmlDeviceGetMaxPcieLinkGeneration"),
    Signature("nvmlDeviceGetCurrPcieLinkWidth", polled=True),
    Signature("nvmlDeviceGetMaxPcieLinkWidth"),
)
"""Functions that take a GPU or a MIG instance first."""

LINK_STATE = Signature("nvmlDeviceGetNvLinkState", _ONE, ((0,),))
"""The state of one NVLink, whose number replaces the argument."""
LINK_COUNT = pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT
"""Field with the number of NVLinks; a call for a link beyond it may read out of bounds."""
MAX_LINKS = 36
LINK_FIELDS = (*range(138, 142), *range(161, 163))
"""Bytes of a link and its errors; the scope is the link."""
FIELDS = "nvmlDeviceGetFieldValues"
SAMPLES = "nvmlDeviceGetSamples"
GPM_METRICS = "nvmlGpmMetricsGet"
GPU_HANDLE = "nvmlDeviceGetHandleByIndex_v2"
INSTANCE_HANDLE = "nvmlDeviceGetMigDeviceHandleByIndex"
PROCESS_LISTS = tuple(
    f"nvmlDeviceGet{kind}RunningProcesses{version}"
    for kind in ("Compute", "Graphics", "MPSCompute")
    for version in ("", "_v2", "_v3")
)
GPM_SAMPLES = ("nvmlGpmSampleGet", "nvmlGpmMigSampleGet")
EVENTS = ("nvmlEventSetCreate", "nvmlDeviceRegisterEvents")
POLLED_FIELDS = (
    *(pynvml.NVML_FI_DEV_MEMORY_TEMP, pynvml.NVML_FI_DEV_C2C_LINK_COUNT),
    *(*range(74, 82), *range(185, 197), *range(251, 254), *range(269, 272)),
)
"""Throttle times, memory temperature, power, temperature limits."""
SCOPES = {185: 1, 186: 1, 190: 1}
"""Power fields that also answer for a superchip's module: its scope by field."""
LAST_FIELD = 320
"""Beyond the 307 fields of driver 615."""
LAST_METRIC = 512
"""Beyond the 476 GPM metrics of driver 615."""
RING_KINDS = 10
"""Kinds of sample rings (NVML_SAMPLINGTYPE_COUNT of driver 615)."""
