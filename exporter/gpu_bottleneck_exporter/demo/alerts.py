"""The demo's rule pack: Prometheus, Alertmanager, and alerts in the terminal."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.fetch import Server
from gpu_bottleneck_exporter.jsontext import checked, parsed
from gpu_bottleneck_exporter.rulepack import Changes, adapted, files

_SPEED_UP_FACTOR = 20
"""Factor by which rule durations shrink: ten minutes become half a minute."""
_MIN_HEARTBEATS = 15
"""Polls after the rules' first heartbeat before alerts are printed: at first, windows are empty."""
_MIN_PENDING_POLLS = 3
"""Polls before a pending alert is printed: a scrape may fail."""
Print = Callable[[str], None]
Alerts = Mapping[str, tuple[str, str]]
"""State and description by alert."""


@contextmanager
def alerting(exporter: str, tell: Print) -> Iterator[None]:
    """Run Prometheus on `exporter` (host:port), and `tell` changes of alerts."""
    prometheus = shutil.which("prometheus")
    # Debian's package has the longer name.
    alertmanager = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")
    if not prometheus or not alertmanager:
        missing = "alertmanager" if prometheus else "prometheus"
        install = "apt-get install prometheus prometheus-alertmanager"
        tell(f"no alerts: {missing} is not installed ({install})")
        yield
        return
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(TemporaryDirectory(prefix="gpu-demo-")))
        address, router = (f"127.0.0.1:{_free_port()}" for _ in range(2))
        _configure(folder, exporter, router)
        storage = f"--storage.tsdb.path={folder}/prometheus"
        _run(cleanup, prometheus, folder / "prometheus.json", address, storage)
        tell(f"alerts, {_SPEED_UP_FACTOR} times as fast as usual: http://{address}/alerts")
        # No cluster, hence no port for peers.
        flags = f"--storage.path={folder}/alertmanager", "--cluster.listen-address="
        _run(cleanup, alertmanager, folder / "alertmanager.json", router, *flags)
        tell(f"grouped and routed: http://{router}/")
        stop = threading.Event()
        cleanup.callback(stop.set)
        threading.Thread(target=_watch, args=(address, tell, stop), daemon=True).start()
        yield


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _configure(folder: Path, exporter: str, alertmanager: str) -> None:
    for name, text in adapted(files(), Changes(scale=_SPEED_UP_FACTOR)).items():
        (folder / name).write_text(text)
    prometheus = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{folder}/*.yml"],
        "scrape_configs": [{"job_name": "gpu", "static_configs": [{"targets": [exporter]}]}],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
    }
    # Groups by alert and instance, and sends nothing.
    route = {"receiver": "nobody", "group_by": ["alertname", "instance"], "group_wait": "5s"}
    routes = {"route": route, "receivers": [{"name": "nobody"}]}
    for program, settings in (("prometheus", prometheus), ("alertmanager", routes)):
        (folder / f"{program}.json").write_text(json.dumps(settings))  # JSON is YAML, too


def _run(cleanup: ExitStack, program: str, file: Path, address: str, *flags: str) -> None:
    command = [program, f"--config.file={file}", f"--web.listen-address={address}", *flags]
    # The kernel kills the child with this process.
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*guard, *command], stdout=quiet, stderr=quiet)  # noqa: S603
    cleanup.callback(process.wait)
    cleanup.callback(process.kill)


def _watch(prometheus: str, tell: Print, stop: threading.Event) -> None:
    start = time.monotonic()
    previous: Alerts = {}
    polls: dict[str, int] = {}
    heartbeats = 0
    while not stop.wait(1.0):
        with suppress(ExporterError, ValueError, LookupError):
            # Before the first evaluations, all metrics seem to be absent.
            heartbeats += heartbeats > 0 or _rules_work(prometheus)
            now = _alerts(prometheus) if heartbeats > _MIN_HEARTBEATS else {}
            polls = {alert: polls.get(alert, 0) + 1 for alert in now}
            now = lasting(now, polls)
            for line in changes(previous, now):
                tell(f"[{time.monotonic() - start:4.0f} s] {line}")
            previous = now


def lasting(alerts: Alerts, polls: Mapping[str, int]) -> Alerts:
    """Alerts that fire, or were present in `_MIN_PENDING_POLLS` consecutive polls."""
    return {
        alert: (state, description)
        for alert, (state, description) in alerts.items()
        if state == "firing" or polls[alert] >= _MIN_PENDING_POLLS
    }


def changes(before: Alerts, now: Alerts) -> list[str]:
    """A line for each alert that changed its state or is over."""
    lines = []
    for alert, (state, description) in sorted(now.items()):
        if alert not in before or before[alert][0] != state:
            more = f"\n         {description}" if state == "firing" else ""
            lines.append(f"{state:8} {alert}{more}")
    return lines + [f"{'over':8} {alert}" for alert in sorted(before.keys() - now.keys())]


def _query(prometheus: str, path: str) -> dict[str, object]:
    """Data from the API. Raises ExporterError while Prometheus does not answer."""
    body = Server(f"http://{prometheus}").get(f"/api/v1/{path}", 16 * 2**20)
    return checked(dict, parsed(body)["data"])


def _rules_work(prometheus: str) -> bool:
    return bool(_query(prometheus, "query?query=gpu:rules:heartbeat_timestamp")["result"])


def _alerts(prometheus: str) -> Alerts:
    alerts = checked(list, _query(prometheus, "alerts")["alerts"])
    return {
        _title(alert["labels"]): (alert["state"], alert["annotations"].get("description", ""))
        for alert in alerts
    }


def _title(labels: Mapping[str, str]) -> str:
    gpu, name, severity = (labels.get(key) or "-" for key in ("gpu", "alertname", "severity"))
    return f"GPU {gpu}  {name} ({severity})"
