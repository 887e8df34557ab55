"""Whether all of NVIDIA's GPUs are asleep, by their folders in sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_bottleneck_exporter.driver.nvml.open import all_suspended

NVIDIA, INTEL = "0x10de", "0x8086"
VGA, ACCELERATOR, AUDIO = "0x030000", "0x030200", "0x040300"


def add(sysfs: Path, address: str, vendor: str, kind: str, status: str | None) -> None:
    """A PCI device as the kernel shows it: a link from the bus to the device's own folder."""
    device = sysfs / "devices/pci0000:00" / address
    (device / "power").mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    if status is not None:
        (device / "power/runtime_status").write_text(f"{status}\n")
    bus = sysfs / "bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / address).symlink_to(device)


def test_a_laptop_with_two_display_controllers(tmp_path: Path) -> None:
    add(tmp_path, "0000:00:02.0", INTEL, VGA, "active")
    add(tmp_path, "0000:01:00.0", NVIDIA, VGA, "suspended")
    add(tmp_path, "0000:01:00.1", NVIDIA, AUDIO, "active")
    (tmp_path / "bus/pci/devices/0000:02:00.0").symlink_to(tmp_path / "just-removed")
    assert all_suspended(tmp_path)


@pytest.mark.parametrize(
    "status", ["active", "suspending", "resuming", "unsupported", "error", "", None]
)
def test_one_gpu_that_is_not_asleep_is_enough_to_open_the_driver(
    tmp_path: Path, status: str | None
) -> None:
    add(tmp_path, "0000:01:00.0", NVIDIA, VGA, "suspended")
    add(tmp_path, "0000:02:00.0", NVIDIA, ACCELERATOR, status)
    assert not all_suspended(tmp_path)


def test_without_nvidia_gpus_none_is_asleep(tmp_path: Path) -> None:
    add(tmp_path, "0000:00:02.0", INTEL, VGA, "suspended")
    assert not all_suspended(tmp_path)
    assert not all_suspended(tmp_path / "missing")
