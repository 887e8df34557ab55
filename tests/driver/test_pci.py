"""Whether all of NVIDIA's GPUs are asleep, by their folders in sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_bottleneck_exporter.driver.nvml.open import all_suspended
from support.trees import lay

NVIDIA, INTEL = "0x10de", "0x8086"
VGA, ACCELERATOR, AUDIO = "0x030000", "0x030200", "0x040300"


def bus(sysfs: Path, *devices: tuple[str, str, str | None]) -> Path:
    """PCI devices as the kernel shows them: links from the bus to the devices' own folders."""
    links = lay(sysfs, {"bus/pci/devices/none": ""}) / "bus/pci/devices"
    for at, (vendor, kind, status) in enumerate(devices):
        files = {"vendor": f"{vendor}\n", "class": f"{kind}\n", "power/none": ""}
        files |= {} if status is None else {"power/runtime_status": f"{status}\n"}
        (links / f"0000:0{at}:00.0").symlink_to(lay(sysfs / f"devices/{at}", files))
    return sysfs


def test_a_laptop_with_two_display_controllers(tmp_path: Path) -> None:
    mine = (INTEL, VGA, "active"), (NVIDIA, VGA, "suspended"), (NVIDIA, AUDIO, "active")
    bus(tmp_path, *mine)
    (tmp_path / "bus/pci/devices/0000:09:00.0").symlink_to(tmp_path / "just-removed")
    assert all_suspended(tmp_path)


@pytest.mark.parametrize(
    "status", ["active", "suspending", "resuming", "unsupported", "error", "", None]
)
def test_one_gpu_that_is_not_asleep_is_enough_to_open_the_driver(
    tmp_path: Path, status: str | None
) -> None:
    two = (NVIDIA, VGA, "suspended"), (NVIDIA, ACCELERATOR, status)
    assert not all_suspended(bus(tmp_path, *two))


def test_without_nvidia_gpus_none_is_asleep(tmp_path: Path) -> None:
    assert not all_suspended(bus(tmp_path, (INTEL, VGA, "suspended")))
    assert not all_suspended(tmp_path / "missing")
