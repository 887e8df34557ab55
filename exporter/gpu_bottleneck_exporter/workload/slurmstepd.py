"""The numbers of Slurm jobs whose control groups are named by SLUID (Slurm 26.05, cgroup v2).

Slurm keeps the slurmstepd of a step beside the job's own processes, in `step_0/slurm`, and gives
it the title `slurmstepd: [JOB.STEP]` (src/plugins/cgroup/v2/cgroup_v2.c, src/slurmd/slurmstepd/
slurmstepd.c). That group and this process are root's, so the job can forge neither.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpu_bottleneck_exporter.host.cgroup import find_group
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import command_line, real_uid

_MOST = 8
"""Processes of one step that are looked at: slurmstepd, and what it has just forked."""
_TITLE = re.compile(r"slurmstepd: \[([0-9]{1,10})[.+]")
"""`[7.0]`, `[7.batch]`, `[7.extern]`, `[7.interactive]`, `[7.0+1]` in a heterogeneous job."""


def job_number(proc: Path, cgroups: Path, text: str, sluid: str) -> str | None:
    """The number of job `sluid`, found in `text`, a /proc/PID/cgroup file; None if not visible.

    `proc`: the host's; `cgroups`: the mount of cgroup v2.
    """
    step = re.search(rf"^0::(.*?/{sluid}/step_[^/\n]+)", text, re.MULTILINE)
    leaf = find_group(cgroups, f"{step[1]}/slurm") if step else None
    pids = (read(leaf / "cgroup.procs") or "").split() if leaf else []
    titles = (_title(proc, int(pid)) for pid in pids[:_MOST])
    return next((found[1] for title in titles if (found := _TITLE.match(title))), None)


def _title(proc: Path, pid: int) -> str:
    """The title of process `pid` if it is root's: what runs for the user may choose its own."""
    uid = real_uid(read(proc / str(pid) / "status") or "")
    return command_line(proc, pid).text if uid == 0 else ""
