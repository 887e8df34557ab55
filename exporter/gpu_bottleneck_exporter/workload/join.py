"""Whose a GPU is, from both sides: from its processes, and from what the kubelet gave."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.podresources import Holder


@dataclass(frozen=True, slots=True)
class Assigned:
    """What is known of one GPU besides its processes."""

    holders: tuple[Holder, ...] = ()
    """Containers that the kubelet gave it to."""
    names: Mapping[str, Holder] = field(default_factory=dict)
    """Containers by id."""
    settled: frozenset[str] = frozenset()
    """Uids of pods that held GPUs both before and after the kubelet was asked."""


NOTHING = Assigned()


def joined(owners: Iterable[Owner], assigned: Assigned) -> tuple[Owner, ...]:
    """`owners` of the processes with their names, and holders without a process.

    Where it cannot be told which owner is which holder they stay apart: no pair is
    better than a wrong one.
    """
    named = [_named(owner, assigned.names) for owner in owners]
    seen = {_names(owner) for owner in named}
    left = [holder for holder in assigned.holders if holder not in seen]
    pods = {owner.pod_uid for owner in named if owner.pod_uid and owner.pod is None}
    if len(left) == len(pods) == 1 and pods <= assigned.settled:
        named = _with_names(named, pods, left.pop())
    return (*named, *(Owner(*holder) for holder in left))


def _named(owner: Owner, names: Mapping[str, Holder]) -> Owner:
    holder = names.get(owner.container_id or "")
    return owner if holder is None else _with(owner, holder, holder.container)


def _with_names(owners: list[Owner], pods: Collection[str | None], holder: Holder) -> list[Owner]:
    """`owners`, those of the one pod as `holder`; its container only if they are of one."""
    of_pod = [owner for owner in owners if owner.pod_uid in pods and owner.pod is None]
    one = len({owner.container_id for owner in of_pod}) == 1
    container = holder.container if one else None
    return [_with(owner, holder, container) if owner in of_pod else owner for owner in owners]


def _with(owner: Owner, holder: Holder, container: str | None) -> Owner:
    return replace(owner, namespace=holder.namespace, pod=holder.pod, container=container)


def _names(owner: Owner) -> tuple[str | None, ...]:
    return owner.namespace, owner.pod, owner.container
