"""The kubelet's answer to v1.PodResourcesLister/List: which container was given which device.

Parsed from protobuf's wire format by hand, as few of its fields are needed. Their numbers, from the
kubelet's podresources/v1/api.proto: pod {name 1, namespace 2, containers 3 {name 1, devices 2
{resource_name 1, device_ids 2}, dynamic_resources 5 {claim_resources 4 {cdi_devices 1, driver_name
2, device_name 4}}}}.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

METHOD = "/v1.PodResourcesLister/List"
_VARINT, _BYTES = 0, 2
"""Wire types of protobuf, in the low three bits of a field's key."""
_FIXED = {1: 8, 5: 4}
"""Bytes of a value by the other wire types."""
_MOST_BYTES = 10
"""Of a varint, of seven bits each."""
_MORE = 0x80
"""Set in all bytes of a varint except the last."""
Fields = defaultdict[int, list[bytes]]
"""The values of a message by their field's number."""


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
    for pod in map(_fields, _fields(reply)[1]):
        name, namespace = _text(pod, 1), _text(pod, 2)
        for container in map(_fields, pod[3]):
            holder = Holder(namespace, name, _text(container, 1))
            if all(holder):
                yield from (Given(holder, *found) for found in _devices(container))
                yield from (Given(holder, *found) for found in _claimed(container))


def _devices(container: Fields) -> Iterator[tuple[str, str]]:
    for device in map(_fields, container[2]):
        if resource := _text(device, 1):
            yield from ((resource, name.decode()) for name in device[2])


def _claimed(container: Fields) -> Iterator[tuple[str, str, str]]:
    """Drivers, names and CDI names of claimed devices; an older kubelet sends only the last."""
    for claim in map(_fields, container[5]):
        for resource in map(_fields, claim[4]):
            driver, device = _text(resource, 2), _text(resource, 4)
            names = [_text(_fields(cdi), 1) for cdi in resource[1]]
            if driver and device:
                own = (name for name in names if name.endswith(f"-{device}"))
                yield driver, device, next(own, "")
            elif not driver:
                yield from (("", name, "") for name in names)


def _text(message: Fields, number: int) -> str:
    """The last value of field `number`, which counts in protobuf; empty if there is none."""
    return message[number][-1].decode() if message[number] else ""


def _fields(message: bytes) -> Fields:
    """Strings and messages in `message` by their field's number. Raises ValueError."""
    found: Fields = defaultdict(list)
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            _, end = _varint(message, at)
        elif kind == _BYTES:
            length, at = _varint(message, at)
            end = at + length
        elif kind in _FIXED:
            end = at + _FIXED[kind]
        else:
            raise ValueError(f"unknown wire type: {kind}")
        if end > len(message):
            raise ValueError("the message is truncated")
        if kind == _BYTES:
            found[key >> 3].append(message[at:end])
        at = end
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The varint at `at`, and where it ends. Raises ValueError."""
    number = 0
    for place, byte in enumerate(message[at : at + _MOST_BYTES]):
        number |= (byte & ~_MORE) << 7 * place
        if byte < _MORE:
            return number, at + place + 1
    raise ValueError("a number is missing")
