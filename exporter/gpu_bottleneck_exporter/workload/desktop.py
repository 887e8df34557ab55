"""Telling a desktop's processes from those of a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpu_bottleneck_exporter.driver.readings import Process, Processes
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.workload.identity import NOBODY, owner_in_cgroup


def without_desktop(reading: Processes, proc: Path) -> Processes:
    """`reading` without the processes of a desktop: X server, compositor, browser.

    They only draw, and are in no container and no job: nobody allocated the GPU for them. A
    process whose control group cannot be read is kept. `proc` is the host's.
    """
    kept = tuple(process for process in reading.processes if not _is_desktops(process, proc))
    return reading if len(kept) == len(reading.processes) else replace(reading, processes=kept)


def _is_desktops(process: Process, proc: Path) -> bool:
    if not process.draws_only:
        return False
    groups = read(proc / str(process.pid) / "cgroup")
    return groups is not None and owner_in_cgroup(groups) == NOBODY
