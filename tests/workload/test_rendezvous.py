"""The ranks of one job have one name, which no other job has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.workload.owners import Groups, OwnerReader, rendezvous_hash
from gpu_bottleneck_exporter.workload.ranks import LAUNCHERS, rendezvous
from support.programs import shell
from support.trees import cgroup_v2, lay

PROC = Path("/proc")
JOB = {"MASTER_ADDR": "train-master-0", "MASTER_PORT": "29500", "WORLD_SIZE": "8"}
HERE = {**JOB, "MASTER_ADDR": "127.0.0.1"}


def name(proc: Path, variables: Mapping[str, str], pid: int = 1) -> str | None:
    """Name for a process of ours, on a machine with files of its own below `proc`."""
    lay(proc, {f"{pid}/net/dev": "", "sys/kernel/random/boot_id": f"{proc.name}\n"})
    place = rendezvous(proc, pid, variables)
    return rendezvous_hash(place) if place else None


def test_ranks_on_two_machines_have_one_name(tmp_path: Path) -> None:
    first = name(tmp_path / "a", {**JOB, "RANK": "0"})
    assert first == name(tmp_path / "b", {**JOB, "RANK": "7", "LOCAL_RANK": "3"})
    assert first is not None
    assert len(first) == 12
    assert "train-master-0" not in first


@pytest.mark.parametrize("other", [{"MASTER_ADDR": "train-master-1"}, {"MASTER_PORT": "29501"}])
def test_other_places_have_other_names(other: Mapping[str, str], tmp_path: Path) -> None:
    assert name(tmp_path, JOB) != name(tmp_path, {**JOB, **other})


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1"])
def test_an_address_of_the_machine_itself_is_one_job_on_it_only(
    address: str, tmp_path: Path
) -> None:
    job = {**JOB, "MASTER_ADDR": address}
    here = name(tmp_path / "a", job)
    assert here is not None
    assert here != name(tmp_path / "b", job)
    assert here != name(tmp_path / "a", job, pid=2), "another network namespace"


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"])
def test_a_lone_process_meets_no_peer(missing: str, tmp_path: Path) -> None:
    assert name(tmp_path, {key: value for key, value in JOB.items() if key != missing}) is None
    assert name(tmp_path, {**JOB, missing: "1" if missing == "WORLD_SIZE" else ""}) is None


RANKS: dict[str, tuple[Mapping[str, str], str]] = {
    "JAX": ({"JAX_COORDINATOR_ADDRESS": "head:1234", "JAX_NUM_PROCESSES": "4"}, "head:1235"),
    "JAX, without a number": ({"JAX_COORDINATOR_ADDRESS": "head:1234"}, "head:1235"),
    "JAX, its port apart": (
        {"JAX_COORDINATOR_ADDRESS": "head", "JAX_COORDINATOR_PORT": "1", "NNODES": "2"},
        "tail",
    ),
    "JAXJob": (
        {"COORDINATOR_ADDRESS": "j-worker-0", "COORDINATOR_PORT": "6666", "NUM_PROCESSES": "3"},
        "j-worker-1",
    ),
    "TrainJob": (
        {
            "PET_MASTER_ADDR": "llm-node-0-0.llm",
            "PET_MASTER_PORT": "29400",
            "PET_NNODES": "4",
            "PET_NPROC_PER_NODE": "auto",
        },
        "vit-node-0-0.vit",
    ),
    "elastic PyTorchJob": (
        {
            "PET_RDZV_ENDPOINT": "llm-worker-0:23456",
            "PET_RDZV_ID": "llm",
            "PET_RDZV_BACKEND": "c10d",
            "PET_NNODES": "1:4",
        },
        "vit-worker-0:23456",
    ),
    "LeaderWorkerSet": (
        {"LWS_LEADER_ADDRESS": "llm-0.llm.nlp", "LWS_GROUP_SIZE": "2"},
        "llm-1.llm.nlp",
    ),
    "Horovod": (
        {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": "5000",
            "HOROVOD_SIZE": "16",
        },
        "10.0.0.2",
    ),
    "Open MPI 5": (
        {"PMIX_NAMESPACE": "prterun-head-17@1", "OMPI_COMM_WORLD_SIZE": "8"},
        "prterun-head-18@1",
    ),
    "Open MPI 4": (
        {
            "PMIX_NAMESPACE": "2130706433",
            "OMPI_COMM_WORLD_SIZE": "8",
            "OMPI_MCA_orte_hnp_uri": "2130706433.0;tcp://10.0.0.1:4000",
        },
        "2130706434",
    ),
    "PMIx by srun": (
        {"PMIX_NAMESPACE": "slurm.pmix.7.0", "SLURM_STEP_NUM_TASKS": "8"},
        "slurm.pmix.7.1",
    ),
    "srun": (
        {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"},
        "8",
    ),
    "Ray": ({"RAY_ADDRESS": "10.0.0.1:6379", "RAY_JOB_ID": "01000000"}, "10.0.0.2:6379"),
    "PaddlePaddle": (
        {"PADDLE_TRAINER_ENDPOINTS": "a:1,b:1", "PADDLE_TRAINERS_NUM": "2"},
        "a:2,b:2",
    ),
    "Keras": (
        {
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": "10.0.0.1:1,10.0.0.2:2",
            "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
        },
        "10.0.0.3:1,10.0.0.2:2",
    ),
    "MindSpore": (
        {"MS_SCHED_HOST": "10.0.0.1", "MS_SCHED_PORT": "8118", "MS_WORKER_NUM": "8"},
        "10.0.0.2",
    ),
    "BytePS": (
        {"DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "1", "DMLC_NUM_WORKER": "2"},
        "10.0.0.2",
    ),
}
"""Variables that all ranks have in common, and another job's value of the first one."""


