"""Opening NVIDIA's driver."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.driver.nvml.remedies import remedy
from gpu_bottleneck_exporter.driver.protocol import Driver, DriverMissing, Recording
from gpu_bottleneck_exporter.host.files import read

OLDEST_BINDING = "12.570.86"
"""Oldest nvidia-ml-py with all names in use, also in pyproject.toml."""


def open_nvml(sysfs: Path, *, wake_suspended: bool) -> Driver:
    """NVIDIA's opened driver. Raises DriverMissing, DriverUnusable, or another DriverError."""
    _check(sysfs, wake_suspended=wake_suspended)
    from gpu_bottleneck_exporter.driver.nvml.driver import NvmlDriver  # noqa: PLC0415

    return NvmlDriver()


def open_recording(sysfs: Path, *, wake_suspended: bool, masked: bool) -> Recording:
    """A capture of NVIDIA's library. Raises as `open_nvml`."""
    _check(sysfs, wake_suspended=wake_suspended)
    from gpu_bottleneck_exporter.driver.nvml.recording import NvmlRecording  # noqa: PLC0415

    return NvmlRecording(masked=masked)


def _check(sysfs: Path, *, wake_suspended: bool) -> None:
    """Raise DriverMissing if GPUs must not wake, or the binding is another package's."""
    if not wake_suspended and all_suspended(sysfs):
        raise DriverMissing(
            "all GPUs are runtime-suspended; --driver.wake-suspended wakes them",
            remedy("asleep"),
        )
    # Imported late: another package's pynvml may lack names.
    import pynvml  # noqa: PLC0415

    if not hasattr(pynvml, "nvmlDeviceGetTemperatureV"):
        raise DriverMissing(
            f"{pynvml.__file__} is not of nvidia-ml-py {OLDEST_BINDING} or later",
            remedy("binding"),
        )


def all_suspended(sysfs: Path) -> bool:
    """Whether all NVIDIA GPUs are suspended by runtime power management, and exist.

    To open the driver keeps them awake, at 5 to 25 W.
    """
    devices = (sysfs / "bus/pci/devices").glob("*")
    of_nvidia = (device for device in devices if _text(device / "vendor") == "0x10de")
    # The class of displays.
    gpus = [one for one in of_nvidia if _text(one / "class").startswith("0x03")]
    return bool(gpus) and all(_text(gpu / "power/runtime_status") == "suspended" for gpu in gpus)


def _text(path: Path) -> str:
    return (read(path) or "").strip()
