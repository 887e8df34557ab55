"""What a process's own files say about whose it is; pure functions over their text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
_USERS_OWN = re.compile(r"user-[0-9]+\.slice|user@[0-9]+\.service")
"""Below these a user makes and names groups."""
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


def owner_in_cgroup(
    text: str, ours: str = "", made_by_root: Callable[[str, str], str] = lambda _, path: path
) -> Owner:
    """Pod, container and Slurm job that `text`, a /proc/PID/cgroup file, names.

    `ours` is our own such file: what is around us is the machine, and nobody's container.
    `made_by_root` tells, of controllers and a path, the beginning of the path that only root can
    have made. Under cgroup v1 some hierarchies may lie outside of the pod or job: the line that
    says most counts. Folders are told by their names, so it does not matter that a path in
    another cgroup namespace begins with `/../..`.
    """
    around = {controllers: _around(path) for controllers, path in _lines(ours)}
    found = [
        _place(made_by_root(controllers, path), around.get(controllers, ()))
        for controllers, path in _lines(text)
    ]
    pod_uid, container_id, _ = max(found, key=_told, default=_NOWHERE)
    jobs = (place.slurm_job_id for place in found if place.slurm_job_id)
    return Owner(pod_uid=pod_uid, container_id=container_id, slurm_job_id=next(jobs, None))


def slurm_job_in_environment(text: str) -> str | None:
    """The Slurm job that `text`, a /proc/PID/environ file, names."""
    found = _JOB.search(text)
    return found[1] if found else None


class _Place(NamedTuple):
    pod_uid: str | None = None
    container_id: str | None = None
    slurm_job_id: str | None = None


_NOWHERE = _Place()


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Controllers and path of each hierarchy."""
    for line in text.split("\n"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path:
            yield controllers, path.removesuffix(" (deleted)")


def _place(path: str, around: Sequence[str]) -> _Place:
    """What the folders of `path` say, from the outermost on, but for those `around` us.

    The outermost container counts, within a pod the pod's: what lies below was made in there,
    and what runs in it is one tenant, however many containers it makes for itself. So does
    whatever lies below a user's own groups.
    """
    pod: str | None = None
    folders = path.split("/")
    inside = _shared(folders, around)
    for depth, folder in enumerate(folders):
        if _USERS_OWN.fullmatch(folder):
            return _Place(pod, None, _slurm_job(folders[inside:depth]))
        if depth < inside:
            continue
        if pod is None and (found := _POD.search(folder)):
            pod = found[1].replace("_", "-")
        if found := _CONTAINER.search(folder):
            return _Place(pod, found[1], _slurm_job(folders[inside:depth]))
    return _Place(pod, None, _slurm_job(folders[inside:]))


def _slurm_job(folders: Sequence[str]) -> str | None:
    found = _SLURM.search("/".join(folders))
    return found[1] if found else None


def _around(path: str) -> Sequence[str]:
    """Folders of our own `path` above our own pod or container: the node that we run in."""
    folders = path.split("/")
    own = [
        depth
        for depth, folder in enumerate(folders)
        if _POD.search(folder) or _CONTAINER.search(folder)
    ]
    if not own:
        return ()
    pods = [depth for depth in own if _POD.search(folders[depth])]
    return folders[: pods[-1] if pods else own[-1]]


def _shared(folders: Sequence[str], around: Sequence[str]) -> int:
    """How many of the first ones are the same."""
    pairs = enumerate(zip(folders, around, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(folders), len(around)))


def _told(place: _Place) -> tuple[bool, bool]:
    return place.pod_uid is not None, place.container_id is not None
