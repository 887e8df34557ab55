"""Settings: checked once, immutable, shared by all parts."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.remedies import SIGNAL_REMEDIES

RUNBOOK_BASE = (
    "https://github.com/gpu-bottleneck-exporter/gpu-bottleneck-exporter/blob/main/rules/runbooks"
)
MINIMUM_INTERVAL_SECONDS = 0.2
"""About the window of a utilization sample (1/6 s): reading more often shows nothing more."""
LONGEST_ANSWER_SECONDS = 30.0
"""A request that is older is taken for a long poll, or its peer for dead."""
RENOUNCEABLE = tuple(
    sorted(name for name in SIGNAL_REMEDIES if name != "own_cpu" and not name.startswith("all_"))
)
"""Signals that need permissions, mounts or a kernel that an operator may decide to do without."""
KUBELET_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
CONTAINER_LOGS = Path("/var/log/containers")
CDI = Path("/var/run/cdi")
JOB_MAPPING_DIR = Path("/run/gpustat")
MOST_JOBS = 100_000
MOST_CLAIMS = 16
T = TypeVar("T")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""A DNS name, as those of hosts and Kubernetes nodes: report takes it before a slash."""
_TELEMETRY_PATH = re.compile(r"/[A-Za-z0-9._~-][A-Za-z0-9._~/-]*")


