"""Whose the processes are that hold a GPU, from /proc and their control groups."""

from __future__ import annotations

import hashlib
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from gpu_bottleneck_exporter.driver.readings import Process, Processes
from gpu_bottleneck_exporter.host.cgroup import find_group, owned_prefix, root_owned_prefix
from gpu_bottleneck_exporter.host.environment import variables
from gpu_bottleneck_exporter.host.files import FileLimitError, read
from gpu_bottleneck_exporter.host.process import (
    MOST_PROCESSES,
    Started,
    command_line,
    control_groups,
    real_uid,
    user_id,
)
from gpu_bottleneck_exporter.schedule import OFTEN_NS, RefreshSchedule
from gpu_bottleneck_exporter.workload.identity import NOBODY, Owner, owner_in_cgroup, slurm_job
from gpu_bottleneck_exporter.workload.ranks import VARIABLES, Place, rendezvous
from gpu_bottleneck_exporter.workload.users import UserNames

SYSFS = Path("/sys")
MOST_OWNERS = 8
"""Per GPU; only a program that forks without end would have more."""
MOST_OF_A_CLAIM = 128
"""Characters."""
_MOST_GROUPS = 1024
"""Whose owners are kept until they are forgotten: more than a node has pods and jobs."""
_MOST_OF_A_STEP = 8
"""Processes of one step that are looked at: slurmstepd, and what it has just forked."""
_TITLE = re.compile(r"slurmstepd: \[([0-9]{1,10})[.+]")
"""`[7.0]`, `[7.batch]`, `[7.extern]`, `[7.interactive]`, `[7.0+1]` in a heterogeneous job."""
_SLURM_GROUPS = ("*.slice/*slurmstepd.scope", "*/slurm/uid_*", "*/slurm_*/uid_*")
_STATUS = re.compile(r"Name:\t(.*)\n(?:.*\n)*?PPid:\t([0-9]+)\n")
_NESTED = re.compile(r"^NSpid:\t[0-9]+\t", re.MULTILINE)
"""In /proc/PID/status of a process in another PID namespace than the host's, as in a container."""
_LOGIN = re.compile(r":/user\.slice/user-([0-9]+)\.slice(?:/|$)", re.MULTILINE)
"""The user that logged in, whose processes may have 65 536 other uids (subuid(5))."""
_EFFECTIVE = re.compile(r"^CapEff:\t([0-9a-f]{1,16})$", re.MULTILINE)
_CAP_SYS_ADMIN = 21
"""linux/capability.h: Python has no name for it."""
_DIGITS = 12
"""Of the hash of a place: 48 bits tell the jobs of a cluster apart."""


class OwnerReader:
    """Reads each process when `RefreshSchedule` has it due, once for all GPUs that it holds."""

    def __init__(
        self, proc: Path, groups: Groups | None = None, users: UserNames | None = None
    ) -> None:
        """`proc`: the host's; `groups` may be shared with another reader in the same thread."""
        self._proc = proc
        self._users = users or UserNames(proc)
        self._groups = groups or Groups(proc)
        self._looked_ns: int | None = None
        self._known: dict[Started, tuple[RefreshSchedule, Owner]] = {}

    def of(self, processes: Iterable[Started], now_ns: int) -> tuple[Owner, ...]:
        """The distinct owners of `processes`, sorted, at monotonic time `now_ns`.

        An owner whose processes meet in several places gets none: they belong to several jobs.
        """
        places: defaultdict[Owner, set[str]] = defaultdict(set)
        owners = {self._owner(process, now_ns) for process in processes} - {NOBODY}
        if len(owners) <= 1:  # nearly always
            return (*owners,)
        for owner in owners:
            places[replace(owner, rendezvous=None)].update(filter(None, (owner.rendezvous,)))
        return tuple(
            replace(owner, rendezvous=min(places[owner])) if len(places[owner]) == 1 else owner
            for owner in sorted(places, key=lambda one: one.texts)[:MOST_OWNERS]
        )

    def _owner(self, process: Started, now_ns: int) -> Owner:
        ageing, owner = self._known.get(process) or (RefreshSchedule(now_ns), NOBODY)
        if not ageing.is_due(now_ns):
            return owner
        # Entries that are long due were not asked for: their process no longer holds a GPU.
        since = now_ns - OFTEN_NS
        self._known = {key: one for key, one in self._known.items() if one[0].due_ns >= since}
        if now_ns != self._looked_ns:  # once a tick is enough
            self._looked_ns = now_ns
            self._groups.forget()
        proven = owner.source == "cgroup" or owner.container_id
        group = f"{self._proc}/{process[0]}/cgroup" if proven else ""
        # A group that was removed, or has such a name: either way the process was there.
        if " (deleted)\n" not in (read(group) or ""):
            owner = read_owner(self._proc, process[0], self._users, self._groups)
        self._known[process] = ageing, owner
        return owner


def read_owner(proc: Path, pid: int, users: UserNames, groups: Groups) -> Owner:
    """The owner of process `pid`.

    Reading its environment takes the same user or the permission to ptrace.
    """
    claims = groups.claims(pid)
    owner, uid = groups.owner(pid), user_id(proc, pid)
    if owner.slurm_job_id is None and (job := slurm_job(claims)):
        owner = replace(owner, slurm_job_id=job).known_from("claim")
    if place := rendezvous(proc, pid, claims, groups.unit(pid)):
        owner = replace(owner, rendezvous=named(place))
    return replace(owner, user=users.of(int(uid))) if uid else owner


def claims_of(proc: Path, pid: int, names: Collection[str]) -> dict[str, str]:
    """The variables `names` of process `pid`, as far as set: anybody can set them to anything."""
    claims = variables(proc, pid, tuple(names)) if names else {}
    return {name: value[:MOST_OF_A_CLAIM] for name, value in claims.items() if value}


