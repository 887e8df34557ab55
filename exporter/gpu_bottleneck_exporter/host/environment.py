"""Environment variables of processes, from /proc/PID/environ, of which a job chooses the size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from gpu_bottleneck_exporter.host.files import MANY_BYTES, MOST_BYTES
from gpu_bottleneck_exporter.host.process import environment, stat_of

_MAX_VALUE_CHARACTERS = 256
"""A host name has 253 at most, a PMIx namespace 255."""
_MAX_CACHED = 1024
"""Large environments whose variables are cached: more processes than hold the GPUs of a node."""


def variables(proc: Path, pid: int, names: tuple[str, ...]) -> Mapping[str, str]:
    """The variables `names` of a process, as far as set; anybody can set them to anything.

    Takes the same user or the permission to ptrace; empty without either. Where a namespace has
    many services, Kubernetes sets seven variables for each, and launchers append theirs: so more
    than 64 KiB are read as far as 1 MiB, but once per process, as that takes milliseconds.
    """
    part = environment(proc, pid, MOST_BYTES)
    if part.whole:
        return variables_in(part.text, names)
    stat = stat_of(proc, pid)
    try:
        return _of_large(proc, pid, stat and stat.started_ticks, hash(part.text), names)
    except LookupError:
        return variables_in(part.text, names)


@lru_cache(_MAX_CACHED)
def _of_large(
    proc: Path, pid: int, _started_ticks: int | None, _first_hash: int, names: tuple[str, ...]
) -> Mapping[str, str]:
    """The variables `names` in the first 1 MiB; raises LookupError, so that no failure is cached.

    `_started_ticks` and `_first_hash`, of the first 64 KiB, show a reused pid and an execve.
    """
    part = environment(proc, pid, MANY_BYTES)
    if not part.text:
        raise LookupError(pid)
    return variables_in(part.text, names)


def variables_in(text: str, names: tuple[str, ...]) -> Mapping[str, str]:
    """The variables `names` in `text`, entries ended by a NUL; of several, the first, as getenv."""
    alternatives = "|".join(map(re.escape, names))
    entries = re.finditer(rf"(?:^|\0)({alternatives})=([^\0]*)", text) if names else ()
    values: dict[str, str] = {}
    for entry in entries:
        values.setdefault(entry[1], entry[2][:_MAX_VALUE_CHARACTERS])
    return values
