"""Opening the real driver."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.driver.protocol import Driver, DriverMissing
from gpu_bottleneck_exporter.host.pci import all_suspended

OLDEST_BINDING = "12.570.86"
"""The first nvidia-ml-py with all names that we use; pyproject.toml asks for it, too."""
_LATEST_NAME = "nvmlDeviceGetTemperatureV"


def open_nvml(sysfs: Path, *, wake_suspended: bool) -> Driver:
    """NVIDIA's driver.

    Raises DriverMissing (no library, no driver, or all GPUs asleep and to be left so),
    DriverUnusable, or another DriverError.
    """
    if not wake_suspended and all_suspended(sysfs):
        raise DriverMissing(
            "all GPUs are runtime-suspended and left asleep (--driver.wake-suspended wakes them)",
            "asleep",
        )
    _require_binding()
    # Imported late: `demo` and `--help` do without it.
    from gpu_bottleneck_exporter.driver.nvml import NvmlDriver  # noqa: PLC0415

    return NvmlDriver()


def _require_binding() -> None:
    """Raises DriverMissing where pynvml is another package's, or older than ours can use."""
    import pynvml  # noqa: PLC0415 - late, as above

    if hasattr(pynvml, _LATEST_NAME):
        return
    # Only here: it takes half a MiB.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        installed = version("nvidia-ml-py")
    except PackageNotFoundError:
        installed = "not"
    raise DriverMissing(
        f"{pynvml.__file__} is not of nvidia-ml-py {OLDEST_BINDING} or later "
        f"(installed: {installed})",
        "binding",
    )
