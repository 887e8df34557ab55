"""Distinguishes the runs of a job: a requeued one keeps its number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpu_bottleneck_exporter.host.cgroup import find_group, hierarchy, memberships
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.workload.owners import claims_of
from gpu_bottleneck_exporter.workload.schedulers import job_in


def run_of(proc: Path, sysfs: Path, pid: int) -> dict[str, str]:
    """Identifiers of a job's run, as far as known.

    `restarts`: requeues of a Slurm job, from its environment, which the job may change. `group`:
    inode of the job's control group, new for each run (or step), and the boot id.
    """
    variables, run = claims_of(proc, pid, ("SLURM_JOB_ID", "SLURM_RESTART_COUNT")), {}
    count = variables.get("SLURM_RESTART_COUNT", "0" if "SLURM_JOB_ID" in variables else "")
    if count.isdecimal():
        run["restarts"] = count
    groups = memberships(read(f"{proc}/{pid}/cgroup") or "")
    paths = ((names, job) for names, path in groups if (job := _job_folder(path)))
    folders = (find_group(hierarchy(sysfs, names), path) for names, path in paths)
    with suppress(OSError):
        if folder := next(filter(None, folders), None):
            boot = read(f"{proc}/sys/kernel/random/boot_id") or ""
            run["group"] = f"{folder.stat().st_ino} {boot.strip()}"
    return run


def _job_folder(path: str) -> str:
    """`path` up to the folder of the job; empty without one."""
    if slurm := re.match(r".*?/(?:job_[0-9]+|s[0-9A-HJKMNP-TV-Z]{13})(?=/|$)", path):
        return slurm[0]
    job = job_in(path)
    return path[: job.end] if job else ""


def is_later(run: Mapping[str, str], before: Mapping[str, str]) -> bool:
    """Whether `run` is later than `before`; if in doubt, it is not.

    The same group proves the same run.
    """
    if "group" in run and run["group"] == before.get("group"):
        return False
    if "restarts" in run and "restarts" in before:
        return int(run["restarts"]) > int(before["restarts"])
    return "group" in run and "group" in before
