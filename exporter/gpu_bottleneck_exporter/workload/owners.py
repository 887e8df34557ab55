"""Reads the owners of processes from /proc and control groups."""

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
    MAX_HOST_PROCESSES,
    Started,
    command_line,
    control_groups,
    is_exiting,
    real_uid,
    user_id,
)
from gpu_bottleneck_exporter.schedule import CADENCE, RefreshSchedule
from gpu_bottleneck_exporter.workload.identity import NO_OWNER, Owner, owner_in_cgroup, slurm_job
from gpu_bottleneck_exporter.workload.ranks import VARIABLES, Rendezvous, rendezvous
from gpu_bottleneck_exporter.workload.users import UserNames

MAX_OWNERS_PER_GPU = 8
"""Bound exceeded only by runaway forks."""
_MAX_CACHED_GROUPS = 1024
"""Bound above the pods and jobs of a node."""


class OwnerReader:
    """Reads owners of processes when due by `RefreshSchedule`. Not thread-safe."""

    def __init__(
        self, proc: Path, groups: Groups | None = None, users: UserNames | None = None
    ) -> None:
        """`proc`: the host's; `groups`: may be shared by readers of one thread."""
        self._proc = proc
        self._users = users or UserNames(proc)
        self._groups = groups or Groups(proc)
        self._cleared_ns: int | None = None
        self._known: dict[Started, tuple[RefreshSchedule, Owner]] = {}

    def of(self, processes: Iterable[Started], now_ns: int) -> tuple[Owner, ...]:
        """The distinct owners of `processes` at monotonic time `now_ns`: see `distinct`."""
        return distinct(self.by_process(processes, now_ns).values())

    def by_process(self, processes: Iterable[Started], now_ns: int) -> dict[int, Owner]:
        """The owners by pid."""
        return {process[0]: self._owner(process, now_ns) for process in processes}

    def _owner(self, process: Started, now_ns: int) -> Owner:
        ageing, owner = self._known.get(process) or (RefreshSchedule(now_ns), NO_OWNER)
        if not ageing.is_due(now_ns):
            return owner
        # Entries of processes that hold no GPU any longer.
        since = now_ns - CADENCE.slow_ns
        self._known = {key: it for key, it in self._known.items() if it[0].due_ns >= since}
        if now_ns != self._cleared_ns:  # once per tick
            self._cleared_ns = now_ns
            self._groups.forget()
        proven = owner.source == "cgroup" or owner.container_id
        group = f"{self._proc}/{process[0]}/cgroup" if proven else ""
        # A removed group proves its owner, too.
        if " (deleted)\n" not in (read(group) or "") and not is_exiting(self._proc, process[0]):
            owner = read_owner(self._proc, process[0], self._users, self._groups)
        self._known[process] = ageing, owner
        return owner


def distinct(owners: Iterable[Owner]) -> tuple[Owner, ...]:
    """The distinct `owners`, sorted; one with several rendezvous, so several jobs, gets none."""
    owned = {*owners} - {NO_OWNER}
    if len(owned) <= 1:  # nearly always
        return (*owned,)
    places: defaultdict[Owner, set[str]] = defaultdict(set)
    for owner in owned:
        places[replace(owner, rendezvous=None)].update(filter(None, (owner.rendezvous,)))
    return tuple(
        replace(owner, rendezvous=min(places[owner])) if len(places[owner]) == 1 else owner
        for owner in sorted(places, key=lambda o: o.texts)[:MAX_OWNERS_PER_GPU]
    )


def read_owner(proc: Path, pid: int, users: UserNames, groups: Groups) -> Owner:
    """The owner of process `pid`.

    Its environment takes the same user or the permission to ptrace.
    """
    claims = groups.claims(pid)
    owner, uid = groups.owner(pid), user_id(proc, pid)
    if owner.slurm_job_id is None and (job := slurm_job(claims)):
        owner = replace(owner, slurm_job_id=job).with_source("claim")
    if place := rendezvous(proc, pid, claims, groups.unit(pid)):
        owner = replace(owner, rendezvous=rendezvous_hash(place))
    return replace(owner, user=users.of(int(uid))) if uid else owner


