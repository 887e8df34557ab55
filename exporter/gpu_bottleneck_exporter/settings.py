"""Immutable settings, validated on creation."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.generics import T
from gpu_bottleneck_exporter.remedies import SIGNAL_REMEDIES

RUNBOOK_BASE = (
    "https://github.com/gpu-bottleneck-exporter/gpu-bottleneck-exporter/blob/main/rules/runbooks"
)
MIN_SAMPLING_INTERVAL_SECONDS = 0.2
"""Minimum sampling interval: a utilization sample's window (1/6 s)."""
OPTIONAL_SIGNALS = tuple(
    sorted(name for name in SIGNAL_REMEDIES if name != "own_cpu" and not name.startswith("all_"))
)
"""Optional signals, as they need permissions, mounts or kernel features."""
KUBELET_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
CONTAINER_LOGS = Path("/var/log/containers")
CDI = Path("/var/run/cdi")
JOB_MAPPING_DIR = Path("/run/gpustat")
MAX_JOBS = 100_000
_MAX_CLAIMED_VARIABLES = 16


def option(default: T, flag: str, text: str) -> T:
    """A field that the command line sets: flag with metavar, and help."""
    return field(default=default, metadata={"flag": flag, "help": text})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings from the command line and the environment.

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
        "Name of this node in the job ledger, on the status page and in JSON; best the name in "
        "alerts. The default is the host's name, which in a pod is the pod's.",
    )
    # At most 5 s: the driver's ring covers 10 s.
    interval_seconds: float = option(
        1.0, "sampling.interval SECONDS", "Time between two readings of a GPU, 0.2 to 5."
    )
    deadline_seconds: float = option(
        5.0,
        "sampling.deadline SECONDS",
        "Report a GPU as down if it does not answer within this time.",
    )
    longest_answer_seconds: float = option(
        30.0,
        "stall.longest-answer SECONDS",
        "Longest wait for a response from another machine that counts as network; a longer one is "
        "a long poll or a dead peer.",
    )
    wake_suspended: bool = option(
        False,  # noqa: FBT003 - a default
        "driver.wake-suspended",
        "Also read GPUs that power management has suspended; this keeps them awake.",
    )
    without: frozenset[str] = option(
        frozenset(),
        "without SIGNAL,...",
        "Signals that may be missing, such as host_pids,kubelet: `check` reports no gap for "
        "them, and gpu_exporter_signal_available omits them.",
    )
    procfs: Path = option(Path("/proc"), "path.procfs", "Where the host's procfs is mounted.")
    sysfs: Path = option(Path("/sys"), "path.sysfs", "Where the host's sysfs is mounted.")
    # The following paths may appear and disappear.
    kubelet_socket: Path = option(
        KUBELET_SOCKET,
        "kubelet.socket",
        "The kubelet's pod-resources socket. Without it, pods that have not opened their GPU are "
        "not detected.",
    )
    container_logs: Path = option(
        CONTAINER_LOGS,
        "kubelet.container-logs",
        "Where the host's /var/log/containers is mounted. Only the file names are read.",
    )
    cdi: Path = option(
        CDI,
        "kubelet.cdi",
        "Where the host's /var/run/cdi is mounted; it shows the MIG instance of a claim.",
    )
    job_mapping_dir: Path = option(
        JOB_MAPPING_DIR,
        "slurm.job-mapping-dir",
        "Folder to which a prolog writes the GPUs of each job, as for jobstats or dcgm-exporter. "
        "Without it, jobs that have not opened their GPU are not detected.",
    )
    jobs_state_file: str = option(
        "",
        "jobs.state-file FILE",
        "File of the job ledger; without it, a restart discards finished jobs.",
    )
    jobs_keep: int = option(
        1000,
        "jobs.keep COUNT",
        "Number of jobs to keep; beyond it, the owner with the most jobs loses the oldest one.",
    )
    jobs_keep_seconds: float = option(
        30 * 86400.0, "jobs.keep-for SECONDS", "Time to keep a job after its end."
    )
    jobs_claims: frozenset[str] = option(
        frozenset(),
        "jobs.claims VARIABLE,...",
        "Environment variables of a job to show with it, such as WANDB_RUN_ID,RAY_JOB_ID; at most "
        "16. They are visible to all readers of jobs.",
    )
    disabled_collectors: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        interval, deadline = self.interval_seconds, self.deadline_seconds
        twice = " (twice --sampling.interval)"
        _check_seconds("--sampling.interval", interval, MIN_SAMPLING_INTERVAL_SECONDS, 5)
        _check_seconds("--sampling.deadline", deadline, 2 * interval, 60, why=twice)
        _check_seconds("--stall.longest-answer", self.longest_answer_seconds, 1, 3600)
        if unknown := sorted(self.without - {*OPTIONAL_SIGNALS}):
            raise SettingsError(
                f"--without: {unknown[0]!r} is not a signal that can be omitted; choose from "
                f"{', '.join(OPTIONAL_SIGNALS)}"
            )
        variable = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
        if wrong := sorted(name for name in self.jobs_claims if not re.fullmatch(variable, name)):
            raise SettingsError(f"--jobs.claims: {wrong[0]!r} is not the name of a variable")
        if len(self.jobs_claims) > _MAX_CLAIMED_VARIABLES:
            raise SettingsError(f"--jobs.claims: at most {_MAX_CLAIMED_VARIABLES} variables")
        if not 1 <= self.jobs_keep <= MAX_JOBS:
            raise SettingsError(f"--jobs.keep must be 1 to {MAX_JOBS}, not {self.jobs_keep}")
        _check_seconds("--jobs.keep-for", self.jobs_keep_seconds, 60, 366 * 86400)
        file = self.jobs_state_file
        if file and not Path(file).parent.is_dir():
            raise SettingsError(f"--jobs.state-file: there is no folder {Path(file).parent}")
        # A DNS name, as of hosts and Kubernetes nodes; `report` expects no slash.
        dns_name = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"
        if self.node_name and not re.fullmatch(dns_name, self.node_name):
            raise SettingsError(f"--node.name: {self.node_name!r:.300} is not the name of a host")
        path = self.telemetry_path
        well_formed = re.fullmatch(r"/[A-Za-z0-9._~-][A-Za-z0-9._~/-]*", path)
        if not well_formed or path.startswith(("/-/", "/api/")):
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


def _check_seconds(flag: str, value: float, low: float, high: float, why: str = "") -> None:
    if not low <= value <= high:
        raise SettingsError(f"{flag} must be {low:g} s{why} to {high:g} s, not {value:g}")


def _check_folder(flag: str, folder: Path, probe: str) -> None:
    try:
        if probe:
            (folder / probe).open("rb").close()
        else:
            next(folder.iterdir(), None)
    except OSError as error:
        raise SettingsError(f"{flag}: cannot read {folder / probe}: {error.strerror}") from error
