"""Settings: checked once, immutable, shared by all parts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from gpu_bottleneck_exporter.errors import SettingsError

RUNBOOK_BASE = (
    "https://github.com/gpu-bottleneck-exporter/gpu-bottleneck-exporter/blob/main/rules/runbooks"
)
MINIMUM_INTERVAL_SECONDS = 0.2
MAXIMUM_INTERVAL_SECONDS = 5.0
MAXIMUM_DEADLINE_SECONDS = 60.0
MAXIMUM_ANSWER_SECONDS = 3600.0
LONGEST_ANSWER_SECONDS = 30.0
RENOUNCEABLE = (
    "cgroup_cpu",
    "cgroup_memory",
    "connections",
    "host_pids",
    "kubelet",
    "process_io",
    "psi_cgroup",
    "psi_host",
    "schedstat",
    "wait_channel",
)
"""Signals that need permissions, mounts or a kernel that an operator may decide to do without."""
KUBELET_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
CONTAINER_LOGS = Path("/var/log/containers")
CDI = Path("/var/run/cdi")
JOB_MAPPING_DIR = Path("/run/gpustat")
_URL = re.compile(r"https?://[^\s\"'<>]+")
_TELEMETRY_PATH = re.compile(r"/[A-Za-z0-9._~-][A-Za-z0-9._~/-]*")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings from the command line and the environment.

    Raises SettingsError, with the flag's name, for an invalid value.
    """

    listen_address: str = ":10170"
    telemetry_path: str = "/metrics"
    web_config_file: str = ""
    """TLS and users, in exporter-toolkit's format; "" for neither."""
    runbook_base: str = RUNBOOK_BASE
    """URL of the folder with the runbooks that the status page links to."""
    interval_seconds: float = 1.0
    """Time between two readings of a GPU; at most 5 s, as the driver's ring holds 10 s."""
    deadline_seconds: float = 5.0
    """A GPU whose driver calls take longer is reported down, and its series become absent."""
    longest_answer_seconds: float = LONGEST_ANSWER_SECONDS
    """A request to another machine that is older is taken for a long poll or a dead peer."""
    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    wake_suspended: bool = False
    kubelet_socket: Path = KUBELET_SOCKET
    """Socket of the kubelet's pod-resources API; it may be missing, and come and go."""
    container_logs: Path = CONTAINER_LOGS
    """Folder in which the kubelet links container logs; it may be missing."""
    cdi: Path = CDI
    """Folder in which DRA drivers describe claimed devices; it may be missing."""
    job_mapping_dir: Path = JOB_MAPPING_DIR
    """Folder in which a prolog says which Slurm job was given which GPU; it may be missing."""
    disabled_collectors: frozenset[str] = field(default_factory=frozenset)
    without: frozenset[str] = field(default_factory=frozenset)
    """Those of `RENOUNCEABLE` that are not wanted: they are not reported as missing."""

    def __post_init__(self) -> None:
        if not MINIMUM_INTERVAL_SECONDS <= self.interval_seconds <= MAXIMUM_INTERVAL_SECONDS:
            raise SettingsError(
                f"--sampling.interval must be {MINIMUM_INTERVAL_SECONDS} to "
                f"{MAXIMUM_INTERVAL_SECONDS} seconds, not {self.interval_seconds:g}"
            )
        if not 2 * self.interval_seconds <= self.deadline_seconds <= MAXIMUM_DEADLINE_SECONDS:
            raise SettingsError(
                "--sampling.deadline must be at least twice --sampling.interval "
                f"({2 * self.interval_seconds:g} s) and at most {MAXIMUM_DEADLINE_SECONDS:g} s, "
                f"not {self.deadline_seconds:g}"
            )
        if not 1 <= self.longest_answer_seconds <= MAXIMUM_ANSWER_SECONDS:
            raise SettingsError(
                f"--stall.longest-answer must be 1 to {MAXIMUM_ANSWER_SECONDS:g} seconds, "
                f"not {self.longest_answer_seconds:g}"
            )
        if unknown := sorted(self.without - {*RENOUNCEABLE}):
            raise SettingsError(
                f"--without: {unknown[0]!r} is not a signal that can be omitted; choose from "
                f"{', '.join(RENOUNCEABLE)}"
            )
        _check_path(self.telemetry_path)
        if not _URL.fullmatch(self.runbook_base):
            raise SettingsError(
                "--web.runbook-base must be like https://example.org/runbooks, "
                f"not {self.runbook_base!r}"
            )
        _check_folder("--path.procfs", self.procfs, "stat")
        _check_folder("--path.sysfs", self.sysfs, "")


def _check_path(path: str) -> None:
    if not _TELEMETRY_PATH.fullmatch(path) or path.startswith(("/-/", "/api/")):
        raise SettingsError(
            "--web.telemetry-path must be like /metrics (neither / nor below /-/ or /api/), "
            f"not {path!r}"
        )


def _check_folder(flag: str, folder: Path, probe: str) -> None:
    try:
        if probe:
            (folder / probe).open("rb").close()
        else:
            next(folder.iterdir(), None)
    except OSError as error:
        raise SettingsError(f"{flag}: cannot read {folder / probe}: {error.strerror}") from error
