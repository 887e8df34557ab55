"""NVIDIA GPUs on the PCI bus, found in sysfs without waking them."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.host.files import read

_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"


def nvidia_gpus(sysfs: Path) -> list[Path]:
    """Folders of NVIDIA display controllers below `sysfs`/bus/pci/devices."""
    devices = sorted((sysfs / "bus/pci/devices").glob("*"))
    return [
        device
        for device in devices
        if _text(device / "vendor") == _NVIDIA
        and _text(device / "class").startswith(_DISPLAY_CLASS)
    ]


def all_suspended(sysfs: Path) -> bool:
    """Whether there are NVIDIA GPUs, and runtime power management has suspended all of them.

    Opening the driver would wake them and keep them awake, which costs a laptop 5 to 25 W.
    """
    states = [_text(device / "power/runtime_status") for device in nvidia_gpus(sysfs)]
    return bool(states) and all(state == "suspended" for state in states)


def _text(path: Path) -> str:
    return (read(path) or "").strip()
