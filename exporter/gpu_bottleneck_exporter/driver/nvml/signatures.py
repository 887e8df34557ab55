"""Signatures of NVML functions in a capture, named as in nvml.h, for the tests' replay.

A test looks for each call of the driver layer here or in `recording`.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

TEXT = "96s"
"""Output followed by its size as an argument."""


class Signature(NamedTuple):
    """A function of a device, numbers, and outputs."""

    name: str
    outputs: tuple[str, ...] = ("I",)
    """`struct` format of each output."""
    arguments: tuple[tuple[int, ...], ...] = ((),)
    """Numbers, one tuple per call."""
    presets: tuple[tuple[int, ...], ...] = ((),)
    """First members of the output preset by the caller."""
    polled: bool = False
    """Whether to call it every second."""


def _each(count: int) -> tuple[tuple[int, ...], ...]:
    """One number below `count` per call."""
    return tuple((number,) for number in range(count))


_VERSION_1 = 1 << 24
"""Version in the upper 8 bits, size in the others."""

OF_SYSTEM = (
    Signature("nvmlSystemGetDriverVersion", (TEXT,)),
    Signature("nvmlSystemGetNVMLVersion", (TEXT,)),
    Signature("nvmlSystemGetCudaDriverVersion_v2", ("i",)),
    Signature("nvmlDeviceGetCount_v2"),
)
"""Functions without a device."""

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
    Signature("nvmlDeviceGetMigMode", ("I", "I")),
    Signature("nvmlDeviceGetSupportedEventTypes", ("Q",)),
    Signature("nvmlGpmQueryDeviceSupport", ("II",), presets=((1,),)),
    Signature("nvmlDeviceGetGpuFabricInfoV", ("I4IiIB3xIB3x",), presets=((3 * _VERSION_1 + 40,),)),
    Signature("nvmlDeviceGetGpuFabricInfoV", ("I4IiIB3xI",), presets=((2 * _VERSION_1 + 36,),)),
    # Utilization
    Signature("nvmlDeviceGetUtilizationRates", ("II",), polled=True),
    Signature("nvmlDeviceGetEncoderUtilization", ("I", "I"), polled=True),
    Signature("nvmlDeviceGetDecoderUtilization", ("I", "I"), polled=True),
    Signature("nvmlDeviceGetJpgUtilization", ("I", "I"), polled=True),
    Signature("nvmlDeviceGetOfaUtilization", ("I", "I"), polled=True),
    # Power
    Signature("nvmlDeviceGetPowerUsage", polled=True),
    Signature("nvmlDeviceGetEnforcedPowerLimit", polled=True),
    Signature("nvmlDeviceGetPowerManagementDefaultLimit"),
    Signature("nvmlDeviceGetTotalEnergyConsumption", ("Q",), polled=True),
    # Temperature
    Signature("nvmlDeviceGetTemperature", ("I",), ((0,),), polled=True),
    Signature(
        "nvmlDeviceGetTemperatureV",
        ("IIi",),
        presets=((_VERSION_1 + 12, 0), (_VERSION_1 + 12, 1)),
        polled=True,
    ),
    Signature("nvmlDeviceGetMarginTemperature", ("Ii",), presets=((_VERSION_1 + 8,),), polled=True),
    Signature("nvmlDeviceGetTemperatureThreshold", ("I",), _each(8), polled=True),
    # Clocks and throttling
    Signature("nvmlDeviceGetClockInfo", ("I",), _each(4), polled=True),
    Signature("nvmlDeviceGetMaxClockInfo", ("I",), _each(4)),
    Signature("nvmlDeviceGetCurrentClocksEventReasons", ("Q",), polled=True),
    Signature("nvmlDeviceGetCurrentClocksThrottleReasons", ("Q",), polled=True),
    Signature("nvmlDeviceGetSupportedClocksEventReasons", ("Q",)),
    Signature("nvmlDeviceGetViolationStatus", ("QQ",), _each(12), polled=True),
    # Memory and health
    Signature("nvmlDeviceGetMemoryInfo", ("3Q",), polled=True),
    Signature(
        "nvmlDeviceGetMemoryInfo_v2", ("I4x4Q",), presets=((2 * _VERSION_1 + 40,),), polled=True
    ),
    Signature("nvmlDeviceGetTotalEccErrors", ("Q",), tuple(product((0, 1), (0, 1)))),
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
"""Functions of a GPU or a MIG instance."""

LINK_STATE = Signature("nvmlDeviceGetNvLinkState", ("I",), ((0,),))
"""State of one NVLink by number."""
FIELDS = "nvmlDeviceGetFieldValues"
SAMPLES = "nvmlDeviceGetSamples"
GPM_METRICS = "nvmlGpmMetricsGet"
PROCESS_LISTS = tuple(
    f"nvmlDeviceGet{kind}RunningProcesses{version}"
    for kind in ("Compute", "Graphics", "MPSCompute")
    for version in ("", "_v2", "_v3")
)
LAST_FIELD = 320
"""Id beyond the 307 fields of driver 615."""
