"""Which descendants of a main are no workers."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from gpu_bottleneck_exporter.feeders.compilers import compiles
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import command_line, parse_stat

_HELPERS = ("forkserver", "resource_tracker")


def helpers(
    proc: Path, pids: Collection[int], mains: Collection[int], compilers: set[int]
) -> set[int]:
    """Those of `pids` that load nothing: multiprocessing's own, and compilers.

    What compiles, or was started by one of `compilers`, is added to these.
    """
    return {pid for pid in sorted(pids) if _helps(proc, pid, mains, compilers)}


def _helps(proc: Path, pid: int, mains: Collection[int], compilers: set[int]) -> bool:
    """Whether it compiles, or is multiprocessing's forkserver or resource tracker.

    Workers have their forkserver's command line, but it for a parent.
    """
    command = command_line(proc, pid).text
    stat = parse_stat(read(proc / str(pid) / "stat"))
    parent = stat.parent if stat else 0
    if compiles(command) or parent in compilers:
        compilers.add(pid)
        return True
    return parent in mains and any(
        f"from multiprocessing.{name} import main" in command for name in _HELPERS
    )
