"""Environment variables of processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from gpu_bottleneck_exporter.host.files import MAX_TABLE_BYTES, MAX_TEXT_BYTES
from gpu_bottleneck_exporter.host.process import environment, stat_of


def variables(proc: Path, pid: int, names: tuple[str, ...]) -> Mapping[str, str]:
    """The variables `names` of a process, which its user chooses; empty without permission.

    More than 64 KiB (seven variables per Kubernetes service) are read up to 1 MiB, and cached.
    """
    part = environment(proc, pid, MAX_TEXT_BYTES)
    if part.whole:
        return variables_in(part.text, names)
    stat = stat_of(proc, pid)
    try:
        return _of_large(proc, pid, stat and stat.started_ticks, hash(part.text), names)
    except LookupError:
        return variables_in(part.text, names)


@lru_cache(1024)  # more than the processes on a node's GPUs
def _of_large(
    proc: Path, pid: int, _started_ticks: int | None, _first_hash: int, names: tuple[str, ...]
) -> Mapping[str, str]:
    """The first 1 MiB; raises LookupError, so that no failure is cached.

    `_started_ticks` and `_first_hash` show another process or program.
    """
    part = environment(proc, pid, MAX_TABLE_BYTES)
    if not part.text:
        raise LookupError(pid)
    return variables_in(part.text, names)


def variables_in(text: str, names: tuple[str, ...]) -> Mapping[str, str]:
    """The variables `names` in NUL-terminated entries; the first of several, as getenv."""
    alternatives = "|".join(map(re.escape, names))
    entries = re.finditer(rf"(?:^|\0)({alternatives})=([^\0]*)", text) if names else ()
    values: dict[str, str] = {}
    # Host names have at most 253 characters, PMIx namespaces 255.
    for entry in entries:
        values.setdefault(entry[1], entry[2][:256])
    return values
