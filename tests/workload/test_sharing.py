"""The tenants of a shared GPU: their names, and for how long they are known."""

from __future__ import annotations

from gpu_bottleneck_exporter.schedule import CADENCE
from gpu_bottleneck_exporter.workload.identity import NO_OWNER, Owner
from gpu_bottleneck_exporter.workload.names import Sharing, Tenant, tenant_of
from support.rows import rows

POD, OTHER_POD = Owner(pod_uid="3b", user="root"), Owner(pod_uid="1c", user="root")
LATER_NS = CADENCE.tenant_ns + 1


def claimed(number: int, user: str = "alice") -> Owner:
    return Owner(slurm_job_id=f"{number}", user=user, source="claim")


@rows(
    "owner, name",
    {
        "a pod": (POD, "pod-3b"),
        "a Slurm job": (Owner(slurm_job_id="7", user="bob", source="cgroup"), "slurm-7"),
        "a claimed job": (claimed(7), "slurm-7-alice"),
        "a container": (Owner(container_id="0123456789abcdef"), "container-0123456789ab"),
        "another scheduler's job": (Owner(job="pbs-7.server", user="bob"), "pbs-7.server"),
        "a user": (Owner(user="bob"), "user-bob"),
        "an unknown owner": (NO_OWNER, None),
    },
)
def test_tenants_have_the_names_of_jobs(owner: Owner, name: str | None) -> None:
    assert tenant_of(owner) == name


def test_a_gpu_is_shared_until_five_minutes_after_the_second_tenant() -> None:
    sharing = Sharing()
    assert sharing.update({1: POD, 2: POD}, 1) == {}
    assert sharing.update({1: POD, 2: OTHER_POD}, 2).keys() == {"pod-3b", "pod-1c"}
    left = sharing.update({1: POD}, 3)
    assert {name: tenant.pids for name, tenant in left.items()} == {"pod-1c": set(), "pod-3b": {1}}
    assert left["pod-1c"].owners == (OTHER_POD,)
    assert sharing.update({1: POD}, 2 + LATER_NS) == {}


def test_a_tenant_has_all_its_containers() -> None:
    first, second = Owner(pod_uid="3b", container="a"), Owner(pod_uid="3b", container="b")
    tenants = Sharing().update({1: first, 2: second, 3: OTHER_POD}, 1)
    assert tenants["pod-3b"] == Tenant((first, second), frozenset({1, 2}))


def test_many_claimed_jobs_of_a_user_are_one_tenant() -> None:
    jobs = {pid: claimed(pid) for pid in range(1, 5)}
    assert len(Sharing().update({**jobs, 9: claimed(9, "bob")}, 1)) == 5
    many = Sharing().update({**jobs, 5: claimed(5), 9: claimed(9, "bob")}, 1)
    assert many.keys() == {"user-alice", "slurm-9-bob"}


def test_tenants_that_left_are_bounded() -> None:
    sharing = Sharing()
    for number in range(500):
        tenants = sharing.update({1: POD, 2: Owner(pod_uid=f"{number}")}, number)
    assert len(tenants) <= 66
    assert "pod-498" in tenants
