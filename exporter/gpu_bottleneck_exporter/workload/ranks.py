"""Recognises the ranks of a job by their launcher's variables."""

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

Rendezvous = tuple[str, ...]
"""Meeting point of a job's ranks, also across pods."""


class Launcher(NamedTuple):
    """The rendezvous variables of a launcher."""

    place: tuple[str, ...]
    """Variables of all ranks that identify a job."""
    size: tuple[str, ...]
    """Variables with the number of ranks; the first set counts."""
    source: str
    """Code or page that documents them."""
    refines: str = ""
    """Variable to add to the place if it is set."""
    has_address: bool = True
    """Whether the place is an address: loopback addresses are unique per machine."""
    default_size: str = ""
    """Number of ranks if no variable is set; empty: several."""
    is_collective: bool = True
    """Whether ranks work in lockstep; Ray's may be independent trials."""


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
"""Launchers in order of precedence."""
COLLECTIVE = tuple(launcher for launcher in LAUNCHERS if launcher.is_collective)
"""Launchers of ranks that wait for each other."""
VARIABLES = tuple(
    dict.fromkeys(
        name
        for launcher in LAUNCHERS
        for name in (*launcher.place, *launcher.size, launcher.refines)
        if name
    )
)


def rendezvous(
    proc: Path,
    pid: int,
    variables: Mapping[str, str],
    unit: str = "",
    launchers: Collection[Launcher] = LAUNCHERS,
) -> Rendezvous | None:
    """The rendezvous of a process and its user; None without other ranks.

    `variables`: its environment, not trusted, hence the user. Loopback addresses get their network
    namespace and `unit` (container or Slurm job).
    """
    values = {**variables, **_ray_address(proc, pid, variables)}
    for launcher in launchers:
        place = tuple(values.get(name, "") for name in launcher.place)
        sizes = (values[name] for name in launcher.size if values.get(name))
        if not all(place) or next(sizes, launcher.default_size) == "1":
            continue
        machine = ""
        if launcher.has_address and _is_local(place[0]):
            boot = (read(f"{proc}/sys/kernel/random/boot_id") or "").strip()
            machine = f"{boot}/{network_namespace(proc, pid)}/{unit}"
        refined = tuple(filter(None, [values.get(launcher.refines)]))
        return (*place, *refined, user_id(proc, pid), machine)
    return None


def _ray_address(proc: Path, pid: int, variables: Mapping[str, str]) -> Mapping[str, str]:
    """A Ray worker's cluster address, by its raylet: RAY_ADDRESS may be missing."""
    raylet = parent_of(proc, pid) if "RAY_JOB_ID" in variables else 0
    # A raylet's option (python/ray/_private/services.py).
    line = command_line(proc, raylet).text if raylet else ""
    match = re.search(r"\0--gcs[-_]address=([^\0]+)", line)
    return {"RAY_ADDRESS": match[1]} if match else {}


def _is_local(address: str) -> bool:
    """Whether `address` (scheme, port and more addresses allowed) is this machine."""
    host = _host(address.partition(",")[0].rpartition("//")[2])
    name = r"(ip6-)?(localhost|loopback)[46]?(\.localdomain[46]?)?\.?"
    if re.fullmatch(name, host, re.IGNORECASE):
        return True
    with suppress(OSError, ValueError):  # accepts short forms such as `127.1`
        return is_here(IPv4Address(socket.inet_aton(host)))
    with suppress(ValueError):
        return is_here(IPv6Address(host))
    return False


def _host(address: str) -> str:
    """The host of `host`, `host:port`, `[IPv6]:port` or a plain IPv6 address."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address
