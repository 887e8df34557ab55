"""The kubelet's names of NVIDIA's GPUs, by device plugins (NVIDIA, GKE) and DRA driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.host.files import MAX_TABLE_BYTES, read

MIG_MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
"""GPU instances by capability minor, constant while the driver runs."""


def gpus_of_device(source: str, device: str, gpus: Sequence[Identity]) -> list[Identity]:
    """See `Driver.gpus_of_device`."""
    # Resources `gpu`, `gpu.shared`, and MIG profiles such as `mig-1g.10gb`.
    if source.startswith("nvidia.com/"):
        return _plain(device, gpus)
    # The driver for Dynamic Resource Allocation.
    return _claimed(device, gpus) if source in ("gpu.nvidia.com", "") else []


def _plain(device: str, gpus: Sequence[Identity]) -> list[Identity]:
    # GKE's device node: `nvidia0`, `nvidia0/gi1`; either may end in `/vgpu2`.
    if node := re.fullmatch(r"nvidia([0-9]{1,4})(?:/gi([0-9]{1,4}))?(?:/vgpu[0-9]+)?", device):
        return _at(gpus, node[1], node[2])
    # A shared GPU: `GPU-<uuid>::3`.
    return _by_uuid(re.sub(r"::[0-9]+$", "", device), gpus)


def _at(gpus: Sequence[Identity], minor: str, instance: str | None) -> list[Identity]:
    """The GPU with this device node, or its MIG GPU instance `instance`."""
    place = int(minor), instance and int(instance)
    return [gpu for gpu in gpus if (gpu.minor, gpu.gpu_instance) == place]


_instances: dict[str, tuple[str, str]] = {}
"""`MIG_MINORS` by minor."""


def _claimed(device: str, gpus: Sequence[Identity]) -> list[Identity]:
    if capability := re.fullmatch(r"/dev/nvidia-caps/nvidia-cap([0-9]{1,5})", device):
        if not _instances:
            line = r"^gpu([0-9]+)/gi([0-9]+)/(?:ci[0-9]+/)?access ([0-9]+)$"
            table = read(MIG_MINORS, MAX_TABLE_BYTES) or ""
            rows = re.findall(line, table, re.MULTILINE)
            _instances.update({number: (minor, instance) for minor, instance, number in rows})
        place = _instances.get(capability[1])
        return _at(gpus, *place) if place else []
    # A name, or CDI's `k8s.gpu.nvidia.com/claim=<claim's uid>-<name>`.
    claimed = r"(?:k8s\.gpu\.nvidia\.com/(?:device=|claim=[0-9a-f-]{36}-))?(gpu-.+)"
    name = re.fullmatch(claimed, device)
    if name is None:
        return []
    # The minor of the device node, since DRA driver 25.3.0.
    numbered = re.fullmatch(r"gpu-([0-9]{1,4})(?:-mig-(.+))?", name[1])
    if numbered is None:
        return _by_uuid(name[1], gpus)
    if numbered[2] is None:
        return _at(gpus, numbered[1], None)
    of_gpu = [gpu for gpu in gpus if gpu.minor == int(numbered[1])]
    without_placement = re.sub(r"(?:-[0-9]+)+$", "", numbered[2])
    return _by_profile(without_placement, of_gpu)


def _by_profile(profile: str, gpus: Sequence[Identity]) -> list[Identity]:
    """MIG instances with this profile, in unknown places."""
    instances = [gpu for gpu in gpus if gpu.parent_uuid is not None]
    if profile.isdecimal():
        return instances
    return [gpu for gpu in instances if _in_a_name(gpu.mig_profile or "") == profile]


def _in_a_name(profile: str) -> str:
    """`1g.10gb+me` in device names: `1g10gb-me`."""
    return profile.lower().replace(".", "").replace("+", "-")


def _by_uuid(uuid: str, gpus: Sequence[Identity]) -> list[Identity]:
    return [gpu for gpu in gpus if gpu.uuid and gpu.uuid.lower() == uuid.lower()]