@pytest.mark.parametrize(("job", "other"), RANKS.values(), ids=RANKS)
def test_ranks_of_any_launcher_have_one_name_that_no_other_job_has(
    job: Mapping[str, str], other: str, tmp_path: Path
) -> None:
    first = name(tmp_path / "a", job)
    assert first is not None
    assert first == name(tmp_path / "b", {**job, "RANK": "7"}), "on another machine"
    assert first != name(tmp_path / "a", {**job, next(iter(job)): other})


def test_every_launcher_has_a_test() -> None:
    tested = [{*JOB}, *(set(job) for job, _ in RANKS.values())]
    untested = [
        launcher for launcher in LAUNCHERS if not any(set(launcher.place) <= job for job in tested)
    ]
    assert [item.place for item in untested] == [("OMPI_MCA_ess_base_jobid",)]


@pytest.mark.parametrize("job", [job for job, _ in RANKS.values()], ids=RANKS)
def test_a_single_process_has_no_rendezvous_for_any_launcher(
    job: Mapping[str, str], tmp_path: Path
) -> None:
    sizes = {size for launcher in LAUNCHERS for size in launcher.size} & job.keys()
    for size in sizes:
        assert name(tmp_path, {**job, size: "1"}) is None


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1234", "localhost:1", "[::1]:1", "tcp://127.0.0.1:1", "127.0.0.1:1,b:1"]
)
def test_a_loopback_address_with_a_port_is_one_job_on_its_machine_only(
    address: str, tmp_path: Path
) -> None:
    job = {"JAX_COORDINATOR_ADDRESS": address}
    assert name(tmp_path / "a", job) != name(tmp_path / "b", job)


@pytest.mark.parametrize("address", ["[fd00::1]:1", "fd00::1", "https://head:1", "7", "head"])
def test_another_address_is_one_job_on_all_machines(address: str, tmp_path: Path) -> None:
    job = {"JAX_COORDINATOR_ADDRESS": address}
    assert name(tmp_path / "a", job) == name(tmp_path / "b", job)


def test_workers_of_a_ray_job_meet_at_the_address_of_their_raylets(tmp_path: Path) -> None:
    """RAY_ADDRESS is a loopback address on the head, and elsewhere it may be missing."""
    status = "Name:\tray::train\nPPid:\t1\n"
    for machine in "ab":
        raylet = "raylet\0--raylet_socket_name=x\0--gcs-address=10.0.0.1:6379\0"
        lay(tmp_path / machine, {"1/cmdline": raylet, "2/status": status})
    job = {"RAY_JOB_ID": "01000000"}
    head = name(tmp_path / "a", {**job, "RAY_ADDRESS": "127.0.0.1:6379"}, pid=2)
    assert head is not None
    assert head == name(tmp_path / "b", job, pid=2)
    assert head != name(tmp_path / "b", {"RAY_JOB_ID": "02000000"}, pid=2)


def test_a_slurm_job_that_is_only_claimed_is_no_place_where_groups_prove_another(
    tmp_path: Path,
) -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_CLUSTER_NAME": "c"}
    sysfs = tmp_path / "sys"
    group = "system.slice/slurmstepd.scope/job_7/step_0"
    cgroup_v2(sysfs, {f"{group}/cgroup.procs": ""})
    for pid, job, path in ((1, 7, group), (2, 8, group), (3, 7, "user.slice")):
        text = "".join(f"{k}={v}\0" for k, v in {**step, "SLURM_JOB_ID": f"{job}"}.items())
        lay(tmp_path, {f"{pid}/cgroup": f"0::/{path}\n", f"{pid}/environ": text})
    groups = Groups(tmp_path, sysfs)
    places = [rendezvous(tmp_path, pid, groups.claims(pid)) for pid in (1, 2, 3)]
    assert places[0] is not None
    assert places == [places[0], places[0], None]


def test_a_name_that_is_no_text_has_a_hash_all_the_same() -> None:
    assert len(rendezvous_hash(("\udcff", "1"))) == 12


def test_processes_of_several_jobs_have_no_rendezvous() -> None:
    others = {**HERE, "MASTER_PORT": "29501"}
    with shell(HERE) as first, shell(others) as second, shell({}) as helper:
        reader = OwnerReader(PROC)
        (item,) = reader.of([(first, 1), (helper, 1)], 0)
        (several,) = reader.of([(first, 1), (second, 1)], 0)
    assert item.rendezvous is not None
    assert several.rendezvous is None
