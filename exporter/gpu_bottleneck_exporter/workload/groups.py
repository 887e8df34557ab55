"""Who owns the control groups of processes."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpu_bottleneck_exporter.host.cgroup import find_group, made_by_root
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import command_line, real_uid
from gpu_bottleneck_exporter.workload.identity import NOBODY, Owner, owner_in_cgroup

SYSFS = Path("/sys")
_KEPT = 1024
_MOST = 8
"""Processes of one step that are looked at: slurmstepd, and what it has just forked."""
_TITLE = re.compile(r"slurmstepd: \[([0-9]{1,10})[.+]")
"""`[7.0]`, `[7.batch]`, `[7.extern]`, `[7.interactive]`, `[7.0+1]` in a heterogeneous job."""
_SLURM_GROUPS = ("*.slice/*slurmstepd.scope", "*/slurm/uid_*", "*/slurm_*/uid_*")


class Groups:
    """Owners by control group: determined once for all processes in a group."""

    def __init__(self, proc: Path, sysfs: Path = SYSFS) -> None:
        """`proc`, `sysfs`: the host's."""
        self._proc = proc
        self._made_by_root = partial(made_by_root, sysfs)
        self._cgroups = sysfs / "fs/cgroup"
        self._ours = ""
        self._known: dict[str, Owner] = {}
        self._slurm_tracks: bool | None = None

    def owner(self, pid: int) -> Owner:
        """Pod, container and Slurm job of process `pid`; `NOBODY` if it has ended."""
        text = read(self._proc / str(pid) / "cgroup")
        if not text:
            return NOBODY
        if text not in self._known:
            if len(self._known) >= _KEPT:
                self.forget()
            self._ours = self._ours or read(self._proc / "self/cgroup") or ""
            owner = owner_in_cgroup(text, self._ours, self._made_by_root)
            number = job_number(self._proc, self._cgroups, text, owner.slurm_job_id or "")
            self._known[text] = replace(owner, slurm_job_id=number)
        return self._known[text]

    def unit(self, pid: int) -> str:
        """The container id or Slurm job of a process; empty if it is in neither."""
        owner = self.owner(pid)
        return owner.container_id or owner.slurm_job_id or ""

    def forget(self) -> None:
        """Read again: a group may have been recreated for another owner."""
        self._known.clear()
        self._slurm_tracks = None

    def slurm_tracks(self) -> bool:
        """Whether Slurm creates groups for jobs here; then a process outside of them has no job."""
        if self._slurm_tracks is None:
            found = (next(self._cgroups.glob(one), None) for one in _SLURM_GROUPS)
            self._slurm_tracks = any(one is not None for one in found)
        return self._slurm_tracks


def job_number(proc: Path, cgroups: Path, text: str, job: str) -> str | None:
    """The number of Slurm job `job` if it is a SLUID and its slurmstepd visible; else `job` itself.

    From Slurm 26.05 on, groups of cgroup v2 are named by SLUID. Slurm keeps the slurmstepd of a
    step beside the job's own processes, in `step_0/slurm`, and gives it the title `slurmstepd:
    [JOB.STEP]` (src/plugins/cgroup/v2/cgroup_v2.c, src/slurmd/slurmstepd/slurmstepd.c). That group
    and this process are root's, so the job can forge neither. `text`: a /proc/PID/cgroup file;
    `cgroups`: the mount of cgroup v2.
    """
    if not job or job.isdecimal():
        return job or None
    step = re.search(rf"^0::(.*?/{job}/step_[^/\n]+)", text, re.MULTILINE)
    leaf = find_group(cgroups, f"{step[1]}/slurm") if step else None
    pids = (read(leaf / "cgroup.procs") or "").split() if leaf else []
    titles = (_title(proc, int(pid)) for pid in pids[:_MOST])
    return next((found[1] for title in titles if (found := _TITLE.match(title))), job)


def _title(proc: Path, pid: int) -> str:
    """The title of process `pid` if it is root's: what runs for the user may choose its own."""
    uid = real_uid(read(proc / str(pid) / "status") or "")
    return command_line(proc, pid).text if uid == 0 else ""
