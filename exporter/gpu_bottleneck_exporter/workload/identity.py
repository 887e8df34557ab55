"""What a process's own files say about whose it is; pure functions over their text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_POD = re.compile(
    r"(?:^|-)pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:$|:)"
)
"""A folder of a pod: `pod<uid>`, `kubepods-burstable-pod<uid with _>.slice`, and the latter with
`:cri-containerd:<id>` behind it. The uid of a static pod is a hash."""
_CONTAINER = re.compile(r"(?:^|(?<!conmon)[-:])([0-9a-f]{64})(?:\.scope)?$")
"""A folder of a container, whatever the runtime calls it: `<id>`, `docker-<id>.scope`,
`cri-containerd-<id>.scope`, `crio-<id>`, `libpod-payload-<id>`. Not that of its conmon, which
only looks after it."""
_SLURM = re.compile(
    r"(?:^|/)(?:(?:[^/]+_)?slurmstepd\.scope|slurm(?:_[^/]+)?/uid_[0-9]+)/job_([0-9]{1,10})(?:/|$)"
)
"""Cgroup v2, then v1; `<node>_` and `_<node>` where several slurmd run on one machine."""
_JOB = re.compile(r"(?:^|\0)SLURM_JOB_ID=([0-9]{1,10})(?:\0|$)")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a process is. None: it belongs to no such thing, or that is not known."""

    namespace: str | None = None
    """Of the pod; only the kubelet knows the three names."""
    pod: str | None = None
    container: str | None = None
    pod_uid: str | None = None
    container_id: str | None = None
    slurm_job_id: str | None = None
    user: str | None = None
    rendezvous: str | None = None
    """A hash of where the ranks of its job meet."""


NOBODY = Owner()


def owner_in_cgroup(text: str) -> Owner:
    """Pod, container and Slurm job that `text`, a /proc/PID/cgroup file, names.

    Under cgroup v1 some hierarchies may lie outside of the pod or job: the line that
    says most counts. Folders are told by their names alone, so it does not matter that
    a path in another cgroup namespace begins with `/../..`.
    """
    paths = list(_paths(text))
    places = [_place(path) for path in paths]
    pod_uid, container_id = max(places, key=_told, default=(None, None))
    jobs = (found[1] for path in paths if (found := _SLURM.search(path)))
    return Owner(pod_uid=pod_uid, container_id=container_id, slurm_job_id=next(jobs, None))


def slurm_job_in_environment(text: str) -> str | None:
    """The Slurm job that `text`, a /proc/PID/environ file, names."""
    found = _JOB.search(text)
    return found[1] if found else None


def _paths(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        yield line.split(":", 2)[-1].removesuffix(" (deleted)")


def _place(path: str) -> tuple[str | None, str | None]:
    """Pod uid and container id.

    Where they are nested (Kubernetes in Docker, Docker in Docker) the innermost pod and
    the innermost container count: what is around them is a node, and an exporter inside
    that node sees no more of the path. Below a pod, though, its own container counts,
    not one that was started in there: the kubelet knows no other, and what runs in a pod
    is one tenant, however many containers it makes for itself.
    """
    pod: str | None = None
    container: str | None = None
    for folder in path.split("/"):
        if found := _POD.search(folder):
            pod, container = found[1].replace("_", "-"), None
        if (found := _CONTAINER.search(folder)) and (pod is None or container is None):
            container = found[1]
    return pod, container


def _told(place: tuple[str | None, str | None]) -> tuple[bool, bool]:
    pod, container = place
    return pod is not None, container is not None
