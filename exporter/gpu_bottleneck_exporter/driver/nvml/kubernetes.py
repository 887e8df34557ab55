"""The kubelet's names of NVIDIA's GPUs, by NVIDIA's and GKE's device plugin and the DRA driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.host.files import MAX_TABLE_BYTES, read

_RESOURCES = "nvidia.com/"
"""Resources `gpu`, `gpu.shared`, and MIG profiles such as `mig-1g.10gb`."""
_DRA_DRIVER = "gpu.nvidia.com"
"""Driver for Dynamic Resource Allocation."""
_REPLICA = re.compile(r"::[0-9]+$")
"""Suffix for a shared GPU: `GPU-<uuid>::3`."""
_NODE = re.compile(r"nvidia([0-9]{1,4})(?:/gi([0-9]{1,4}))?(?:/vgpu[0-9]+)?")
"""GKE's device node: `nvidia0`, `nvidia0/gi1`; either may end in `/vgpu2`."""
_CLAIMED = re.compile(r"(?:k8s\.gpu\.nvidia\.com/(?:device=|claim=[0-9a-f-]{36}-))?(gpu-.+)")
"""A name, or CDI's `k8s.gpu.nvidia.com/claim=<claim's uid>-<name>`."""
_NUMBERED = re.compile(r"gpu-([0-9]{1,4})(?:-mig-(.+))?")
"""Minor of the device node, in all DRA drivers since 25.3.0."""
_CAPABILITY = re.compile(r"/dev/nvidia-caps/nvidia-cap([0-9]{1,5})")
MIG_MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
"""GPU instances by capability minor, constant while the driver runs."""
_MIG_MINOR = re.compile(r"^gpu([0-9]+)/gi([0-9]+)/(?:ci[0-9]+/)?access ([0-9]+)$", re.MULTILINE)
_PLACEMENT = re.compile(r"(?:-[0-9]+)+$")


def gpus_of_device(source: str, device: str, gpus: Sequence[Identity]) -> list[Identity]:
    """See `Driver.gpus_of_device`."""
    if source.startswith(_RESOURCES):
        return _plain(device, gpus)
    return _claimed(device, gpus) if source in (_DRA_DRIVER, "") else []


def _plain(device: str, gpus: Sequence[Identity]) -> list[Identity]:
    if node := _NODE.fullmatch(device):
        return _at(gpus, node[1], node[2])
    return _by_uuid(_REPLICA.sub("", device), gpus)


def _at(gpus: Sequence[Identity], minor: str, instance: str | None) -> list[Identity]:
    """The GPU with this device node, or its MIG GPU instance `instance`."""
    place = int(minor), instance and int(instance)
    return [gpu for gpu in gpus if (gpu.minor, gpu.gpu_instance) == place]


_instances: dict[str, tuple[str, str]] = {}
"""`MIG_MINORS` by minor."""


def _claimed(device: str, gpus: Sequence[Identity]) -> list[Identity]:
    if capability := _CAPABILITY.fullmatch(device):
        if not _instances:
            lines = _MIG_MINOR.findall(read(MIG_MINORS, MAX_TABLE_BYTES) or "")
            _instances.update({number: (minor, instance) for minor, instance, number in lines})
        place = _instances.get(capability[1])
        return _at(gpus, *place) if place else []
    name = _CLAIMED.fullmatch(device)
    if name is None:
        return []
    numbered = _NUMBERED.fullmatch(name[1])
    if numbered is None:
        return _by_uuid(name[1], gpus)
    if numbered[2] is None:
        return _at(gpus, numbered[1], None)
    of_gpu = [gpu for gpu in gpus if gpu.minor == int(numbered[1])]
    return _by_profile(_PLACEMENT.sub("", numbered[2]), of_gpu)


def _by_profile(profile: str, gpus: Sequence[Identity]) -> list[Identity]:
    """MIG instances with this profile, in unknown places; any if older versions number it."""
    instances = [gpu for gpu in gpus if gpu.parent_uuid is not None]
    if profile.isdecimal():
        return instances
    return [gpu for gpu in instances if _in_a_name(gpu.mig_profile or "") == profile]


def _in_a_name(profile: str) -> str:
    """Form of a profile such as `1g.10gb+me` in device names: `1g10gb-me`."""
    return profile.lower().replace(".", "").replace("+", "-")


def _by_uuid(uuid: str, gpus: Sequence[Identity]) -> list[Identity]:
    return [gpu for gpu in gpus if gpu.uuid and gpu.uuid.lower() == uuid.lower()]
