"""Pressure stall information: /proc/pressure and cgroup v2 `*.pressure` files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

RESOURCES = ("cpu", "io", "memory")
_TOTAL = re.compile(r"^(some|full) .*\btotal=([0-9]+)$", re.MULTILINE)


def stalled_ns(text: str) -> Mapping[str, int]:
    """Nanoseconds stalled by kind (some, full), from the `total=` fields (µs) of a PSI file.

    Kinds that the file lacks are left out: before Linux 5.13, `full` of cpu.
    """
    return {kind: int(total) * 1000 for kind, total in _TOTAL.findall(text)}


def stalled_by_resource(text_of: Callable[[str], str]) -> dict[tuple[str, str], int]:
    """Nanoseconds stalled by (resource, kind); `text_of` reads a resource's PSI file."""
    return {
        (resource, kind): value
        for resource in RESOURCES
        for kind, value in stalled_ns(text_of(resource)).items()
    }
