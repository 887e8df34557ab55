"""The owner of a process, from the text of its files in /proc; pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import takewhile

from gpu_bottleneck_exporter.host.cgroup import memberships
from gpu_bottleneck_exporter.workload.schedulers import job_in

_POD = re.compile(
    r"(?:^|-)pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:$|:)"
)
"""Folder of a pod: `pod<uid>`, `kubepods-burstable-pod<uid with _>.slice`, or the latter followed
by `:cri-containerd:<id>`. The uid of a static pod is a hash."""
_CONTAINER = re.compile(r"(?:^|(?<!conmon)[-:])([0-9a-f]{64})(?:\.scope)?$")
"""Folder of a container in any runtime: `<id>`, `docker-<id>.scope`, `cri-containerd-<id>.scope`,
`crio-<id>`, `libpod-payload-<id>`. Not that of conmon, which only monitors the container."""
_SLURM = re.compile(
    r"(?:^|/)(?:(?:[^/]+_)?slurmstepd\.scope|slurm(?:_[^/]+)?/uid_[0-9]+)"
    r"/(?:job_([0-9]{1,10})|(s[0-9A-HJKMNP-TV-Z]{13}))(?:/|$)"
)
"""Cgroup v2, then v1; with `<node>_` or `_<node>` if several slurmd run on one machine.

Since 26.05 v2 names a job by its SLUID, unless CgroupJobIdPaths is set: Crockford's base 32
(src/common/sluid.c)."""
_USERS_OWN = re.compile(r"user-[0-9]+\.slice|user@[0-9]+\.service")
"""Below these, users create and name groups themselves."""
_JOB = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a process. None: not in one, or not known."""

    namespace: str | None = None
    """Namespace of the pod. This, `pod` and `container` are names, known to the kubelet only."""
    pod: str | None = None
    container: str | None = None
    pod_uid: str | None = None
    container_id: str | None = None
    slurm_job_id: str | None = None
    """Its number; its SLUID where only that is known."""
    user: str | None = None
    rendezvous: str | None = None
    """A hash of the place where the ranks of its job meet."""
    job: str | None = None
    """Another scheduler's job, or a container manager's machine: `pbs-1234.server`, `lxc-101`."""
    source: str | None = None
    """Where pod, container or job is known from: `cgroup` (a group that root made), `kubelet`,
    `prolog`, or `claim` (the process's own environment). None: there is only a user.

    In a pod or container, `claim` and `prolog` are about the job: the rest is from the group."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The label values in this order, empty if unknown: all fields but `source`."""
        return tuple([getattr(self, name) or "" for name in _LABELS])

    def known_from(self, source: str) -> Owner:
        """The same owner with this source, if there is anything beside the user."""
        named = self.pod_uid or self.container_id or self.slurm_job_id or self.job
        return replace(self, source=source if named else None)


NOBODY = Owner()
_LABELS = tuple(one.name for one in fields(Owner) if one.name != "source")
"""Names of the fields in `Owner.texts`."""


def owner_in_cgroup(
    text: str, ours: str = "", made_by_root: Callable[[str, str], str] = lambda _, path: path
) -> Owner:
    """Pod, container and job that `text`, a /proc/PID/cgroup file, names.

    `ours` is our own such file: if we run in a container, what lies around it is the node, not
    somebody's container. `made_by_root` returns the beginning of a path, given with its
    controllers, that only root can have created. Under cgroup v1 some hierarchies may lie outside
    of the pod or job: the most specific line counts. Folders are recognised by name, so a path
    from another cgroup namespace may begin with `/../..`.
    """
    around = {controllers: _around(path) for controllers, path in memberships(ours)}
    found = [
        _owner(made_by_root(controllers, path), around.get(controllers, ()))
        for controllers, path in memberships(text)
    ]
    most = max(found, key=lambda one: (bool(one.pod_uid), bool(one.container_id)), default=NOBODY)
    slurm = next((one.slurm_job_id for one in found if one.slurm_job_id), None)
    job = next((one.job for one in found if one.job), None)
    return replace(most, slurm_job_id=slurm, job=job).known_from("cgroup")


def slurm_job(variables: Mapping[str, str]) -> str | None:
    """The Slurm job that `variables` of a process name."""
    number = variables.get("SLURM_JOB_ID", "")
    return number if _JOB.fullmatch(number) else None


def _owner(path: str, around: Sequence[str]) -> Owner:
    """What the folders of `path` name, from the outermost inwards, without those `around` us.

    The outermost container counts, within a pod the pod's: groups below it were created inside,
    and everything in it is one tenant, however many containers it creates for itself. But a
    container outside of pods that has pods is a node (kind, k3d), and they are its tenants. Groups
    below a user's own count for nothing. The kernel appends ` (deleted)` to a removed group.
    """
    folders = path.removesuffix(" (deleted)").split("/")
    same = takewhile(lambda pair: pair[0] == pair[1], zip(folders, around, strict=False))
    begin, end = sum(1 for _ in same), len(folders)
    pods = [depth for depth, folder in enumerate(folders) if _POD.search(folder)]
    pod = container = None
    for depth, folder in enumerate(folders):
        if _USERS_OWN.fullmatch(folder):
            end = depth
            break
        if depth < begin:
            continue
        if pod is None and (found := _POD.search(folder)):
            pod, container, end = found[1].replace("_", "-"), None, len(folders)
        if found := _CONTAINER.search(folder):
            container, end = found[1], depth
            if pod or not pods or depth > pods[-1]:
                break
    inside = "/".join(folders[begin:end])
    slurm, other = _SLURM.search(inside), job_in(inside)
    number = (slurm[1] or slurm[2]) if slurm else None
    job = other.name if other and not (other.is_machine and (pod or container)) else None
    return Owner(pod_uid=pod, container_id=container, slurm_job_id=number, job=job)


def _around(path: str) -> Sequence[str]:
    """Folders of our own `path` above our own pod or container: those of the node."""
    folders = path.split("/")
    pods = [depth for depth, folder in enumerate(folders) if _POD.search(folder)]
    own = pods or [depth for depth, folder in enumerate(folders) if _CONTAINER.search(folder)]
    return folders[: own[-1]] if own else ()
