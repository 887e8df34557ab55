"""Opening the real driver."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.driver.protocol import Driver, DriverMissing
from gpu_bottleneck_exporter.host.pci import all_suspended


def open_nvml(sysfs: Path, *, wake_suspended: bool) -> Driver:
    """NVIDIA's driver.

    Raises DriverMissing (no library, no driver, or all GPUs asleep and to be left so),
    DriverUnusable, or another DriverError.
    """
    if not wake_suspended and all_suspended(sysfs):
        raise DriverMissing(
            "all GPUs are runtime-suspended and left asleep (--driver.wake-suspended wakes them)"
        )
    # Imported late: `demo` and `--help` do without it.
    from gpu_bottleneck_exporter.driver.nvml import NvmlDriver  # noqa: PLC0415

    return NvmlDriver()
