"""Opening the driver of this machine's GPUs: the only place that knows the vendors."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.driver.protocol import Driver, Recording


def open_driver(sysfs: Path, *, wake_suspended: bool) -> Driver:
    """The driver of the vendor whose GPUs are in this machine, opened.

    Raises DriverMissing (also if all GPUs are suspended and not to be woken), DriverUnusable, or
    another DriverError.
    """
    # Imported late: `demo` and `--help` do not need it.
    from gpu_bottleneck_exporter.driver.nvml.open import open_nvml  # noqa: PLC0415

    return open_nvml(sysfs, wake_suspended=wake_suspended)


def open_recording(sysfs: Path, *, wake_suspended: bool, masked: bool) -> Recording:
    """A capture of the driver that `open_driver` opens; `masked`: without what identifies a GPU.

    Raises as `open_driver`.
    """
    from gpu_bottleneck_exporter.driver.nvml.open import open_recording  # noqa: PLC0415

    return open_recording(sysfs, wake_suspended=wake_suspended, masked=masked)