class Groups:
    """Owners by control group: determined once for all processes in a group."""

    def __init__(self, proc: Path, sysfs: Path = SYSFS) -> None:
        """`proc`, `sysfs`: the host's."""
        self._proc = proc
        self._made_by_root = partial(root_owned_prefix, sysfs)
        self._cgroups = sysfs / "fs/cgroup"
        self._ours = ""
        self._known: dict[str, Owner] = {}
        self._slurm_tracks: bool | None = None

    def owner(self, pid: int) -> Owner:
        """Pod, container and job of process `pid`; `NOBODY` if it has ended."""
        text = control_groups(self._proc, pid)
        if not text:
            return NOBODY
        if text not in self._known:
            if len(self._known) >= _MOST_GROUPS:
                self.forget()
            self._ours = self._ours or read(f"{self._proc}/self/cgroup") or ""
            owner = owner_in_cgroup(text, self._ours, self._made_by_root)
            number = job_number(self._proc, self._cgroups, text, owner.slurm_job_id or "")
            self._known[text] = replace(owner, slurm_job_id=number)
        return self._known[text]

    def claims(self, pid: int) -> Mapping[str, str]:
        """What a process's environment says of its job and ranks, as far as it is credible.

        Anybody can set SLURM_JOB_ID: where Slurm creates control groups, these name the job.
        """
        claims = variables(self._proc, pid, VARIABLES)
        if "SLURM_JOB_ID" not in claims:
            return claims
        proven = self.owner(pid).slurm_job_id
        if proven or self.slurm_tracks():
            return {**claims, "SLURM_JOB_ID": proven or ""}
        return claims

    def unit(self, pid: int) -> str:
        """The container id or job of a process; empty if it is in neither."""
        owner = self.owner(pid)
        return owner.container_id or owner.slurm_job_id or owner.job or ""

    def tenant(self, pid: int) -> tuple[str, str]:
        """The pod or container of a process, and its job; empty if it is in none."""
        owner = self.owner(pid)
        return owner.pod_uid or owner.container_id or "", owner.slurm_job_id or owner.job or ""

    def forget(self) -> None:
        """Read again: a group may have been recreated for another owner."""
        self._known.clear()
        self._slurm_tracks = None

    def slurm_tracks(self) -> bool:
        """Whether Slurm creates groups for jobs here; then a process outside of them has no job."""
        if self._slurm_tracks is None:
            groups = (group for one in _SLURM_GROUPS for group in self._cgroups.glob(one))
            parts = (group.relative_to(self._cgroups).parts for group in groups)
            self._slurm_tracks = any(owned_prefix(self._cgroups, one) == one for one in parts)
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
    titles = (_title(proc, int(pid)) for pid in pids[:_MOST_OF_A_STEP])
    return next((found[1] for title in titles if (found := _TITLE.match(title))), job)


def _title(proc: Path, pid: int) -> str:
    """The title of process `pid` if it is root's: what runs for the user may choose its own."""
    return command_line(proc, pid).text if user_id(proc, pid) == "0" else ""


def named(place: Place) -> str:
    """A short hash of `place`: a plain address would disclose the job's network."""
    return hashlib.sha256("\0".join(place).encode(errors="replace")).hexdigest()[:_DIGITS]


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
    left_out = len(reading.processes) - len(kept)
    return replace(reading, processes=kept, bystanders=left_out) if left_out else reading


def _is_desktops(process: Process, proc: Path) -> bool:
    groups = read(f"{proc}/{process.pid}/cgroup") if process.draws_only else None
    return groups is not None and owner_in_cgroup(groups) == NOBODY


def _is_daemon(proc: Path, pid: int, names: Collection[str], *, started: bool = True) -> bool:
    """Whether it is root's, or `started` by root's and runs as its client's user.

    Anybody can take such a name, but only root can start a process as another user. The root of a
    container counts only if it is privileged, as that of NVIDIA's MPS daemon set is.
    """
    status = (read(f"{proc}/{pid}/status") or "") if names else ""
    found = _STATUS.match(status)
    if found is None or found[1] not in names:
        return False
    if real_uid(status) == "0" and (not _NESTED.search(status) or _administers(proc, pid, status)):
        return True
    return started and _is_daemon(proc, int(found[2]), names, started=False)


def _administers(proc: Path, pid: int, status: str) -> bool:
    """Whether a process administers the machine: with CAP_SYS_ADMIN in our own user namespace.

    In a user namespace of its own, each process has all capabilities. False without the permission
    to ptrace.
    """
    effective = _EFFECTIVE.search(status)
    with suppress(OSError):
        ours = Path("/proc/self/ns/user").samefile(f"{proc}/{pid}/ns/user")
        return ours and bool(effective and int(effective[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def tenants(proc: Path, sysfs: Path) -> Callable[[int], str]:
    """The function from a pid to its pod, container, job or user, by groups of root's.

    They share the time for reads that may block: many processes are one tenant. Reads nothing
    that may block. For any thread.
    """
    by_root = partial(root_owned_prefix, sysfs)

    @lru_cache(MOST_PROCESSES)
    def tenant(pid: int, _period: int) -> str:
        with suppress(FileLimitError):
            text = control_groups(proc, pid) or ""
            owner, login = owner_in_cgroup(text, made_by_root=by_root), _LOGIN.search(text)
            unit = owner.pod_uid or owner.container_id or owner.slurm_job_id or owner.job
            uid = real_uid(read(f"{proc}/{pid}/status") or "")
            return unit or (login[1] if login else uid)
        return ""

    return lambda pid: tenant(pid, time.monotonic_ns() // OFTEN_NS)  # as pids are reused
