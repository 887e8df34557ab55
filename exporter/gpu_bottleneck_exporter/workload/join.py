"""Whose a GPU is, from both sides: from its processes, and from what the kubelet gave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


NOTHING = Assigned()


def joined(owners: Iterable[Owner], assigned: Assigned) -> tuple[Owner, ...]:
    """`owners` of the processes with their names, and holders without a process.

    Names come by container id only: that a GPU has one pod and one holder does not make
    them the same, for who was not given it can open it all the same. While a pod has no
    names, any holder may be this pod, and none is told of: it would count as a second tenant.
    """
    named = tuple(_named(owner, assigned.names) for owner in owners)
    # By the pod's uid: a container outside of any pod is not the kubelet's, and no holder.
    if any(owner.pod_uid and owner.pod is None for owner in named):
        return named
    seen = {(owner.namespace, owner.pod, owner.container) for owner in named}
    return (*named, *(Owner(*holder) for holder in assigned.holders if holder not in seen))


def _named(owner: Owner, names: Mapping[str, Holder]) -> Owner:
    holder = names.get(owner.container_id or "")
    if holder is None:
        return owner
    return replace(owner, namespace=holder.namespace, pod=holder.pod, container=holder.container)
