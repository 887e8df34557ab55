"""Which GPU a device of the kubelet's is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.workload.podresources import Given, Holder

MOST_HOLDERS = 32
"""Of one GPU."""
_REPLICA = re.compile(r"::[0-9]+$")
"""NVIDIA's plugin, of a GPU that it shares: `GPU-<uuid>::3`."""
_NODE = re.compile(r"nvidia([0-9]{1,4})(?:/gi([0-9]{1,4}))?(?:/vgpu[0-9]+)?")
"""GKE's plugin, by the device node /dev/nvidia0: `nvidia0`, `nvidia0/gi1`, both with `/vgpu2`."""
_CLAIMED = re.compile(
    r"(?:k8s\.gpu\.nvidia\.com/(?:device=|claim=[0-9a-f-]{36}-))?(gpu-.+)",
)
"""Of a claim: a name, or CDI's `k8s.gpu.nvidia.com/claim=<claim's uid>-<name>`."""
_NUMBERED = re.compile(r"gpu-([0-9]{1,4})(?:-mig-(.+))?")
_PLACEMENT = re.compile(r"(?:-[0-9]+)+$")
_MINOR = re.compile(r"^Device Minor:\s*([0-9]{1,4})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU or MIG instance; `minor`: the number of its device node, the parent's under MIG."""

    who: Identity
    minor: int | None


def holders(
    devices: Iterable[Given], identities: Sequence[Identity], minors: Mapping[str, int]
) -> dict[str, tuple[Holder, ...]]:
    """Who was given each of the GPUs `identities`, by uuid; sorted.

    `minors`: numbers of device nodes by PCI bus id, of `read_minors`. A device that may
    be one of several GPUs is none.
    """
    gpus = [Gpu(who, minors.get(who.pci_bus_id or "")) for who in identities]
    found: dict[str, set[Holder]] = {}
    for device in devices:
        matching = _claimed(device.device, gpus) if device.claimed else _plain(device.device, gpus)
        if len(matching) == 1:
            found.setdefault(matching[0].who.uuid, set()).add(device.holder)
    return {uuid: tuple(sorted(having)[:MOST_HOLDERS]) for uuid, having in found.items()}


def read_minors(proc: Path, identities: Iterable[Identity]) -> dict[str, int]:
    """Numbers of the device nodes of GPUs, by PCI bus id, as the driver tells in `proc`."""
    found: dict[str, int] = {}
    for bus_id in {who.pci_bus_id for who in identities if who.pci_bus_id}:
        # NVML writes the domain with eight digits, the driver's folder with four.
        domain, _, place = bus_id.lower().partition(":")
        folder = proc / "driver/nvidia/gpus" / f"{domain.lstrip('0').zfill(4)}:{place}"
        if told := _MINOR.search(read(folder / "information") or ""):
            found[bus_id] = int(told[1])
    return found


def _plain(device: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    if node := _NODE.fullmatch(device):
        of_node = [gpu for gpu in gpus if gpu.minor == int(node[1])]
        if node[2] is None:
            return [gpu for gpu in of_node if gpu.who.parent_uuid is None]
        return [gpu for gpu in of_node if gpu.who.gpu_instance == int(node[2])]
    return _by_uuid(_REPLICA.sub("", device), gpus)


def _claimed(device: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    name = _CLAIMED.fullmatch(device)
    if name is None:
        return []
    numbered = _NUMBERED.fullmatch(name[1])
    if numbered is None:
        return _by_uuid(name[1], gpus)
    # By the driver's index in older versions, by the device node's number in newer ones.
    number = int(numbered[1])
    of_gpu = [gpu for gpu in gpus if gpu.who.index == number == gpu.minor]
    if numbered[2] is None:
        return [gpu for gpu in of_gpu if gpu.who.parent_uuid is None]
    return _by_profile(_PLACEMENT.sub("", numbered[2]), of_gpu)


def _by_profile(profile: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """MIG instances of a profile, whose place on the GPU is not known here.

    Older versions name a profile by a number: any instance.
    """
    instances = [gpu for gpu in gpus if gpu.who.parent_uuid is not None]
    if profile.isdecimal():
        return instances
    return [gpu for gpu in instances if _in_a_name(gpu.who.mig_profile or "") == profile]


def _in_a_name(profile: str) -> str:
    """`1g.10gb+me` as the names of devices have it."""
    return profile.lower().replace(".", "").replace("+", "-")


def _by_uuid(uuid: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    return [gpu for gpu in gpus if gpu.who.uuid and gpu.who.uuid.lower() == uuid.lower()]
