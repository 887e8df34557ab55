"""Parses the owner of a process from its files in /proc. No I/O."""

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
"""Folder of a pod: `pod<uid>`, `kubepods-burstable-pod<uid with _>.slice`, also with
`:cri-containerd:<id>`. The uid of a static pod is a hash."""
_CONTAINER = re.compile(r"(?:^|(?<!conmon)[-:])([0-9a-f]{64})(?:\.scope)?$")
"""Folder of a container: `<id>`, `docker-<id>.scope`, `cri-containerd-<id>.scope`,
`crio-<id>`, `libpod-payload-<id>`; not of conmon, its monitor."""
_SLURM_JOB = re.compile(
    r"(?:^|/)(?:(?:[^/]+_)?slurmstepd\.scope|slurm(?:_[^/]+)?/uid_[0-9]+)"
    r"/(?:job_([0-9]{1,10})|(s[0-9A-HJKMNP-TV-Z]{13}))(?:/|$)"
)
"""Folder of a job, cgroup v2 then v1; with `<node>_` or `_<node>` if a machine has several slurmd.
Since 26.05 v2 names a job by its SLUID: Crockford's base 32 (src/common/sluid.c)."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a process. None: none, or unknown."""

    namespace: str | None = None
    """Namespace of the pod. Only the kubelet has these names."""
    pod: str | None = None
    container: str | None = None
    pod_uid: str | None = None
    container_id: str | None = None
    slurm_job_id: str | None = None
    """Job number, or SLUID if that is unknown."""
    user: str | None = None
    rendezvous: str | None = None
    """Hash of the rendezvous of the job's ranks."""
    job: str | None = None
    """Other scheduler's job, or container manager's machine: `pbs-1234.server`, `lxc-101`."""
    source: str | None = None
    """Source of pod, container and job: `cgroup` (made by root), `kubelet`, `prolog` or `claim`
    (the environment); None: only a user. In a container, the last two are the job's."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The label values in this order, empty if unknown."""
        return tuple([getattr(self, name) or "" for name in _LABELS])

    def with_source(self, source: str) -> Owner:
        """This owner with `source`, unless it is only a user."""
        unit = self.pod_uid or self.container_id or self.slurm_job_id or self.job
        return replace(self, source=source if unit else None)


NO_OWNER = Owner()
_LABELS = tuple(one.name for one in fields(Owner) if one.name != "source")
"""Names of the fields in `Owner.texts`."""


def owner_in_cgroup(
    text: str, ours: str = "", made_by_root: Callable[[str, str], str] = lambda _, path: path
) -> Owner:
    """Pod, container and job named in `text`, a /proc/PID/cgroup file.

    `ours`: our own such file; folders above our container are the node's. `made_by_root`: from
    controllers and path, the leading part that only root can have created. Under cgroup v1, the
    most specific line counts.
    """
    around = {controllers: _around(path) for controllers, path in memberships(ours)}
    owners = [
        _owner(made_by_root(controllers, path), around.get(controllers, ()))
        for controllers, path in memberships(text)
    ]
    most = max(owners, key=lambda o: (bool(o.pod_uid), bool(o.container_id)), default=NO_OWNER)
    slurm = next((owner.slurm_job_id for owner in owners if owner.slurm_job_id), None)
    job = next((owner.job for owner in owners if owner.job), None)
    return replace(most, slurm_job_id=slurm, job=job).with_source("cgroup")


def slurm_job(variables: Mapping[str, str]) -> str | None:
    """The Slurm job in the environment `variables` of a process."""
    number = variables.get("SLURM_JOB_ID", "")
    return number if re.fullmatch(r"[0-9]{1,10}", number) else None


def _owner(path: str, around: Sequence[str]) -> Owner:
    """The owner named by the folders of `path`, except those `around` us.

    The outermost container counts, within a pod the pod's. But a container with pods is a node
    (kind, k3d), and they are its tenants. Users' own groups do not count.
    """
    folders = path.removesuffix(" (deleted)").split("/")
    same = takewhile(lambda pair: pair[0] == pair[1], zip(folders, around, strict=False))
    begin, end = sum(1 for _ in same), len(folders)
    pods = [depth for depth, folder in enumerate(folders) if _POD.search(folder)]
    pod = container = None
    for depth, folder in enumerate(folders):
        # Below this folder, users name groups.
        if re.fullmatch(r"user-[0-9]+\.slice|user@[0-9]+\.service", folder):
            end = depth
            break
        if depth < begin:
            continue
        if pod is None and (match := _POD.search(folder)):
            pod, container, end = match[1].replace("_", "-"), None, len(folders)
        if match := _CONTAINER.search(folder):
            container, end = match[1], depth
            if pod or not pods or depth > pods[-1]:
                break
    inside = "/".join(folders[begin:end])
    slurm, other = _SLURM_JOB.search(inside), job_in(inside)
    number = (slurm[1] or slurm[2]) if slurm else None
    job = other.name if other and not (other.is_machine and (pod or container)) else None
    return Owner(pod_uid=pod, container_id=container, slurm_job_id=number, job=job)


def _around(path: str) -> Sequence[str]:
    """The node's folders in our own `path`."""
    folders = path.split("/")
    pods = [depth for depth, folder in enumerate(folders) if _POD.search(folder)]
    own = pods or [depth for depth, folder in enumerate(folders) if _CONTAINER.search(folder)]
    return folders[: own[-1]] if own else ()
