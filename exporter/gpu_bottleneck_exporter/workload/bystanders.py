"""Telling the processes of a desktop and of the driver from those of a job."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from gpu_bottleneck_exporter.driver.readings import Process, Processes
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import real_uid
from gpu_bottleneck_exporter.workload.identity import NOBODY, owner_in_cgroup

_STATUS = re.compile(r"Name:\t(.*)\n(?:.*\n)*?PPid:\t([0-9]+)\n")


def without_bystanders(reading: Processes, proc: Path, daemons: Collection[str]) -> Processes:
    """`reading` without the processes of a desktop and without the driver's own `daemons`.

    X server, compositor and browser only draw, and are in no container and no job: nobody
    allocated the GPU for them. Daemons hold it for others. A process whose files cannot be read
    is kept. `proc` is the host's.
    """
    kept = tuple(
        process
        for process in reading.processes
        if not (_is_desktops(process, proc) or _is_daemon(proc, process.pid, daemons))
    )
    return reading if len(kept) == len(reading.processes) else replace(reading, processes=kept)


def _is_desktops(process: Process, proc: Path) -> bool:
    if not process.draws_only:
        return False
    groups = read(proc / str(process.pid) / "cgroup")
    return groups is not None and owner_in_cgroup(groups) == NOBODY


def _is_daemon(proc: Path, pid: int, names: Collection[str], *, started: bool = True) -> bool:
    """Whether it is root's, or `started` by root's and runs as its client's user.

    Anybody can take such a name, but only root can start a process as another user.
    """
    status = (read(proc / str(pid) / "status") or "") if names else ""
    found = _STATUS.match(status)
    if found is None or found[1] not in names:
        return False
    return real_uid(status) == 0 or (
        started and _is_daemon(proc, int(found[2]), names, started=False)
    )
