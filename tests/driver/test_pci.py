from __future__ import annotations

from pathlib import Path

import pytest

from gpu_bottleneck_exporter.driver.nvml.pci import all_suspended, nvidia_gpus

NVIDIA, INTEL = "0x10de", "0x8086"
VGA, ACCELERATOR, AUDIO, BRIDGE = "0x030000", "0x030200", "0x040300", "0x060400"


def add(sysfs: Path, address: str, vendor: str, kind: str, status: str | None = "active") -> Path:
    """A PCI device as the kernel shows it: a link from the bus to the device's own folder."""
    device = sysfs / "devices/pci0000:00" / address
    (device / "power").mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    if status is not None:
        (device / "power/runtime_status").write_text(f"{status}\n")
    bus = sysfs / "bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    link = bus / address
    link.symlink_to(device)
    return link


def test_a_laptop_with_two_display_controllers(tmp_path: Path) -> None:
    add(tmp_path, "0000:00:02.0", INTEL, VGA)
    gpu = add(tmp_path, "0000:01:00.0", NVIDIA, VGA, "suspended")
    add(tmp_path, "0000:01:00.1", NVIDIA, AUDIO, "active")
    assert nvidia_gpus(tmp_path) == [gpu]
    assert all_suspended(tmp_path)


def test_a_server_with_gpus_and_their_switches(tmp_path: Path) -> None:
    second = add(tmp_path, "0000:53:00.0", NVIDIA, ACCELERATOR)
    first = add(tmp_path, "0000:18:00.0", NVIDIA, ACCELERATOR)
    add(tmp_path, "0000:05:00.0", NVIDIA, "0x068000")
    add(tmp_path, "0000:17:00.0", "0x1000", BRIDGE)
    assert nvidia_gpus(tmp_path) == [first, second]
    assert not all_suspended(tmp_path)


@pytest.mark.parametrize("status", ["active", "suspending", "resuming", "unsupported", "error", ""])
def test_one_gpu_that_is_not_asleep_is_enough_to_open_the_driver(
    tmp_path: Path, status: str
) -> None:
    add(tmp_path, "0000:01:00.0", NVIDIA, VGA, "suspended")
    add(tmp_path, "0000:02:00.0", NVIDIA, ACCELERATOR, status)
    assert not all_suspended(tmp_path)


def test_a_kernel_without_runtime_power_management_has_none_asleep(tmp_path: Path) -> None:
    add(tmp_path, "0000:01:00.0", NVIDIA, VGA, status=None)
    assert not all_suspended(tmp_path)


def test_without_nvidia_gpus_none_is_asleep(tmp_path: Path) -> None:
    add(tmp_path, "0000:00:02.0", INTEL, VGA, "suspended")
    assert nvidia_gpus(tmp_path) == []
    assert not all_suspended(tmp_path)


def test_a_sysfs_without_a_pci_bus(tmp_path: Path) -> None:
    assert nvidia_gpus(tmp_path) == []
    assert nvidia_gpus(tmp_path / "missing") == []
    assert not all_suspended(tmp_path)


def test_a_device_that_was_just_removed(tmp_path: Path) -> None:
    gpu = add(tmp_path, "0000:01:00.0", NVIDIA, VGA, "suspended")
    (tmp_path / "bus/pci/devices/0000:02:00.0").symlink_to(tmp_path / "gone")
    assert nvidia_gpus(tmp_path) == [gpu]
    assert all_suspended(tmp_path)