def option(default: T, flag: str, text: str) -> T:
    """A field that the command line sets: the flag, a word for its value, and its help."""
    return field(default=default, metadata={"flag": flag, "help": text})


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings from the command line and the environment.

    Raises SettingsError, with the flag's name, for an invalid value.
    """

    listen_address: str = option(
        ":10170",
        "web.listen-address ADDRESS",
        "Address to listen on, such as :10170, 127.0.0.1:10170 or [::1]:10170.",
    )
    telemetry_path: str = option("/metrics", "web.telemetry-path PATH", "Path of the metrics.")
    runbook_base: str = option(
        RUNBOOK_BASE,
        "web.runbook-base URL",
        "Base URL of the runbooks that the status page links to.",
    )
    web_config_file: str = option(
        "", "web.config.file FILE", "TLS and users, in the format of Prometheus' exporter-toolkit."
    )
    node_name: str = option(
        "",
        "node.name NAME",
        "Name of this node in the ledger of jobs, on the status page and in JSON, such as alerts "
        "use; the host's name by default. In a pod, that is the pod's.",
    )
    # At most 5 s, as the driver's ring holds 10 s.
    interval_seconds: float = option(
        1.0, "sampling.interval SECONDS", "Time between two readings of a GPU, 0.2 to 5."
    )
    deadline_seconds: float = option(
        5.0,
        "sampling.deadline SECONDS",
        "Report a GPU as down if it does not answer within this time.",
    )
    longest_answer_seconds: float = option(
        LONGEST_ANSWER_SECONDS,
        "stall.longest-answer SECONDS",
        "Longest wait for another machine's answer that counts as network; beyond it, it is a long "
        "poll or a dead peer.",
    )
    wake_suspended: bool = option(
        False,  # noqa: FBT003 - a default
        "driver.wake-suspended",
        "Also read GPUs that power management has suspended; this keeps them awake.",
    )
    without: frozenset[str] = option(
        frozenset(),
        "without SIGNAL,...",
        "Signals that you do not need, such as host_pids,kubelet: they are no gaps, and "
        "gpu_exporter_signal_available omits them.",
    )
    procfs: Path = option(Path("/proc"), "path.procfs", "Where the host's procfs is mounted.")
    sysfs: Path = option(Path("/sys"), "path.sysfs", "Where the host's sysfs is mounted.")
    # The following may be missing, and come and go.
    kubelet_socket: Path = option(
        KUBELET_SOCKET,
        "kubelet.socket",
        "The kubelet's pod-resources socket. Without it, pods that have not opened their GPU are "
        "not seen.",
    )
    container_logs: Path = option(
        CONTAINER_LOGS,
        "kubelet.container-logs",
        "Where the host's /var/log/containers is mounted. Only the file names are read.",
    )
    cdi: Path = option(
        CDI,
        "kubelet.cdi",
        "Where the host's /var/run/cdi is mounted; it tells which MIG instance a claim got.",
    )
    job_mapping_dir: Path = option(
        JOB_MAPPING_DIR,
        "slurm.job-mapping-dir",
        "Folder in which a prolog writes which job has which GPU, as for jobstats or "
        "dcgm-exporter. Without it, jobs that have not opened their GPU are not seen.",
    )
    jobs_state_file: str = option(
        "",
        "jobs.state-file FILE",
        "File that keeps what jobs did with their GPUs; without it, a restart forgets them.",
    )
    jobs_keep: int = option(
        1000, "jobs.keep COUNT", "Number of jobs to keep; the owner of most loses the oldest first."
    )
    jobs_keep_seconds: float = option(
        30 * 86400.0, "jobs.keep-for SECONDS", "Time to keep a job after its end."
    )
    jobs_claims: frozenset[str] = option(
        frozenset(),
        "jobs.claims VARIABLE,...",
        "Environment variables of a job to show with it, such as WANDB_RUN_ID,RAY_JOB_ID; 16 at "
        "most. Whoever may read jobs sees them.",
    )
    disabled_collectors: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        interval, deadline = self.interval_seconds, self.deadline_seconds
        twice = " (twice --sampling.interval)"
        _check_seconds("--sampling.interval", interval, MINIMUM_INTERVAL_SECONDS, 5)
        _check_seconds("--sampling.deadline", deadline, 2 * interval, 60, why=twice)
        _check_seconds("--stall.longest-answer", self.longest_answer_seconds, 1, 3600)
        if unknown := sorted(self.without - {*RENOUNCEABLE}):
            raise SettingsError(
                f"--without: {unknown[0]!r} is not a signal that can be omitted; choose from "
                f"{', '.join(RENOUNCEABLE)}"
            )
        if wrong := sorted(one for one in self.jobs_claims if not _VARIABLE.fullmatch(one)):
            raise SettingsError(f"--jobs.claims: {wrong[0]!r} is not the name of a variable")
        if len(self.jobs_claims) > MOST_CLAIMS:
            raise SettingsError(f"--jobs.claims: at most {MOST_CLAIMS} variables")
        if not 1 <= self.jobs_keep <= MOST_JOBS:
            raise SettingsError(f"--jobs.keep must be 1 to {MOST_JOBS}, not {self.jobs_keep}")
        _check_seconds("--jobs.keep-for", self.jobs_keep_seconds, 60, 366 * 86400)
        file = self.jobs_state_file
        if file and not Path(file).parent.is_dir():
            raise SettingsError(f"--jobs.state-file: there is no folder {Path(file).parent}")
        if self.node_name and not _NODE_NAME.fullmatch(self.node_name):
            raise SettingsError(f"--node.name: {self.node_name!r:.300} is not the name of a host")
        path = self.telemetry_path
        if not _TELEMETRY_PATH.fullmatch(path) or path.startswith(("/-/", "/api/")):
            raise SettingsError(
                "--web.telemetry-path must be like /metrics (neither / nor below /-/ or /api/), "
                f"not {path!r}"
            )
        _check_folder("--path.procfs", self.procfs, "stat")
        _check_folder("--path.sysfs", self.sysfs, "")

    @property
    def node(self) -> str:
        """Name of this node."""
        return self.node_name or socket.gethostname()


def _check_seconds(flag: str, value: float, least: float, most: float, why: str = "") -> None:
    if not least <= value <= most:
        raise SettingsError(f"{flag} must be {least:g} s{why} to {most:g} s, not {value:g}")


def _check_folder(flag: str, folder: Path, probe: str) -> None:
    try:
        if probe:
            (folder / probe).open("rb").close()
        else:
            next(folder.iterdir(), None)
    except OSError as error:
        raise SettingsError(f"{flag}: cannot read {folder / probe}: {error.strerror}") from error
