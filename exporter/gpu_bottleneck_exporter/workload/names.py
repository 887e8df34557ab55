"""Names of jobs and of tenants of a GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from gpu_bottleneck_exporter.schedule import CADENCE
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.owners import rendezvous_hash

_MAX_CLAIMED = 4
"""Jobs of one user that only environments name: more would take all names of a GPU."""
_MAX_LEFT = 64
"""Bound on tenants that left within `Cadence.tenant_ns`."""


def tenant_of(owner: Owner) -> str | None:
    """The tenant of a GPU that `owner` is: its job, else its user; None if unknown."""
    return name_of(owner) or (name_from("user", owner.user) if owner.user else None)


def name_of(owner: Owner) -> str | None:
    """The id of the job of `owner`; None for a user's other processes.

    A Slurm number that the process claims is qualified by its user.
    """
    pod = owner.pod_uid or (owner.pod and f"{owner.namespace}.{owner.pod}")
    container = (owner.container_id or "")[:12]
    if owner.slurm_job_id and owner.source not in ("cgroup", "prolog"):  # only root writes these
        tenant = filter(None, (owner.user or "unknown", pod or container))
        return name_from("slurm", owner.slurm_job_id, *tenant)
    kind, _, name = (owner.job or "").partition("-")
    names = {"slurm": owner.slurm_job_id, kind: name, "pod": pod, "container": container}
    return next((name_from(kind, name) for kind, name in names.items() if name), None)


def name_from(kind: str, *names: str) -> str:
    """An id of at most 80 characters, with a hash of `names` if it would be ambiguous."""
    text = "-".join((kind, *names))
    safe = re.sub(r"[^A-Za-z0-9._-]", "-", text)[:80]
    if safe == text and (len(names) == 1 or not any("-" in name for name in names)):
        return safe
    return f"{safe[:67]}-{rendezvous_hash(names)}"


def _names(owners: Mapping[int, Owner]) -> dict[int, str]:
    """Tenants by pid; a user who claims too many jobs is one."""
    names = {pid: name for pid, owner in owners.items() if (name := tenant_of(owner))}
    claimed: dict[str, set[str]] = {}
    for pid, name in names.items():
        if owners[pid].source == "claim":
            claimed.setdefault(owners[pid].user or "", set()).add(name)
    many = {user: jobs for user, jobs in claimed.items() if len(jobs) > _MAX_CLAIMED}
    return {
        pid: name_from("user", user)
        if (user := owners[pid].user) and name in many.get(user, ())
        else name
        for pid, name in names.items()
    }


class Tenant(NamedTuple):
    """A tenant of a GPU."""

    owners: tuple[Owner, ...]
    """Its containers and users."""
    pids: frozenset[int] = frozenset()
    """Its processes that hold the GPU."""


class Sharing:
    """The tenants of one GPU while it is shared, and for `Cadence.tenant_ns` after."""

    def __init__(self) -> None:
        self._until_ns = 0
        self._known: dict[str, tuple[Tenant, int]] = {}
        """Tenants by name, with the time at which they were last seen."""

    def update(self, owners: Mapping[int, Owner], now_ns: int) -> Mapping[str, Tenant]:
        """Tenants by name; without pids after they left. `owners`: by pid of holder."""
        names = _names(owners)
        if len({*names.values()}) > 1:
            self._until_ns = now_ns + CADENCE.tenant_ns
        if now_ns >= self._until_ns:
            self._known = {}
            return {}
        left_ns = now_ns - CADENCE.tenant_ns
        left = [
            (name, (tenant._replace(pids=frozenset()), seen_ns))
            for name, (tenant, seen_ns) in self._known.items()
            if seen_ns > left_ns and name not in names.values()
        ]
        present = {}
        for name in {*names.values()}:
            pids = frozenset(pid for pid, of in names.items() if of == name)
            containers = {owners[pid] for pid in pids}
            tenant = Tenant(tuple(sorted(containers, key=lambda owner: owner.texts)), pids)
            present[name] = tenant, now_ns
        self._known = dict(left[-_MAX_LEFT:]) | present
        return {name: tenant for name, (tenant, _) in self._known.items()}
