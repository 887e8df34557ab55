"""The rule pack at work in the demo: Prometheus, Alertmanager, and alerts in the terminal."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.rulepack import files, for_dialect, scaled

SCALE = 20
"""Rules run so many times as fast: ten minutes become half a minute."""
PACKAGES = "apt-get install prometheus prometheus-alertmanager"
_LOCAL = "127.0.0.1"
_POLL_SECONDS = 1.0
_ALERTMANAGERS = ("alertmanager", "prometheus-alertmanager")
"""Debian's package has the longer name."""
Tell = Callable[[str], None]
Alert = tuple[str, str, str]
"""Name, GPU, severity."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Paths of the programs; Alertmanager may be missing."""

    prometheus: str
    alertmanager: str | None


def programs() -> Programs | None:
    """The installed programs; None without Prometheus."""
    prometheus = shutil.which("prometheus")
    alertmanagers = (path for name in _ALERTMANAGERS if (path := shutil.which(name)))
    return Programs(prometheus, next(alertmanagers, None)) if prometheus else None


@contextmanager
def alerting(exporter: str, tell: Tell) -> Iterator[None]:
    """Prometheus, which scrapes `exporter` (host:port); `tell` gets alerts as they come and go."""
    found = programs()
    if found is None:
        tell(f"no alerts: prometheus is not installed ({PACKAGES})")
        yield
        return
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="gpu-demo-")))
        alertmanager = None
        if found.alertmanager:
            alertmanager = f"{_LOCAL}:{_free_port()}"
            command = _alertmanager(found.alertmanager, folder, alertmanager)
            cleanup.enter_context(_running(command, folder / "alertmanager.log"))
        prometheus = f"{_LOCAL}:{_free_port()}"
        _configure(folder, exporter, alertmanager)
        command = _prometheus(found.prometheus, folder, prometheus)
        cleanup.enter_context(_running(command, folder / "prometheus.log"))
        tell(f"alerts, {SCALE} times as fast as usual: http://{prometheus}/alerts")
        if alertmanager:
            tell(f"grouped and routed: http://{alertmanager}/")
        else:
            tell(f"no Alertmanager: it is not installed ({PACKAGES})")
        cleanup.enter_context(_watched(prometheus, tell))
        yield


def _free_port() -> int:
    with socket.create_server((_LOCAL, 0)) as server:
        return int(server.getsockname()[1])


def _configure(folder: Path, exporter: str, alertmanager: str | None) -> None:
    """Write Prometheus' configuration and the rules. JSON will do, as it is YAML too."""
    for name, text in for_dialect(files(), "exporter").items():
        (folder / name).write_text(scaled(text, SCALE))
    config: dict[str, object] = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{folder}/*.yml"],
        "scrape_configs": [{"job_name": "gpu", "static_configs": [{"targets": [exporter]}]}],
    }
    if alertmanager:
        targets = [{"static_configs": [{"targets": [alertmanager]}]}]
        config["alerting"] = {"alertmanagers": targets}
    (folder / "prometheus.json").write_text(json.dumps(config))


def _prometheus(program: str, folder: Path, address: str) -> list[str]:
    return [
        program,
        f"--config.file={folder}/prometheus.json",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]


def _alertmanager(program: str, folder: Path, address: str) -> list[str]:
    """The command of an Alertmanager that groups by alert and instance, and sends nothing."""
    route = {"receiver": "nobody", "group_by": ["alertname", "instance"], "group_wait": "5s"}
    config = {"route": route, "receivers": [{"name": "nobody"}]}
    (folder / "alertmanager.json").write_text(json.dumps(config))
    return [
        program,
        f"--config.file={folder}/alertmanager.json",
        f"--storage.path={folder}/alertmanager",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",  # no cluster, hence no port for its peers
    ]


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    # However this process ends, the kernel kills the child too.
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    with log.open("wb") as output:
        process = subprocess.Popen([*guard, *command], stdout=output, stderr=output)  # noqa: S603
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def _watched(prometheus: str, tell: Tell) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=_watch, args=(prometheus, tell, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _watch(prometheus: str, tell: Tell, stop: threading.Event) -> None:
    began = time.monotonic()
    known: Mapping[Alert, str] = {}
    while not stop.wait(_POLL_SECONDS):
        found = _alerts(prometheus)
        if found is None:
            continue
        now = {alert: state for alert, (state, _) in found.items()}
        for line in changes(known, now):
            tell(f"[{time.monotonic() - began:4.0f} s] {line}")
        for alert, (state, texts) in found.items():
            if state == "firing" and known.get(alert) != "firing":
                tell(f"         {texts.get('description', '')}")
        known = now


def changes(before: Mapping[Alert, str], now: Mapping[Alert, str]) -> list[str]:
    """A line for each alert that changed its state or is over."""
    lines = [
        f"{state:8} {_named(alert)}"
        for alert, state in sorted(now.items())
        if before.get(alert) != state
    ]
    return lines + [f"{'over':8} {_named(alert)}" for alert in sorted(before.keys() - now.keys())]


def _named(alert: Alert) -> str:
    name, gpu, severity = alert
    return f"GPU {gpu or '-'}  {name} ({severity})"


def _alerts(prometheus: str) -> dict[Alert, tuple[str, Mapping[str, str]]] | None:
    """State and annotations of all alerts; None while Prometheus does not answer."""
    try:
        with urllib.request.urlopen(f"http://{prometheus}/api/v1/alerts", timeout=5) as reply:
            found = json.load(reply)["data"]["alerts"]
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return None
    return {
        (
            one["labels"].get("alertname", ""),
            one["labels"].get("gpu", ""),
            one["labels"].get("severity", ""),
        ): (one["state"], one["annotations"])
        for one in found
    }
