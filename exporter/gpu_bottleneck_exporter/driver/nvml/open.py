"""Opening NVIDIA's driver."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.driver.nvml.pci import all_suspended
from gpu_bottleneck_exporter.driver.nvml.remedies import remedy
from gpu_bottleneck_exporter.driver.protocol import Driver, DriverMissing

OLDEST_BINDING = "12.570.86"
"""The first nvidia-ml-py with all names that we use; pyproject.toml requires it too."""
_LATEST_NAME = "nvmlDeviceGetTemperatureV"


def open_nvml(sysfs: Path, *, wake_suspended: bool) -> Driver:
    """NVIDIA's driver, opened.

    Raises DriverMissing (no library, no driver, or all GPUs suspended and not to be woken),
    DriverUnusable, or another DriverError.
    """
    if not wake_suspended and all_suspended(sysfs):
        raise DriverMissing(
            "all GPUs are runtime-suspended; --driver.wake-suspended wakes them",
            remedy("asleep"),
        )
    _require_binding()
    # Imported late: it needs names that an older binding lacks.
    from gpu_bottleneck_exporter.driver.nvml.driver import NvmlDriver  # noqa: PLC0415

    return NvmlDriver()


def _require_binding() -> None:
    """Raise DriverMissing if pynvml belongs to another package or is too old."""
    import pynvml  # noqa: PLC0415 - late, as above

    if hasattr(pynvml, _LATEST_NAME):
        return
    # Imported only here, as it takes half a MiB.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        installed = version("nvidia-ml-py")
    except PackageNotFoundError:
        installed = "not"
    raise DriverMissing(
        f"{pynvml.__file__} is not of nvidia-ml-py {OLDEST_BINDING} or later "
        f"(installed: {installed})",
        remedy("binding"),
    )
