"""GPU performance monitoring (nvmlGpm*): means between two samples, Hopper and later.

Each sample is compared with the previous one, so the means cover all time, however long a tick
is. Needs no root, and does not conflict with profilers.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import struct
import time
from functools import cache

import pynvml

from gpu_bottleneck_exporter.driver.nvml.library import Calls, driver_error
from gpu_bottleneck_exporter.driver.protocol import DriverError, Unsupported
from gpu_bottleneck_exporter.driver.readings import Activity

MINIMUM_INTERVAL_NS = 200_000_000
"""Twice the 100 ms below which the driver's means are invalid."""
MAXIMUM_INTERVAL_NS = 10_000_000_000
"""A mean over a longer interval is dropped, as its whole time would be booked at one moment."""

_GRAPHICS, _SM_ACTIVE, _SM_OCCUPANCY, _DRAM = 1, 2, 3, 10
_PIPES = {5: "tensor", 11: "fp64", 12: "fp32", 13: "fp16", 4: "int"}
_RATES = {20: "pcie_transmit", 21: "pcie_receive", 60: "nvlink_receive", 61: "nvlink_transmit"}
_C2C_RATES = {
    100: "c2c_transmit",
    101: "c2c_receive",
    102: "c2c_data_transmit",
    103: "c2c_data_receive",
}
_IDS = (_GRAPHICS, _SM_ACTIVE, _SM_OCCUPANCY, _DRAM, *_PIPES, *_RATES)
"""Read in one call into an array of our own: the binding's has room for all metrics, 19 kB."""
_MIB = 1024 * 1024
_VERSION = 1
_HEAD = struct.Struct("=II2Q")
"""nvmlGpmMetricsGet_t: version, number of metrics, two samples; the metrics follow."""
_METRIC = struct.Struct("=IId24x")
"""nvmlGpmMetric_t: metric id, return code, value, and three names that are not used."""


class GpmReader:
    """The GPM samples of one GPU or MIG instance, owned by one thread."""

    def __init__(self, calls: Calls, handle: object, gpu_instance: int | None = None) -> None:
        """Read the GPU behind `handle`, or its MIG GPU instance `gpu_instance`.

        Raises Unsupported if the GPU has no GPM.
        """
        self._calls = calls
        self._handle = handle
        self._instance = gpu_instance
        support = calls.ask(pynvml.nvmlGpmQueryDeviceSupport, handle)
        if not support.isSupportedDevice:
            raise driver_error(pynvml.NVML_ERROR_NOT_SUPPORTED, "nvmlGpmQueryDeviceSupport")
        self._old = calls.ask(pynvml.nvmlGpmSampleAlloc)
        try:
            self._new = calls.ask(pynvml.nvmlGpmSampleAlloc)
        except DriverError:
            calls.ask(pynvml.nvmlGpmSampleFree, self._old)
            raise
        self._old_at_ns: int | None = None

    def close(self) -> None:
        """Free both samples."""
        for sample in (self._old, self._new):
            with contextlib.suppress(DriverError):
                self._calls.ask(pynvml.nvmlGpmSampleFree, sample)

    def read(self, *, coherent: bool = False) -> Activity | None:
        """Means since the last reading, 0-1; None until there are two samples far enough apart.

        `coherent`: with the traffic over NVLink-C2C, which drivers before 575 do not know.
        Raises Unsupported, DeviceLost or DriverError.
        """
        now = time.monotonic_ns()
        if self._old_at_ns is None:
            self._sample(self._old)
            self._old_at_ns = now
            return None
        interval = now - self._old_at_ns
        if interval < MINIMUM_INTERVAL_NS:
            return None
        self._sample(self._new)
        values = self._compare(_IDS)
        if coherent:
            with contextlib.suppress(Unsupported):
                values |= self._compare(tuple(_C2C_RATES))
        self._old, self._new = self._new, self._old
        self._old_at_ns = now
        # After a series of failures: minutes booked at once would look like a rate above one.
        return None if interval > MAXIMUM_INTERVAL_NS else _activity(values, interval)

    def _sample(self, sample: object) -> None:
        if self._instance is None:
            self._calls.ask(pynvml.nvmlGpmSampleGet, self._handle, sample)
        else:
            self._calls.ask(pynvml.nvmlGpmMigSampleGet, self._handle, self._instance, sample)

    def _compare(self, ids: tuple[int, ...]) -> dict[int, float]:
        addresses = [
            ctypes.cast(sample, ctypes.c_void_p).value for sample in (self._old, self._new)
        ]
        head = _HEAD.pack(_VERSION, len(ids), *addresses)
        buffer = ctypes.create_string_buffer(head + _unanswered(ids))
        code = self._calls.code("nvmlGpmMetricsGet", buffer)
        if code != pynvml.NVML_SUCCESS:
            raise driver_error(code, "nvmlGpmMetricsGet")
        return {
            metric: value
            for metric, result, value in _METRIC.iter_unpack(buffer.raw[_HEAD.size : -1])
            if result == pynvml.NVML_SUCCESS
        }


@cache
def _unanswered(ids: tuple[int, ...]) -> bytes:
    """Entries preset to an error: one that the driver leaves untouched is no value."""
    return b"".join(_METRIC.pack(metric, pynvml.NVML_ERROR_UNKNOWN, math.nan) for metric in ids)


def _activity(values: dict[int, float], interval_ns: int) -> Activity:
    ratio = {metric: value / 100 for metric, value in values.items()}
    seconds = interval_ns / 1e9
    return Activity(
        interval_ns=interval_ns,
        graphics=ratio.get(_GRAPHICS),
        sm_active=ratio.get(_SM_ACTIVE),
        sm_occupancy=ratio.get(_SM_OCCUPANCY),
        dram_active=ratio.get(_DRAM),
        pipes={name: ratio[metric] for metric, name in _PIPES.items() if metric in ratio},
        traffic_bytes={
            name: values[metric] * _MIB * seconds
            for metric, name in (_RATES | _C2C_RATES).items()
            if metric in values
        },
    )
