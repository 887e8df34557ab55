"""Opens the driver of this machine's GPUs: the only module that knows the vendors."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.driver.protocol import Driver, Recording


def open_driver(sysfs: Path, *, wake_suspended: bool) -> Driver:
    """The opened driver of this machine's vendor.

    Raises DriverMissing (also if all GPUs are suspended), DriverUnusable, DriverError.
    """
    # Imported late, as `demo` and `--help` do not need it.
    from gpu_bottleneck_exporter.driver.nvml.open import open_nvml  # noqa: PLC0415

    return open_nvml(sysfs, wake_suspended=wake_suspended)


def open_recording(sysfs: Path, *, wake_suspended: bool, masked: bool) -> Recording:
    """A capture of that driver; `masked`: without GPU identifiers. Raises as `open_driver`."""
    from gpu_bottleneck_exporter.driver.nvml.open import open_recording  # noqa: PLC0415

    return open_recording(sysfs, wake_suspended=wake_suspended, masked=masked)
