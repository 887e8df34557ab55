"""The kubelet's answer to v1.PodResourcesLister/List: which container was given which device.

Parsed from protobuf's wire format by hand, as few of its fields are needed. Their numbers, from the
kubelet's podresources/v1/api.proto: pod {name 1, namespace 2, containers 3 {name 1, devices 2
{resource_name 1, device_ids 2}, dynamic_resources 5 {claim_resources 4 {cdi_devices 1, driver_name
2, device_name 4}}}}.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

METHOD = "/v1.PodResourcesLister/List"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf, in the low three bits of a field's key."""
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MOST_SHIFT = 63
"""A varint has ten bytes at most, of seven bits each."""
_MORE = 0x80
"""Set in all bytes of a varint except the last."""


class Holder(NamedTuple):
    """A container that was given a GPU."""

    namespace: str
    pod: str
    container: str


class Given(NamedTuple):
    """A device by the kubelet's name for it."""

    holder: Holder
    source: str
    """A device plugin's resource, a DRA driver, or "" for a claim without a driver's name."""
    device: str
    cdi: str = ""
    """Its name in CDI's files, if it has another one."""
    nodes: tuple[str, ...] = ()
    """Its device nodes, where such a file tells them."""


def given(reply: bytes) -> Iterator[Given]:
    """The devices in `reply`, GPUs or not, with their holders. Raises ValueError if malformed."""
    for pod in _messages(reply, 1):
        name, namespace = _text(pod, 1), _text(pod, 2)
        for container in _messages(pod, 3):
            holder = Holder(namespace, name, _text(container, 1))
            if all(holder):
                yield from (Given(holder, *found) for found in _devices(container))
                yield from (Given(holder, *found) for found in _claimed(container))


def _devices(container: bytes) -> Iterator[tuple[str, str]]:
    for device in _messages(container, 2):
        if resource := _text(device, 1):
            yield from ((resource, identity.decode()) for identity in _messages(device, 2))


def _claimed(container: bytes) -> Iterator[tuple[str, str, str]]:
    """Drivers, names and CDI names of claimed devices; an older kubelet sends only the last."""
    for dynamic in _messages(container, 5):
        for resource in _messages(dynamic, 4):
            driver, device = _text(resource, 2), _text(resource, 4)
            names = [_text(cdi, 1) for cdi in _messages(resource, 1)]
            if driver and device:
                own = (name for name in names if name.endswith(f"-{device}"))
                yield driver, device, next(own, "")
            elif not driver:
                yield from (("", name, "") for name in names)


def _text(message: bytes, number: int) -> str:
    """The last value of field `number`, which counts in protobuf; empty if there is none."""
    *_, last = (b"", *_messages(message, number))
    return last.decode()


def _messages(message: bytes, number: int) -> Iterator[bytes]:
    """Values of field `number`: strings or messages. Raises ValueError."""
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
            raise ValueError(f"unknown wire type: {kind}")
        value, at = message[at : at + length], at + length
        if at > len(message):
            raise ValueError("the message is truncated")
        if kind == _BYTES and key >> 3 == number:
            yield value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The varint at `at`, and where it ends. Raises ValueError."""
    number = 0
    for shift in range(0, _MOST_SHIFT + 1, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        number |= (byte & ~_MORE) << shift
        if byte < _MORE:
            return number, at
    raise ValueError("a number is missing")
