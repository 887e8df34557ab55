"""Pressure stall information: /proc/pressure and cgroup v2 `*.pressure` files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

RESOURCES = ("cpu", "io", "memory")
KINDS = ("some", "full")


def stalled_ns(text: str | bytes) -> Mapping[str, int]:
    """Nanoseconds stalled by kind (some, full), from the `total=` fields (µs) of a PSI file.

    Kinds that the file lacks are left out: before Linux 5.13, `full` of cpu.
    """
    lines = (text.decode() if isinstance(text, bytes) else text).splitlines()
    totals: dict[str, int] = {}
    for line in lines:
        kind, _, rest = line.partition(" ")
        _, found, total = rest.rpartition("total=")
        if kind in KINDS and found and total.isdigit():
            totals[kind] = int(total) * 1000
    return totals


def stalled_by_resource(text_of: Callable[[str], str | bytes | None]) -> dict[tuple[str, str], int]:
    """Nanoseconds stalled by (resource, kind); `text_of` reads a resource's PSI file."""
    return {
        (resource, kind): value
        for resource in RESOURCES
        for kind, value in stalled_ns(text_of(resource) or "").items()
    }
