"""The owners of the processes that hold a GPU, from /proc."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import environment, real_uid
from gpu_bottleneck_exporter.schedule import OFTEN_NS, RefreshSchedule
from gpu_bottleneck_exporter.workload.groups import Groups
from gpu_bottleneck_exporter.workload.identity import NOBODY, Owner, slurm_job_in_environment
from gpu_bottleneck_exporter.workload.rendezvous import named, rendezvous
from gpu_bottleneck_exporter.workload.users import UserNames

MOST_OWNERS = 8
"""Per GPU; only a program that forks without end would have more."""

Started = tuple[int, int | None]
"""A process: its pid, and its start in clock ticks since boot, as pids are reused."""


class OwnerReader:
    """Reads each process when `RefreshSchedule` has it due, once for all GPUs that it holds."""

    def __init__(
        self, proc: Path, users: UserNames | None = None, groups: Groups | None = None
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
        places: dict[Owner, set[str]] = {}
        for owner in {self._owner(process, now_ns) for process in processes} - {NOBODY}:
            met = places.setdefault(replace(owner, rendezvous=None), set())
            met |= {owner.rendezvous} if owner.rendezvous else set()
        return tuple(
            replace(owner, rendezvous=min(places[owner])) if len(places[owner]) == 1 else owner
            for owner in sorted(places, key=_order)[:MOST_OWNERS]
        )

    def _owner(self, process: Started, now_ns: int) -> Owner:
        ageing, owner = self._known.get(process) or (RefreshSchedule(now_ns), NOBODY)
        if not ageing.is_due(now_ns):
            return owner
        # Entries that are long due were not asked for: their process no longer holds a GPU.
        self._known = {
            key: known for key, known in self._known.items() if now_ns - known[0].due_ns <= OFTEN_NS
        }
        if now_ns != self._looked_ns:  # once a tick is enough
            self._looked_ns = now_ns
            self._groups.forget()
        owner = read_owner(self._proc, process[0], self._users, self._groups)
        self._known[process] = ageing, owner
        return owner


def read_owner(proc: Path, pid: int, users: UserNames, groups: Groups | None = None) -> Owner:
    """The owner of process `pid`.

    Reading its environment takes the same user or the permission to ptrace.
    """
    groups = groups or Groups(proc)
    variables = environment(proc, pid)
    owner = groups.owner(pid)
    # Anybody can set SLURM_JOB_ID: believe it only if Slurm creates no control groups here.
    if owner.slurm_job_id is None and not groups.slurm_tracks():
        owner = replace(owner, slurm_job_id=slurm_job_in_environment(variables))
    if place := rendezvous(proc, pid, variables, groups.unit(pid)):
        owner = replace(owner, rendezvous=named(place))
    uid = real_uid(read(proc / str(pid) / "status") or "")
    return owner if uid is None else replace(owner, user=users.of(uid))


def _order(owner: Owner) -> tuple[str, ...]:
    return tuple(
        name or "" for name in (owner.pod_uid, owner.container_id, owner.slurm_job_id, owner.user)
    )
