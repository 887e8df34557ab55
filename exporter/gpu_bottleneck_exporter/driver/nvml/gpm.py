"""GPU performance monitoring (nvmlGpm*, Hopper and later): means between samples.

Needs no root, and does not conflict with profilers.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import struct
import time
from collections.abc import Iterator, Mapping
from functools import cache, partial

import pynvml

from gpu_bottleneck_exporter.driver.nvml.library import Calls, address
from gpu_bottleneck_exporter.driver.nvml.queries import UNTOUCHED
from gpu_bottleneck_exporter.driver.protocol import DriverError, Unsupported
from gpu_bottleneck_exporter.driver.readings import UnitActivity

MINIMUM_INTERVAL_NS = 200_000_000
"""Twice the 100 ms below which means are invalid."""
MAXIMUM_INTERVAL_NS = 10_000_000_000
"""Interval beyond which means are dropped: they would count at one moment."""

_RATIOS = {
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL: "graphics",
    pynvml.NVML_GPM_METRIC_SM_UTIL: "sm_active",
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: "sm_occupancy",
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: "dram_active",
}
_PIPES = {
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: "tensor",
    pynvml.NVML_GPM_METRIC_FP64_UTIL: "fp64",
    pynvml.NVML_GPM_METRIC_FP32_UTIL: "fp32",
    pynvml.NVML_GPM_METRIC_FP16_UTIL: "fp16",
    pynvml.NVML_GPM_METRIC_INTEGER_UTIL: "int",
}
_RATES = {
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: "pcie_transmit",
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: "pcie_receive",
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: "nvlink_receive",
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: "nvlink_transmit",
}
C2C_RATES = {
    100: "c2c_transmit",
    101: "c2c_receive",
    102: "c2c_data_transmit",
    103: "c2c_data_receive",
}
"""Metrics without names in older bindings."""
IDS = (*_RATIOS, *_PIPES, *_RATES)
"""Metrics in one call into our own array; the binding's takes 19 kB."""
_HEAD = struct.Struct("=II2Q")
"""nvmlGpmMetricsGet_t: version, number of metrics, two samples; the metrics follow."""
_METRIC = struct.Struct("=IId24x")
"""nvmlGpmMetric_t: metric id, return code, value, and three unused names."""


class GpmReader:
    """The GPM samples of one GPU or MIG instance. Not thread-safe."""

    def __init__(self, calls: Calls, handle: object, gpu_instance: int | None = None) -> None:
        """`gpu_instance`: of MIG. Raises Unsupported."""
        self._calls = calls
        self._get = partial(calls.ask, pynvml.nvmlGpmSampleGet, handle)
        if gpu_instance is not None:
            self._get = partial(calls.ask, pynvml.nvmlGpmMigSampleGet, handle, gpu_instance)
        if not calls.ask(pynvml.nvmlGpmQueryDeviceSupport, handle).isSupportedDevice:
            raise Unsupported("nvmlGpmQueryDeviceSupport: the GPU has no GPM")
        self._old = calls.ask(pynvml.nvmlGpmSampleAlloc)
        self._new = calls.ask(pynvml.nvmlGpmSampleAlloc)
        self._old_at_ns: int | None = None

    def close(self) -> None:
        """Free both samples."""
        for sample in (self._old, self._new):
            with contextlib.suppress(DriverError):
                self._calls.ask(pynvml.nvmlGpmSampleFree, sample)

    def read(self, *, coherent: bool = False) -> UnitActivity | None:
        """Means since the last reading, 0-1; None until samples are far enough apart.

        `coherent`: with NVLink-C2C traffic, since driver 575. Raises Unsupported, DeviceLost,
        DriverError.
        """
        now = time.monotonic_ns()
        if self._old_at_ns is None:
            self._get(self._old)
            self._old_at_ns = now
            return None
        interval = now - self._old_at_ns
        if interval < MINIMUM_INTERVAL_NS:
            return None
        self._get(self._new)
        values = self._compare(IDS)
        if coherent:
            with contextlib.suppress(Unsupported):
                values |= self._compare(tuple(C2C_RATES))
        self._old, self._new = self._new, self._old
        self._old_at_ns = now
        # After failures, minutes recorded at once would exceed a rate of one.
        return None if interval > MAXIMUM_INTERVAL_NS else _activity(values, interval)

    def _compare(self, ids: tuple[int, ...]) -> dict[int, float]:
        question = request(self._old, self._new, ids)
        self._calls.call("nvmlGpmMetricsGet", question)
        return {
            metric: value
            for metric, result, value in answers(question)
            if result == pynvml.NVML_SUCCESS
        }


def request(old: object, new: object, ids: tuple[int, ...]) -> ctypes.Array[ctypes.c_char]:
    """Argument of nvmlGpmMetricsGet: two samples, an empty entry per metric."""
    head = _HEAD.pack(pynvml.NVML_GPM_METRICS_GET_VERSION, len(ids), address(old), address(new))
    return ctypes.create_string_buffer(head + _unanswered(ids))


def answers(question: ctypes.Array[ctypes.c_char]) -> Iterator[tuple[int, int, float]]:
    """Id, return code and value of each metric."""
    return _METRIC.iter_unpack(question.raw[_HEAD.size : -1])


@cache
def _unanswered(ids: tuple[int, ...]) -> bytes:
    """Entries preset to an error."""
    return b"".join(_METRIC.pack(metric, UNTOUCHED, math.nan) for metric in ids)


def _activity(values: dict[int, float], interval_ns: int) -> UnitActivity:
    ratios = {metric: value / 100 for metric, value in values.items()}
    amounts = {metric: value * 2**20 * interval_ns / 1e9 for metric, value in values.items()}
    return UnitActivity(
        interval_ns=interval_ns,
        pipes=_named(_PIPES, ratios),
        traffic_bytes=_named(_RATES | C2C_RATES, amounts),
        **_named(_RATIOS, ratios),
    )


def _named(names: Mapping[int, str], values: Mapping[int, float]) -> dict[str, float]:
    return {name: values[metric] for metric, name in names.items() if metric in values}
