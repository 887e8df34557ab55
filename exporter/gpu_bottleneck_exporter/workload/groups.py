"""Who owns the control groups of processes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from gpu_bottleneck_exporter.host.cgroup import made_by_root
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.workload.identity import NOBODY, Owner, owner_in_cgroup
from gpu_bottleneck_exporter.workload.slurmstepd import job_number

SYSFS = Path("/sys")
_KEPT = 1024
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
            self._known[text] = self._numbered(text)
        return self._known[text]

    def _numbered(self, text: str) -> Owner:
        """The owner that `text`, a /proc/PID/cgroup file, names; its job by number if possible."""
        owner = owner_in_cgroup(text, self._ours, self._made_by_root)
        job = owner.slurm_job_id
        if job is None or job.isdecimal():
            return owner
        number = job_number(self._proc, self._cgroups, text, job)
        return replace(owner, slurm_job_id=number or job)

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
