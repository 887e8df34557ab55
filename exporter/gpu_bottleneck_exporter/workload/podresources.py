"""The kubelet's answer to v1.PodResourcesLister/List: which container was given which device.

Read from protobuf's wire format, as it takes six of its messages' fields only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

METHOD = "/v1.PodResourcesLister/List"
DRA_DRIVER = "gpu.nvidia.com"
"""NVIDIA's driver for Dynamic Resource Allocation."""
_RESOURCES = "nvidia.com/"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MOST_SHIFT = 63
_MORE = 0x80


class Holder(NamedTuple):
    """A container that was given a GPU."""

    namespace: str
    pod: str
    container: str


class Given(NamedTuple):
    """A device as the kubelet calls it, by a device plugin or, if `claimed`, by a claim (DRA)."""

    holder: Holder
    device: str
    claimed: bool


def given(reply: bytes) -> Iterator[Given]:
    """NVIDIA's devices in `reply`, with their holders.

    Raises ValueError if it is no such message.
    """
    for pod in _messages(reply, 1):
        name, namespace = _text(pod, 1), _text(pod, 2)
        for container in _messages(pod, 3):
            holder = Holder(namespace, name, _text(container, 1))
            if all(holder):
                yield from (Given(holder, name, claimed=False) for name in _devices(container))
                yield from (Given(holder, name, claimed=True) for name in _claimed(container))


def _devices(container: bytes) -> Iterator[str]:
    for device in _messages(container, 2):
        if _text(device, 1).startswith(_RESOURCES):
            yield from (identity.decode() for identity in _messages(device, 2))


def _claimed(container: bytes) -> Iterator[str]:
    """Names of devices; those of CDI where an older kubelet tells no others."""
    for dynamic in _messages(container, 5):
        for resource in _messages(dynamic, 4):
            driver, device = _text(resource, 2), _text(resource, 4)
            if driver == DRA_DRIVER and device:
                yield device
            elif not driver:
                yield from (_text(cdi, 1) for cdi in _messages(resource, 1))


def _text(message: bytes, number: int) -> str:
    """A field's last value, as protobuf has it; empty where there is none."""
    *_, last = (b"", *_messages(message, number))
    return last.decode()


def _messages(message: bytes, number: int) -> Iterator[bytes]:
    """Values of field `number`: texts or messages."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise ValueError(f"no such wire type: {kind}")
        value, at = message[at : at + length], at + length
        if at > len(message):
            raise ValueError("the message is cut short")
        if kind == _BYTES and key >> 3 == number:
            yield value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    number = 0
    for shift in range(0, _MOST_SHIFT + 1, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        number |= (byte & ~_MORE) << shift
        if byte < _MORE:
            return number, at
    raise ValueError("no number where one must be")