def claims_of(proc: Path, pid: int, names: Collection[str]) -> dict[str, str]:
    """Variables `names` of process `pid`. Not trusted: users can set them."""
    claims = variables(proc, pid, tuple(names)) if names else {}
    return {name: value[:128] for name, value in claims.items() if value}


class Groups:
    """Caches owners by control group. Not thread-safe."""

    def __init__(self, proc: Path, sysfs: Path = Path("/sys")) -> None:
        """`proc`, `sysfs`: the host's."""
        self._proc = proc
        self._made_by_root = partial(root_owned_prefix, sysfs)
        self._cgroups = sysfs / "fs/cgroup"
        self._ours = ""
        self._known: dict[str, Owner] = {}
        self._slurm_tracks: bool | None = None

    def owner(self, pid: int) -> Owner:
        """Pod, container and job of process `pid`; `NO_OWNER` if it has ended."""
        text = control_groups(self._proc, pid)
        if not text:
            return NO_OWNER
        if text not in self._known:
            if len(self._known) >= _MAX_CACHED_GROUPS:
                self.forget()
            self._ours = self._ours or read(f"{self._proc}/self/cgroup") or ""
            owner = owner_in_cgroup(text, self._ours, self._made_by_root)
            number = job_number(self._proc, self._cgroups, text, owner.slurm_job_id or "")
            self._known[text] = replace(owner, slurm_job_id=number)
        return self._known[text]

    def claims(self, pid: int) -> Mapping[str, str]:
        """Launcher variables of a process.

        Users can set SLURM_JOB_ID: Slurm's control groups prevail.
        """
        claims = variables(self._proc, pid, VARIABLES)
        if "SLURM_JOB_ID" not in claims:
            return claims
        proven = self.owner(pid).slurm_job_id
        if proven or self.slurm_tracks():
            return {**claims, "SLURM_JOB_ID": proven or ""}
        return claims

    def unit(self, pid: int) -> str:
        """Container id or job of a process, or empty."""
        owner = self.owner(pid)
        return owner.container_id or owner.slurm_job_id or owner.job or ""

    def tenant(self, pid: int) -> tuple[str, str]:
        """Pod or container of a process, and its job; empty if none."""
        owner = self.owner(pid)
        return owner.pod_uid or owner.container_id or "", owner.slurm_job_id or owner.job or ""

    def forget(self) -> None:
        """Clear the cache: groups may be recreated for other owners."""
        self._known.clear()
        self._slurm_tracks = None

    def slurm_tracks(self) -> bool:
        """Whether Slurm creates groups for jobs."""
        if self._slurm_tracks is None:
            patterns = ("*.slice/*slurmstepd.scope", "*/slurm/uid_*", "*/slurm_*/uid_*")
            groups = (group for pattern in patterns for group in self._cgroups.glob(pattern))
            paths = (group.relative_to(self._cgroups).parts for group in groups)
            self._slurm_tracks = any(owned_prefix(self._cgroups, path) == path for path in paths)
        return self._slurm_tracks


def job_number(proc: Path, cgroups: Path, text: str, job: str) -> str | None:
    """The number of Slurm job `job` if it is a SLUID and its slurmstepd is visible; else `job`.

    Since Slurm 26.05, groups of cgroup v2 are named by SLUID. A slurmstepd, root's, runs in
    `step_0/slurm`, with the title `slurmstepd: [JOB.STEP]` (src/plugins/cgroup/v2/cgroup_v2.c,
    src/slurmd/slurmstepd/slurmstepd.c).

    `text`: a /proc/PID/cgroup file; `cgroups`: the mount of cgroup v2.
    """
    if not job or job.isdecimal():
        return job or None
    step = re.search(rf"^0::(.*?/{job}/step_[^/\n]+)", text, re.MULTILINE)
    leaf = find_group(cgroups, f"{step[1]}/slurm") if step else None
    pids = (read(leaf / "cgroup.procs") or "").split() if leaf else []
    titles = (_title(proc, int(pid)) for pid in pids[:8])  # slurmstepd and its forks
    # `[7.0]`, `[7.batch]`, `[7.extern]`, `[7.interactive]`, `[7.0+1]` in a heterogeneous job.
    matches = (re.match(r"slurmstepd: \[([0-9]{1,10})[.+]", title) for title in titles)
    return next((match[1] for match in matches if match), job)


