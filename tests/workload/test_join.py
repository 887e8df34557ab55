"""Owners and holders: names by container id only, and no holder that may be an owner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.join import Assigned, joined
from gpu_bottleneck_exporter.workload.podresources import ContainerName

A, B = ContainerName("research", "train-0", "main"), ContainerName("vision", "serve-0", "model")
UID, OTHER = "2c48913c-b29f-11e7-9350-020968147796", "96dd7de3-0783-4613-a707-e0effc077ef5"
ID, OTHER_ID = "a1" * 32, "b2" * 32
OF_A = Owner(pod_uid=UID, container_id=ID, user="1000")
OF_B = Owner(pod_uid=OTHER, container_id=OTHER_ID, user="1000")


def given(holder: ContainerName) -> Owner:
    """A container that the kubelet names, and in which no process has the GPU."""
    return Owner(*holder, source="kubelet")


def named(holder: ContainerName, owner: Owner) -> Owner:
    return Owner(*holder, owner.pod_uid, owner.container_id, owner.slurm_job_id, owner.user)


MONITOR = ContainerName("monitoring", "dcgm", "exporter")
"""Sees all GPUs, though it was given none."""
SIDE = ContainerName(A.namespace, A.pod, "side")
SIDE_OWNER = Owner(pod_uid=UID, container_id=OTHER_ID)
UNKNOWN = Owner(pod_uid=UID)
AS_ROOT = Owner(pod_uid=UID, container_id=ID, user="root")
DOCKERS = Owner(container_id=OTHER_ID, user="1000")
OUTSIDE = Owner(user="root", slurm_job_id="7")
RESERVATION = ContainerName("kai-resource-reservation", "gpu-reservation-node-1-x7k2p", "main")
"""A pod with which KAI reserves a GPU to give fractions of it to others."""
SAME_POD = replace(given(SIDE), pod_uid=UID)
"""A container that has not opened its GPU, in a pod of which another one has."""
IN_JOB, OTHER_JOB = replace(OF_A, slurm_job_id="7"), replace(SIDE_OWNER, slurm_job_id="8")
THIRD = ContainerName(A.namespace, A.pod, "third")
NAMESAKE = ContainerName("vision", A.pod, "main")
NAMED_A, NAMED_B = named(A, OF_A), named(B, OF_B)
Owners = tuple[Owner, ...]
CASES: dict[str, tuple[Owners, Assigned, Owners]] = {
    "no owner": ((), Assigned(), ()),
    "no kubelet": ((OF_A, OF_B), Assigned(), (OF_A, OF_B)),
    "not opened": ((), Assigned((A, B)), (given(A), given(B))),
    # A pod that was given none opens it all the same: privileged, or with all of them visible.
    "alone on another's GPU": ((OF_B,), Assigned((A,)), (OF_B,)),
    "names of other containers": ((OF_B,), Assigned((A,), {ID: A}), (OF_B,)),
    # On a shared GPU, where one of the two has a name, no holder is told of.
    "beside no name": ((OF_A, OF_B), Assigned((A,), {ID: A}), (NAMED_A, OF_B)),
    "beside no name, the other": ((OF_A, OF_B), Assigned((B,), {ID: A}), (NAMED_A, OF_B)),
    "beside no name, both": ((OF_A, OF_B), Assigned((A, B), {ID: A}), (NAMED_A, OF_B)),
    "its pod's other": ((OF_A, SIDE_OWNER), Assigned((A, B), {ID: A}), (NAMED_A, SIDE_OWNER)),
    "no container": ((UNKNOWN,), Assigned((A,), {ID: A}), (UNKNOWN,)),
    "links": ((OF_A, OF_B), Assigned((A, B), {ID: A, OTHER_ID: B}), (NAMED_A, NAMED_B)),
    "links, no kubelet": ((OF_A, OF_B), Assigned(names={ID: A}), (NAMED_A, OF_B)),
    "two users": ((OF_A, AS_ROOT), Assigned((A,), {ID: A}), (NAMED_A, named(A, AS_ROOT))),
    "a holder without a process": ((OF_A,), Assigned((A, B), {ID: A}), (NAMED_A, given(B))),
    "a monitor": ((OF_B,), Assigned((A,), {OTHER_ID: MONITOR}), (named(MONITOR, OF_B), given(A))),
    # An init container has the GPU, or one of two has not opened its slice: one tenant.
    "the other container": ((OF_A,), Assigned((A, SIDE), {ID: A}), (NAMED_A, SAME_POD)),
    "the other, not the first": (
        (OF_A,),
        Assigned((A,), {ID: SIDE}),
        (named(SIDE, OF_A), replace(SAME_POD, container="main")),
    ),
    "the other, two users": (
        (OF_A, AS_ROOT),
        Assigned((SIDE,), {ID: A}),
        (NAMED_A, named(A, AS_ROOT), SAME_POD),
    ),
    "the other and a tenant": (
        (OF_A,),
        Assigned((SIDE, B), {ID: A}),
        (NAMED_A, SAME_POD, given(B)),
    ),
    "a pod of the same name": ((OF_A,), Assigned((NAMESAKE,), {ID: A}), (NAMED_A, given(NAMESAKE))),
    "the other, in a job": (
        (IN_JOB,),
        Assigned((SIDE,), {ID: A}),
        (named(A, IN_JOB), replace(SAME_POD, slurm_job_id="7")),
    ),
    "the other, in one of two jobs": (
        (IN_JOB, OTHER_JOB),
        Assigned((THIRD,), {ID: A, OTHER_ID: SIDE}),
        (named(A, IN_JOB), named(SIDE, OTHER_JOB), replace(given(THIRD), pod_uid=UID)),
    ),
    # The kubelet gives to pods only.
    "Docker's": ((DOCKERS,), Assigned((A,)), (DOCKERS, given(A))),
    "Docker's, named": ((OF_A, DOCKERS), Assigned((A, B), {ID: A}), (NAMED_A, DOCKERS, given(B))),
    "Docker's, no name": ((OF_B, DOCKERS), Assigned((A, B), {ID: A}), (OF_B, DOCKERS)),
    "in no container": ((OUTSIDE,), Assigned((A,)), (OUTSIDE, given(A))),
    "in none, named": ((OF_A, OUTSIDE), Assigned((A, B), {ID: A}), (NAMED_A, OUTSIDE, given(B))),
    "in none, no name": ((OF_B, OUTSIDE), Assigned((A, B), {ID: A}), (OF_B, OUTSIDE)),
    "a placeholder is no tenant": ((OF_A,), Assigned((RESERVATION,), {ID: A}), (NAMED_A,)),
    "a placeholder beside one": ((), Assigned((A, RESERVATION)), (given(A),)),
    "a placeholder alone": ((), Assigned((RESERVATION,)), (given(RESERVATION),)),
}


@pytest.mark.parametrize(("owners", "assigned", "told"), CASES.values(), ids=CASES)
def test_owners_and_holders(owners: Owners, assigned: Assigned, told: Owners) -> None:
    assert joined(owners, assigned) == told
