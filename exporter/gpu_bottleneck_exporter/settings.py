"""Settings: checked once, immutable, shared by all parts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.remedies import OF_SIGNALS

RUNBOOK_BASE = (
    "https://github.com/gpu-bottleneck-exporter/gpu-bottleneck-exporter/blob/main/rules/runbooks"
)
MINIMUM_INTERVAL_SECONDS = 0.2
LONGEST_ANSWER_SECONDS = 30.0
RENOUNCEABLE = tuple(
    sorted(name for name in OF_SIGNALS if name != "own_cpu" and not name.startswith("all_"))
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
        path = self.telemetry_path
        if not _TELEMETRY_PATH.fullmatch(path) or path.startswith(("/-/", "/api/")):
            raise SettingsError(
                "--web.telemetry-path must be like /metrics (neither / nor below /-/ or /api/), "
                f"not {path!r}"
            )
        if not _URL.fullmatch(self.runbook_base):
            raise SettingsError(
                "--web.runbook-base must be like https://example.org/runbooks, "
                f"not {self.runbook_base!r}"
            )
        _check_folder("--path.procfs", self.procfs, "stat")
        _check_folder("--path.sysfs", self.sysfs, "")


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