def _title(proc: Path, pid: int) -> str:
    """Title of process `pid` if root's: users choose theirs."""
    return command_line(proc, pid).text if user_id(proc, pid) == "0" else ""


def rendezvous_hash(place: Rendezvous) -> str:
    """Hash of a rendezvous, 48 bits, which hides the job's addresses."""
    return hashlib.sha256("\0".join(place).encode(errors="replace")).hexdigest()[:12]


def without_bystanders(reading: Processes, proc: Path, daemons: Collection[str]) -> Processes:
    """`reading` without the processes of a desktop and without the driver's own `daemons`.

    X server, compositor and browser, outside of jobs, only draw. Daemons hold the GPU for others.
    Unreadable processes are retained. `proc`: the host's.
    """
    processes = tuple(
        process
        for process in reading.processes
        if not (_is_desktops(process, proc) or _is_daemon(proc, process.pid, daemons))
    )
    left_out = len(reading.processes) - len(processes)
    return replace(reading, processes=processes, bystanders=left_out) if left_out else reading


def _is_desktops(process: Process, proc: Path) -> bool:
    groups = read(f"{proc}/{process.pid}/cgroup") if process.draws_only else None
    return groups is not None and owner_in_cgroup(groups) == NO_OWNER


def _is_daemon(proc: Path, pid: int, names: Collection[str], *, started: bool = True) -> bool:
    """Whether a process is root's daemon, or was `started` by it as its client's user.

    Only root can start a process as another user. A container's root counts only if privileged, as
    in NVIDIA's MPS daemon set.
    """
    status = (read(f"{proc}/{pid}/status") or "") if names else ""
    match = re.match(r"Name:\t(.*)\n(?:.*\n)*?PPid:\t([0-9]+)\n", status)
    if match is None or match[1] not in names:
        return False
    is_root = real_uid(status) == "0"
    # Outside of the host's PID namespace.
    nested = re.search(r"^NSpid:\t[0-9]+\t", status, re.MULTILINE)
    if is_root and (not nested or _administers(proc, pid, status)):
        return True
    return started and _is_daemon(proc, int(match[2]), names, started=False)


def _administers(proc: Path, pid: int, status: str) -> bool:
    """Whether a process has CAP_SYS_ADMIN in our user namespace, not just in its own.

    False without the permission to ptrace.
    """
    effective = re.search(r"^CapEff:\t([0-9a-f]{1,16})$", status, re.MULTILINE)
    with suppress(OSError):
        ours = Path("/proc/self/ns/user").samefile(f"{proc}/{pid}/ns/user")
        return ours and bool(effective and int(effective[1], 16) >> 21 & 1)
    return False


def tenants(proc: Path, sysfs: Path) -> Callable[[int], str]:
    """The function from a pid to its tenant: pod, container, job or user, by groups of root's.

    It never blocks, as tenants are the accounts of blocking reads. Thread-safe.
    """
    by_root = partial(root_owned_prefix, sysfs)

    @lru_cache(MAX_HOST_PROCESSES)
    def tenant(pid: int, _period: int) -> str:
        with suppress(FileLimitError):
            text = control_groups(proc, pid) or ""
            owner = owner_in_cgroup(text, made_by_root=by_root)
            # A login's processes may have 65 536 other uids (subuid(5)).
            login = re.search(r":/user\.slice/user-([0-9]+)\.slice(?:/|$)", text, re.MULTILINE)
            unit = owner.pod_uid or owner.container_id or owner.slurm_job_id or owner.job
            uid = real_uid(read(f"{proc}/{pid}/status") or "")
            return unit or (login[1] if login else uid)
        return ""

    return lambda pid: tenant(pid, time.monotonic_ns() // CADENCE.slow_ns)  # pids are reused
