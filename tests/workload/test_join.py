"""Owners and holders: paired where it is certain, told apart where it is not."""

from __future__ import annotations

from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.join import Assigned, joined
from gpu_bottleneck_exporter.workload.podresources import Holder

A, B = Holder("research", "train-0", "main"), Holder("vision", "serve-0", "model")
UID, OTHER = "2c48913c-b29f-11e7-9350-020968147796", "96dd7de3-0783-4613-a707-e0effc077ef5"
ID, OTHER_ID = "a1" * 32, "b2" * 32
OF_A = Owner(pod_uid=UID, container_id=ID, user="1000")
OF_B = Owner(pod_uid=OTHER, container_id=OTHER_ID, user="1000")
BOTH = frozenset({UID, OTHER})


def named(holder: Holder, owner: Owner) -> Owner:
    return Owner(*holder, owner.pod_uid, owner.container_id, owner.slurm_job_id, owner.user)


def test_nobody_told_of_nobody() -> None:
    assert joined((), Assigned()) == ()


def test_without_a_kubelet_owners_are_what_processes_say() -> None:
    assert joined((OF_A, OF_B), Assigned()) == (OF_A, OF_B)


def test_who_has_not_opened_it_has_names_only() -> None:
    assert joined((), Assigned((A, B))) == (Owner(*A), Owner(*B))


def test_one_pod_and_one_holder_are_the_same() -> None:
    assert joined((OF_A,), Assigned((A,), settled=BOTH)) == (named(A, OF_A),)


def test_users_of_one_pod_all_get_its_name() -> None:
    second = Owner(pod_uid=UID, container_id=ID, user="root")
    found = joined((OF_A, second), Assigned((A,), settled=BOTH))
    assert found == (named(A, OF_A), named(A, second))


def test_a_pod_that_came_after_the_kubelet_was_asked_has_no_name_yet() -> None:
    assert joined((OF_A,), Assigned((B,), settled=frozenset({OTHER}))) == (OF_A, Owner(*B))


def test_several_holders_are_not_guessed_at() -> None:
    assert joined((OF_A,), Assigned((A, B), settled=BOTH)) == (OF_A, Owner(*A), Owner(*B))


def test_several_pods_are_not_guessed_at() -> None:
    assert joined((OF_A, OF_B), Assigned((A,), settled=BOTH)) == (OF_A, OF_B, Owner(*A))


def test_a_process_that_is_in_no_pod_has_no_part_in_it() -> None:
    host = Owner(user="root", slurm_job_id="7")
    found = joined((OF_A, host), Assigned((A,), settled=BOTH))
    assert found == (named(A, OF_A), host)
    assert joined((host,), Assigned((A,), settled=BOTH)) == (host, Owner(*A))


def test_which_of_a_pods_containers_is_not_guessed_at() -> None:
    side = Owner(pod_uid=UID, container_id=OTHER_ID)
    found = joined((OF_A, side), Assigned((A,), settled=BOTH))
    assert [(owner.pod, owner.container) for owner in found] == [("train-0", None)] * 2


def test_logs_tell_names_for_certain() -> None:
    assigned = Assigned((A, B), {ID: A, OTHER_ID: B})
    assert joined((OF_A, OF_B), assigned) == (named(A, OF_A), named(B, OF_B))


def test_logs_tell_names_without_a_kubelet() -> None:
    assert joined((OF_A, OF_B), Assigned(names={ID: A})) == (named(A, OF_A), OF_B)


def test_what_logs_leave_over_may_be_certain() -> None:
    assigned = Assigned((A, B), {ID: A}, BOTH)
    assert joined((OF_A, OF_B), assigned) == (named(A, OF_A), named(B, OF_B))


def test_logs_tell_of_who_was_not_given_it() -> None:
    """A monitor that sees all GPUs, beside a pod that has not opened its own."""
    monitor = Holder("monitoring", "dcgm", "exporter")
    found = joined((OF_B,), Assigned((A,), {OTHER_ID: monitor}, BOTH))
    assert found == (named(monitor, OF_B), Owner(*A))


def test_a_holder_whose_other_container_has_opened_it_is_told_of_both() -> None:
    side = Holder(A.namespace, A.pod, "side")
    assert joined((OF_A,), Assigned((A, side), {ID: A}, BOTH)) == (named(A, OF_A), Owner(*side))
