"""Tells the runs of a Slurm job apart: one that is requeued keeps its number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpu_bottleneck_exporter.host.cgroup import find_group, hierarchy, memberships
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.workload.owners import claims_of

_NUMBER, _COUNT = "SLURM_JOB_ID", "SLURM_RESTART_COUNT"
_GROUP = re.compile(r".*?/(?:job_[0-9]+|s[0-9A-HJKMNP-TV-Z]{13})(?=/|$)")
"""The path of a control group down to the folder of the job."""


def run_of(proc: Path, sysfs: Path, pid: int) -> dict[str, str]:
    """What identifies the run of the Slurm job of process `pid`, as far as known.

    `restarts`: how often the job was requeued, by the environment that Slurm gives it, which the
    job may change. `group`: inode of the job's control group and the boot; slurmd creates it anew
    for each run and, on nodes with neither batch script nor extern step, for each step.
    """
    variables, run = claims_of(proc, pid, (_NUMBER, _COUNT)), {}
    count = variables.get(_COUNT, "0" if _NUMBER in variables else "")
    if count.isdecimal():
        run["restarts"] = count
    groups = memberships(read(f"{proc}/{pid}/cgroup") or "")
    paths = ((names, found[0]) for names, path in groups if (found := _GROUP.match(path)))
    folders = (find_group(hierarchy(sysfs, names), path) for names, path in paths)
    with suppress(OSError):
        if folder := next(filter(None, folders), None):
            boot = read(f"{proc}/sys/kernel/random/boot_id") or ""
            run["group"] = f"{folder.stat().st_ino} {boot.strip()}"
    return run


def is_later(run: Mapping[str, str], before: Mapping[str, str]) -> bool:
    """Whether `run` is a later run than the one `before`; if in doubt, they are the same.

    A group that has lasted proves them to be the same, whatever the job claims.
    """
    if "group" in run and run["group"] == before.get("group"):
        return False
    if "restarts" in run and "restarts" in before:
        return int(run["restarts"]) > int(before["restarts"])
    return "group" in run and "group" in before
