"""Paths as machines in use show them, ids replaced; and whatever else a file may hold."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.host.environment import variables_in
from gpu_bottleneck_exporter.host.process import real_uid
from gpu_bottleneck_exporter.workload.identity import NO_OWNER, Owner, owner_in_cgroup, slurm_job
from gpu_bottleneck_exporter.workload.schedulers import SCHEMES
from support.rows import rows

UID = "2c48913c-b29f-11e7-9350-020968147796"
UID_ = UID.replace("-", "_")
OTHER_UID = "96dd7de3-0783-4613-a707-e0effc077ef5"
OTHER_UID_ = OTHER_UID.replace("-", "_")
STATIC = "1cd8e5ea4f4a7e1e0b37a2d6d86f10ae"
ID = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961"
NODE = "65a1b6ad09655b3f1475ede1aa0061a97c0d1ada9f2b2acac959afbc92094463"
INNER = "13a0f64b909e3ff2d63f196d6947927a8af997ab68f8fa9ebb6d6c7018af4ec9"
SCOPE = f"cri-containerd-{ID}.scope"
INNER_SCOPE = f"cri-containerd-{INNER}.scope"
POD_SLICE = f"kubepods-burstable-pod{UID_}.slice"
BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/{POD_SLICE}"
ROOTLESS = "/user.slice/user-1000.slice/user@1000.service/user.slice"
KIND = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice"
KIND_SLICE = f"kubelet-kubepods-besteffort-pod{OTHER_UID_}.slice"
KIND_POD = f"{KIND}/{KIND_SLICE}"
JOB = "system.slice/slurmstepd.scope/job_1392969"
CGROUP = "cgroup"
SLURM = ("SLURM_JOB_ID",)
USERS = "/user.slice/user-1000.slice/user@1000.service"

Place = tuple[str | None, str | None]
Text = Callable[[str], str]
"""A /proc/PID/cgroup file of a process in that path."""


def v2(path: str) -> str:
    return f"0::{path}\n"


def v1(path: str, systemd: str | None = None) -> str:
    """All hierarchies in `path`, that of systemd perhaps elsewhere."""
    names = ("perf_event", "cpu,cpuacct", "memory", "devices", "")
    lines = [f"{number}:{name}:{path}" for number, name in enumerate(names, start=2)]
    return "\n".join([*lines, f"1:name=systemd:{systemd or path}", ""])


PLACES: dict[Place, dict[str, str]] = {
    (UID, ID): {
        "containerd, burstable": f"{BURSTABLE}/{SCOPE}",
        "containerd, guaranteed": f"/kubepods.slice/kubepods-pod{UID_}.slice/{SCOPE}",
        "no systemd below a kubelet": f"/system.slice/a.service/{POD_SLICE}:cri-containerd:{ID}",
        "a cgroup made inside the container": f"{BURSTABLE}/{SCOPE}/init",
        "CRI-O": f"{BURSTABLE}/crio-{ID}.scope",
        "CRI-O, cgroupfs": f"/kubepods/burstable/pod{UID}/crio-{ID}",
        "cri-dockerd": f"{BURSTABLE}/docker-{ID}.scope",
        "cgroupfs, burstable": f"/kubepods/burstable/pod{UID}/{ID}",
        "another cgroup namespace": f"/../../kubepods-burstable.slice/{POD_SLICE}/{SCOPE}",
        "kind in a pod": f"{BURSTABLE}/{SCOPE}/docker/{NODE}{KIND_POD}/{INNER_SCOPE}",
    },
    (UID, None): {
        "conmon in its pod": f"{BURSTABLE}/crio-conmon-{ID}.scope",
        "a pod, not in a container": BURSTABLE,
    },
    (None, None): {
        "conmon in the system": f"/system.slice/crio-conmon-{ID}.scope",
        "podman, rootless: a user's own": f"{ROOTLESS}/libpod-{ID}.scope/container",
        "a container in a session": f"/user.slice/user-1000.slice/session-3.scope/{ID}",
        "a pod that a user names": f"/../../user.slice/user@7.service/kubepods/pod{UID}/{ID}",
        "the root": "/",
        "a service": "/system.slice/nvidia-persistenced.service",
        "an id too short": f"/docker/{ID[:63]}",
        "an id in capitals": f"/docker/{ID.upper()}",
        "an id with something behind it": f"/docker/{ID}.mount",
        "an id with something before it": f"/docker/x{ID}",
        "a pod of a uid too short": f"/kubepods/burstable/pod{UID[:-1]}",
        "a folder that ends in pod": f"/tripod{UID}",
    },
    (STATIC, ID): {"a static pod": f"/kubepods/burstable/pod{STATIC}/{ID}"},
    (None, ID): {
        "docker, systemd": f"/system.slice/docker-{ID}.scope",
        "docker below a parent": f"/training/{ID}",
        "docker, with systemd inside": f"/docker/{ID}/system.slice/sshd.service",
        "podman": f"/machine.slice/libpod-{ID}.scope",
        "podman in a unit": f"/system.slice/train.service/libpod-payload-{ID}",
        "podman's pod": f"/machine.slice/machine-libpod_pod_{NODE}.slice/libpod-{ID}.scope",
        "another container of our own pod": f"/../{SCOPE}",
        "gone": f"/system.slice/docker-{ID}.scope (deleted)",
    },
    (None, NODE): {
        "kind's node itself": f"/docker/{NODE}/kubelet.slice/kubelet.service",
    },
    (OTHER_UID, None): {
        "kind, a pod, not in a container": f"/docker/{NODE}{KIND_POD}",
    },
    (OTHER_UID, INNER): {
        "kind, seen from outside": f"/docker/{NODE}{KIND_POD}/{INNER_SCOPE}",
        "kind, cgroupfs": f"/docker/{NODE}/kubelet/kubepods/besteffort/pod{OTHER_UID}/{INNER}",
        "k3d": f"/system.slice/docker-{NODE}.scope/kubepods/pod{OTHER_UID}/{INNER}",
        "a node in a container": f"/docker/{ID}/docker/{NODE}/kubepods/pod{OTHER_UID}/{INNER}",
        "a container in its pod": f"/docker/{NODE}{KIND_POD}/{INNER_SCOPE}/docker/{ID}",
        "kind, seen from inside the node": f"{KIND_POD}/{INNER_SCOPE}",
        "kind, seen from a pod of it": f"/../../{KIND_SLICE}/{INNER_SCOPE}",
    },
    (UID, INNER): {"a pod below a pod": f"{BURSTABLE}/pod{OTHER_UID}/{INNER}"},
}
"""Paths by the pod and the container that they name."""


@pytest.mark.parametrize("text", [v1, v2], ids=["v1", "v2"])
@rows("place, path", {n: (place, path) for place in PLACES for n, path in PLACES[place].items()})
def test_pods_and_containers(text: Text, path: str, place: Place) -> None:
    pod_uid, container_id = place
    owner = Owner(pod_uid=pod_uid, container_id=container_id, source=CGROUP if any(place) else None)
    assert owner_in_cgroup(text(path)) == owner


JOBS: dict[str, tuple[str, str | None]] = {
    "v2": (f"/{JOB}/step_0/user/task_0", "1392969"),
    "v2, adopted by pam": (f"/{JOB}/step_extern/user/task_special", "1392969"),
    "v2, several slurmd": ("/system.slice/node_01_slurmstepd.scope/job_7/step_0/user/task_0", "7"),
    "v1": ("/slurm/uid_1000/job_123/step_0", "123"),
    "v1, several slurmd": ("/slurm_gpu-node_01/uid_1000/job_123/step_batch", "123"),
    "slurmstepd": ("/system.slice/slurmstepd.scope/system", None),
    "no number": ("/system.slice/slurmstepd.scope/job_bad/step_0", None),
    "a number with something behind it": ("/system.slice/slurmstepd.scope/job_7x/step_0", None),
    "digits that are none": ("/system.slice/slurmstepd.scope/job_\u0667/step_0", None),
    "no job of Slurm's": ("/user.slice/job_456/step_0", None),
    "another scope": ("/system.slice/notslurmstepd.scope/job_456/step_0", None),
    "no user of Slurm's": ("/nslurm/uid_1000/job_1", None),
}


@pytest.mark.parametrize("text", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize(("path", "job"), JOBS.values(), ids=JOBS)
def test_slurm_jobs(text: Text, path: str, job: str | None) -> None:
    assert owner_in_cgroup(text(path)) == Owner(slurm_job_id=job, source=job and CGROUP)


OTHERS: dict[str, tuple[str, str | None]] = {
    "PBS, v1": ("/pbs_jobs.service/jobid/2404743.opbs", "pbs-2404743.opbs"),
    "PBS, v2": ("/pbs_jobs.service/jobs/2404743.opbs/x", "pbs-2404743.opbs"),
    "PBS, in a slice": ("/system.slice/pbs_jobs.service/jobs/7.s", "pbs-7.s"),
    "PBS Professional": ("/pbspro.slice/pbspro-7.head.slice", "pbs-7.head"),
    "PBS, an array": ("/pbspro.slice/pbspro-7\\x5b3\\x5d.head.slice", "pbs-7[3].head"),
    "TORQUE": ("/torque/1234.head.example/1", "torque-1234.head.example"),
    "LSF": ("/lsf/cluster1/job.101.17487.1367353231", "lsf-101"),
    "LSF, an array": ("/lsf/cluster1/job.101[4].17487.1367353231/step", "lsf-101[4]"),
    "HTCondor, v1": ("/htcondor/condor_var_lib_condor_execute_slot1_2@n1", "htcondor-slot1_2@n1"),
    "HTCondor, v2": (
        "/system.slice/htcondor/condor_var_lib_condor_execute_slot1_23@n1.example",
        "htcondor-slot1_23@n1.example",
    ),
    "HTCondor, its unit": ("/system.slice/condor.service/condor_scratch_slot2", "htcondor-slot2"),
    "Flux": ("/system.slice/flux-ƒ2oLkTLb.scope", "flux-ƒ2oLkTLb"),
    "Flux, escaped": ("/system.slice/flux-\\xc6\\x922oLkTLb.scope", "flux-ƒ2oLkTLb"),
    "Flux, a number": ("/flux-21092302848/shell", "flux-21092302848"),
    "Flux, its IMP": ("/flux.slice/imp-shell-0-f2oLkTLb.service", "flux-f2oLkTLb"),
    "Flux's broker": ("/system.slice/flux.service", None),
    "no job of Flux's": ("/system.slice/flux-framework.service", None),
    "Grid Engine": ("/UGE/4711.2", "gridengine-4711.2"),
    "OAR": ("/oar/ada_4711", "oar-4711"),
    "YARN": (
        "/hadoop-yarn/container_e17_1410901177871_0001_01_000005",
        "yarn-1410901177871_0001",
    ),
    "Nomad, v2": (f"/nomad.slice/share.slice/{UID}.train.scope", f"nomad-{UID}"),
    "Nomad, cores of its own": (f"/nomad.slice/reserve.slice/{UID}.a.b.scope", f"nomad-{UID}"),
    "Nomad, v1": (f"/nomad/{UID}.train", f"nomad-{UID}"),
    "LXC": ("/lxc.payload.train/user.slice", "lxc-train"),
    "LXC, Proxmox": ("/lxc/101/ns/init.scope", "lxc-101"),
    "LXC's monitor": ("/lxc.monitor.train", None),
    "nspawn": ("/machine.slice/systemd-nspawn@web.service/payload", "nspawn-web"),
    "nspawn, a scope": ("/machine.slice/machine-my\\x2dweb.scope", "nspawn-my-web"),
    "a virtual machine": ("/machine.slice/machine-qemu\\x2d1\\x2dvm.scope", None),
    "a user's own": (f"{USERS}/pbs_jobs.service/jobid/1.s", None),
    "a name that only begins so": ("/xlsf/c/job.1.2", None),
}


@pytest.mark.parametrize("text", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize(("path", "job"), OTHERS.values(), ids=OTHERS)
def test_jobs_of_other_schedulers_and_machines(text: Text, path: str, job: str | None) -> None:
    assert owner_in_cgroup(text(path)) == Owner(job=job, source=job and CGROUP)


def test_every_scheme_has_a_test() -> None:
    for scheme in SCHEMES:
        assert any(re.search(scheme.pattern, path) and job for path, job in OTHERS.values())


def test_a_container_in_a_machine_is_an_owner_itself_but_one_in_a_job_is_of_the_job() -> None:
    owner = owner_in_cgroup(v2(f"/lxc/101/ns/kubepods/burstable/pod{UID}/{ID}"))
    assert owner == Owner(pod_uid=UID, container_id=ID, source=CGROUP)
    owner = owner_in_cgroup(v2(f"/lxc.payload.a/docker/{ID}"))
    assert owner == Owner(container_id=ID, source=CGROUP)
    owner = owner_in_cgroup(v2(f"/pbs_jobs.service/jobs/7.s/{ID}"))
    assert owner == Owner(container_id=ID, job="pbs-7.s", source=CGROUP)


def test_a_container_in_a_job_is_both() -> None:
    owner = owner_in_cgroup(v2(f"/{JOB}/step_0/user/task_0/libpod-{ID}"))
    assert owner == Owner(container_id=ID, slurm_job_id="1392969", source=CGROUP)


def test_hierarchies_that_lie_elsewhere_take_nothing_away() -> None:
    of_pod, elsewhere = f"/kubepods/pod{UID}/{ID}", "/system.slice/containerd.service"
    expected = Owner(pod_uid=UID, container_id=ID, source=CGROUP)
    assert owner_in_cgroup(v1(of_pod, systemd=elsewhere)) == expected
    assert owner_in_cgroup(v1(elsewhere, systemd=of_pod)) == expected
    slurm = v1("/slurm/uid_1000/job_123/step_0", systemd="/system.slice/slurmd.service")
    assert owner_in_cgroup(slurm) == Owner(slurm_job_id="123", source=CGROUP)


@pytest.mark.parametrize("text", ["", "\n", "0::", "0::/", ":", "no colons", v1("/"), v2("/../..")])
def test_nothing_is_known_of_nothing(text: str) -> None:
    assert owner_in_cgroup(text) == NO_OWNER


FOLDERS = st.sampled_from(
    [f"pod{UID}", f"x-pod{UID_}.slice", ID, f"docker-{ID}.scope", "..", "", JOB, "a:b", "conmon"]
)
PATHS = st.lists(FOLDERS | st.text(max_size=20)).map("/".join)
NAMES = PATHS.map(lambda path: path.replace("\n", ""))  # the kernel makes no group with a newline
FILES = st.lists(PATHS.map(v2) | PATHS | st.text()).map("".join)


@given(FILES)
def test_ids_are_ids_for_any_content_of_a_file(text: str) -> None:
    owner = owner_in_cgroup(text)
    assert re.fullmatch("[0-9a-f-]{32,36}", owner.pod_uid or UID)
    assert re.fullmatch("[0-9a-f]{64}", owner.container_id or ID)
    assert re.fullmatch("[0-9]{1,10}", owner.slurm_job_id or "1")
    assert (owner.namespace, owner.pod, owner.container, owner.user) == (None,) * 4


OUTSIDE = st.sampled_from(["kubelet", "training.slice", "system.slice", "..", "k3s.service", "x"])


@given(st.lists(OUTSIDE).map("/".join), NAMES)
def test_groups_below_a_container_do_not_change_its_owner(before: str, after: str) -> None:
    path = f"/{before}/kubepods/burstable/pod{OTHER_UID}/{INNER}"
    owner = owner_in_cgroup(v2(path))
    assert owner == Owner(pod_uid=OTHER_UID, container_id=INNER, source=CGROUP)
    assert owner_in_cgroup(v2(f"{path}/{after}")) == owner


@given(NAMES)
def test_a_group_named_by_a_user_has_no_owner(name: str) -> None:
    assert owner_in_cgroup(v2(f"{USERS}/{name}")) == NO_OWNER


NODES = {
    "in a pod of the node": f"/docker/{NODE}{KIND}/kubelet-kubepods-pod{UID_}.slice/{SCOPE}",
    "cgroupfs": f"/docker/{NODE}/kubelet/kubepods/pod{UID}/{ID}",
    "in a container of the node": f"/docker/{NODE}/system.slice/docker-{ID}.scope",
}


@pytest.mark.parametrize("text", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("ours", NODES.values(), ids=NODES)
def test_a_node_that_is_a_container_is_the_machine_to_those_in_it(text: Text, ours: str) -> None:
    def seen(path: str) -> Owner:
        return owner_in_cgroup(text(path), text(ours))

    pod = Owner(pod_uid=OTHER_UID, container_id=INNER, source=CGROUP)
    assert seen(f"/docker/{NODE}{KIND_POD}/{INNER_SCOPE}") == pod
    assert seen(f"/docker/{NODE}/kubelet/kubepods/pod{OTHER_UID}/{INNER}") == pod
    assert seen(f"/docker/{NODE}{KIND_POD}/{INNER_SCOPE}/docker/{STATIC * 2}") == pod
    of_another = Owner(pod_uid=OTHER_UID, container_id=ID, source=CGROUP)
    assert seen(f"/docker/{INNER}{KIND_POD}/{SCOPE}") == of_another
    own = owner_in_cgroup(text(ours[len(f"/docker/{NODE}") :]))
    assert seen(ours) == own, "as it sees itself"
    assert own.container_id == ID


def test_in_a_container_of_our_own_it_is_that_of_our_neighbours() -> None:
    ours = v2(f"/docker/{ID}")
    assert owner_in_cgroup(ours, ours) == Owner(container_id=ID, source=CGROUP)
    inside = v2(f"/docker/{ID}/kubepods/pod{UID}/{INNER}")
    assert owner_in_cgroup(inside, ours) == Owner(pod_uid=UID, container_id=INNER, source=CGROUP)


ENVIRONMENTS: dict[str, tuple[str, str | None]] = {
    "alone": ("SLURM_JOB_ID=123", "123"),
    "first": ("SLURM_JOB_ID=123\0HOME=/root\0", "123"),
    "last": ("HOME=/root\0SLURM_JOB_ID=123\0", "123"),
    "twice: the first, as for getenv": ("SLURM_JOB_ID=123\0SLURM_JOB_ID=124\0", "123"),
    "none": ("HOME=/root\0", None),
    "no number": ("SLURM_JOB_ID=12a\0", None),
    "too long": ("SLURM_JOB_ID=12345678901\0", None),
    "digits that are none": ("SLURM_JOB_ID=\u0661\0", None),
    "another name": ("MY_SLURM_JOB_ID=1\0SLURM_JOB_IDS=2\0", None),
    "a value like a name": ("A=\nSLURM_JOB_ID=1\0", None),
}


@pytest.mark.parametrize(("text", "job"), ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_jobs_of_environments(text: str, job: str | None) -> None:
    assert slurm_job(variables_in(text, SLURM)) == job


def test_real_users() -> None:
    several = "Name:\tUid:\t7\nUid:\t1000\t1001\t1002\t1003\nGid:\t5\t5\t5\t5\n"
    large = "Uid:\t4294967294\t0\t0\t0\n"
    texts = (several, "Uid:\t0\t0\t0\t0\n", large, "Name:\tx\n", "", "Uid:\t-1\n")
    assert [*map(real_uid, texts)] == ["1000", "0", "4294967294", "", "", ""]


@given(st.text())
def test_no_text_is_too_strange(text: str) -> None:
    job, uid = slurm_job(variables_in(text, SLURM)), real_uid(text)
    assert job is None or re.fullmatch("[0-9]{1,10}", job)
    assert re.fullmatch("[0-9]{0,10}", uid)
