"""Recognises the ranks of one job by the variables that their launcher gave to all of them."""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import (
    command_line,
    network_namespace,
    parent_of,
    user_id,
)
from gpu_bottleneck_exporter.host.sockets import is_here

Place = tuple[str, ...]
"""Where the ranks of a distributed job meet: it shows which processes in many pods are one job."""
_LOCAL_NAME = re.compile(r"(ip6-)?(localhost|loopback)[46]?(\.localdomain[46]?)?\.?", re.IGNORECASE)
_GCS_ADDRESS = re.compile(r"\0--gcs[-_]address=([^\0]+)")
"""In the command line of a raylet (python/ray/_private/services.py)."""


class Launcher(NamedTuple):
    """The variables by which a launcher tells ranks where they meet."""

    place: tuple[str, ...]
    """Set in all ranks: equal in those of one job, and different in those of others."""
    size: tuple[str, ...]
    """The number of ranks: the first of these that is set. A process that is alone meets none."""
    source: str
    """The code or page that describes them."""
    refines: str = ""
    """A variable that belongs to the place if it is set."""
    has_address: bool = True
    """Whether the first variable of the place is an address: a loopback address is only unique on
    one machine."""
    default_size: str = ""
    """The number of ranks where no variable gives it; empty: several."""
    is_collective: bool = True
    """Whether its processes work in step; those of a Ray job may be independent trials."""


LAUNCHERS = (
    Launcher(
        ("MASTER_ADDR", "MASTER_PORT"),
        ("WORLD_SIZE",),
        "https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization",
        default_size="1",
    ),
    Launcher(
        ("PET_MASTER_ADDR", "PET_MASTER_PORT"),
        ("PET_NNODES",),
        "https://github.com/kubeflow/trainer/blob/master/pkg/constants/constants.go",
        default_size="1",
    ),
    Launcher(
        ("PET_RDZV_ENDPOINT",),
        ("PET_NNODES",),
        "https://github.com/kubeflow/trainer/blob/release-1.9/pkg/controller.v1/pytorch/elastic.go",
        refines="PET_RDZV_ID",
        default_size="1",
    ),
    Launcher(
        ("JAX_COORDINATOR_ADDRESS",),
        ("JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT", "NNODES"),
        "https://github.com/jax-ml/jax/blob/main/jax/_src/distributed.py",
        refines="JAX_COORDINATOR_PORT",
    ),
    Launcher(
        ("COORDINATOR_ADDRESS", "COORDINATOR_PORT"),
        ("NUM_PROCESSES",),
        "https://github.com/kubeflow/trainer/blob/release-1.9/pkg/controller.v1/jax/envvar.go",
    ),
    Launcher(
        ("KERAS_DISTRIBUTION_JOB_ADDRESSES",),
        ("KERAS_DISTRIBUTION_NUM_PROCESSES",),
        "https://github.com/keras-team/keras/blob/master/keras/src/distribution/distribution_lib.py",
    ),
    Launcher(
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
        ("HOROVOD_SIZE",),
        "https://github.com/horovod/horovod/blob/master/horovod/runner/gloo_run.py",
    ),
    Launcher(
        ("PADDLE_TRAINER_ENDPOINTS",),
        ("PADDLE_TRAINERS_NUM",),
        "https://github.com/PaddlePaddle/Paddle/tree/develop/python/paddle/distributed/launch",
    ),
    Launcher(
        ("MS_SCHED_HOST", "MS_SCHED_PORT"),
        ("MS_WORKER_NUM",),
        "https://www.mindspore.cn/docs/en/master/api_python/env_var_list.html",
    ),
    Launcher(
        ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"),
        ("DMLC_NUM_WORKER",),
        "https://github.com/bytedance/byteps/blob/master/docs/env.md",
    ),
    Launcher(
        ("PMIX_NAMESPACE",),
        ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"),
        "https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html",
        refines="OMPI_MCA_orte_hnp_uri",  # before Open MPI 5 the namespace is a number of 32 bits
        has_address=False,
    ),
    Launcher(
        ("OMPI_MCA_ess_base_jobid",),
        ("OMPI_COMM_WORLD_SIZE",),
        "https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html",
        refines="OMPI_MCA_orte_hnp_uri",
        has_address=False,
    ),
    Launcher(
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        ("SLURM_STEP_NUM_TASKS",),
        "https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES",
        refines="SLURM_CLUSTER_NAME",
        has_address=False,
        default_size="1",
    ),
    Launcher(
        ("RAY_ADDRESS", "RAY_JOB_ID"),
        (),
        "https://github.com/ray-project/ray/blob/master/src/ray/raylet/worker_pool.cc",
        is_collective=False,
    ),
    Launcher(
        ("LWS_LEADER_ADDRESS",),
        ("LWS_GROUP_SIZE",),
        "https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/",
        default_size="1",
    ),
)
"""A process that several fit is of the first."""
COLLECTIVE = tuple(launcher for launcher in LAUNCHERS if launcher.is_collective)
"""Those whose ranks wait for each other."""
VARIABLES = tuple(
    dict.fromkeys(
        name for one in LAUNCHERS for name in (*one.place, *one.size, one.refines) if name
    )
)


def rendezvous(
    proc: Path,
    pid: int,
    variables: Mapping[str, str],
    unit: str = "",
    launchers: Collection[Launcher] = LAUNCHERS,
) -> Place | None:
    """The place, with the user, that is the same for all processes of one job; None if alone.

    `variables` are of the process's environment, and so a claim: only processes of one user meet.
    A loopback address is only unique within one network namespace and one `unit` (the process's
    container or Slurm job), so these are added to it.
    """
    values = {**variables, **_of_ray(proc, pid, variables)}
    for launcher in launchers:
        place = tuple(values.get(name, "") for name in launcher.place)
        sizes = (values[name] for name in launcher.size if values.get(name))
        if not all(place) or next(sizes, launcher.default_size) == "1":
            continue
        where = ""
        if launcher.has_address and _is_local(place[0]):  # of one machine, which its boot shows
            boot = (read(f"{proc}/sys/kernel/random/boot_id") or "").strip()
            where = f"{boot}/{network_namespace(proc, pid)}/{unit}"
        refined = tuple(filter(None, [values.get(launcher.refines)]))
        return (*place, *refined, user_id(proc, pid), where)
    return None


def _of_ray(proc: Path, pid: int, variables: Mapping[str, str]) -> Mapping[str, str]:
    """The address of the cluster of a Ray worker, by the command line of its raylet.

    RAY_ADDRESS may be missing, and is a loopback address on the head.
    """
    raylet = parent_of(proc, pid) if "RAY_JOB_ID" in variables else 0
    match = _GCS_ADDRESS.search(command_line(proc, raylet).text) if raylet else None
    return {"RAY_ADDRESS": match[1]} if match else {}


def _is_local(address: str) -> bool:
    """Whether `address`, perhaps with scheme, port and further addresses, is the machine itself."""
    host = _host(address.partition(",")[0].rpartition("//")[2])
    if _LOCAL_NAME.fullmatch(host):
        return True
    with suppress(OSError, ValueError):  # also knows short forms such as `127.1`
        return is_here(IPv4Address(socket.inet_aton(host)))
    with suppress(ValueError):
        return is_here(IPv6Address(host))
    return False


def _host(address: str) -> str:
    """`host`, `host:port`, `[IPv6]:port` or a plain IPv6 address without its port."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address
