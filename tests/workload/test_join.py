"""Owners and holders: names by container id only, and no holder that may be an owner."""

from __future__ import annotations

import pytest

from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.join import Assigned, joined
from gpu_bottleneck_exporter.workload.podresources import Holder

A, B = Holder("research", "train-0", "main"), Holder("vision", "serve-0", "model")
UID, OTHER = "2c48913c-b29f-11e7-9350-020968147796", "96dd7de3-0783-4613-a707-e0effc077ef5"
ID, OTHER_ID = "a1" * 32, "b2" * 32
OF_A = Owner(pod_uid=UID, container_id=ID, user="1000")
OF_B = Owner(pod_uid=OTHER, container_id=OTHER_ID, user="1000")


def named(holder: Holder, owner: Owner) -> Owner:
    return Owner(*holder, owner.pod_uid, owner.container_id, owner.slurm_job_id, owner.user)


def test_nobody_told_of_nobody() -> None:
    assert joined((), Assigned()) == ()


def test_without_a_kubelet_owners_are_what_processes_say() -> None:
    assert joined((OF_A, OF_B), Assigned()) == (OF_A, OF_B)


def test_who_has_not_opened_it_has_names_only() -> None:
    assert joined((), Assigned((A, B))) == (Owner(*A), Owner(*B))


def test_who_is_alone_on_anothers_gpu_does_not_get_its_name() -> None:
    """A pod that was given none opens it all the same: privileged, or with all of them visible."""
    intruder = OF_B
    assert joined((intruder,), Assigned((A,))) == (intruder,)


def test_names_of_other_containers_name_nobody_here() -> None:
    assert joined((OF_B,), Assigned((A,), {ID: A})) == (OF_B,)


@pytest.mark.parametrize("holders", [(A,), (B,), (A, B)])
def test_beside_a_pod_without_names_no_holder_is_told_of(holders: tuple[Holder, ...]) -> None:
    """On a shared GPU, where one of the two has a name."""
    assert joined((OF_A, OF_B), Assigned(holders, {ID: A})) == (named(A, OF_A), OF_B)


def test_one_container_with_a_name_does_not_name_its_pods_others() -> None:
    side = Owner(pod_uid=UID, container_id=OTHER_ID)
    assert joined((OF_A, side), Assigned((A, B), {ID: A})) == (named(A, OF_A), side)


def test_a_pod_whose_container_is_not_known_has_no_name() -> None:
    owner = Owner(pod_uid=UID)
    assert joined((owner,), Assigned((A,), {ID: A})) == (owner,)


def test_links_tell_names() -> None:
    assigned = Assigned((A, B), {ID: A, OTHER_ID: B})
    assert joined((OF_A, OF_B), assigned) == (named(A, OF_A), named(B, OF_B))


def test_links_tell_names_without_a_kubelet() -> None:
    assert joined((OF_A, OF_B), Assigned(names={ID: A})) == (named(A, OF_A), OF_B)


def test_users_of_one_container_all_get_its_name() -> None:
    second = Owner(pod_uid=UID, container_id=ID, user="root")
    found = joined((OF_A, second), Assigned((A,), {ID: A}))
    assert found == (named(A, OF_A), named(A, second))


def test_a_holder_without_a_process_is_told_of_while_all_have_names() -> None:
    assert joined((OF_A,), Assigned((A, B), {ID: A})) == (named(A, OF_A), Owner(*B))


def test_who_was_not_given_it_stands_beside_the_holder() -> None:
    """A monitor that sees all GPUs, and a pod that has not opened its own."""
    monitor = Holder("monitoring", "dcgm", "exporter")
    found = joined((OF_B,), Assigned((A,), {OTHER_ID: monitor}))
    assert found == (named(monitor, OF_B), Owner(*A))


def test_a_holder_whose_other_container_has_opened_it_is_told_of_both() -> None:
    side = Holder(A.namespace, A.pod, "side")
    assert joined((OF_A,), Assigned((A, side), {ID: A})) == (named(A, OF_A), Owner(*side))


@pytest.mark.parametrize(
    "outside",
    [Owner(container_id=OTHER_ID, user="1000"), Owner(user="root", slurm_job_id="7")],
    ids=["Docker's container", "no container"],
)
def test_what_is_in_no_pod_is_no_holder(outside: Owner) -> None:
    """The kubelet gives to pods only."""
    assert joined((outside,), Assigned((A,))) == (outside, Owner(*A))
    found = joined((OF_A, outside), Assigned((A, B), {ID: A}))
    assert found == (named(A, OF_A), outside, Owner(*B))
    assert joined((OF_B, outside), Assigned((A, B), {ID: A})) == (OF_B, outside)


RESERVATION = Holder("kai-resource-reservation", "gpu-reservation-node-1-x7k2p", "main")


def test_a_placeholder_is_no_second_tenant() -> None:
    """A pod with a fraction of a GPU, which KAI reserves with a pod of its own."""
    assert joined((OF_A,), Assigned((RESERVATION,), {ID: A})) == (named(A, OF_A),)
    assert joined((), Assigned((A, RESERVATION))) == (Owner(*A),)


def test_a_placeholder_alone_keeps_the_gpu_taken() -> None:
    assert joined((), Assigned((RESERVATION,))) == (Owner(*RESERVATION),)
