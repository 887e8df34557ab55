"""The rule pack at work in the demo: Prometheus, Alertmanager, and alerts in the terminal."""

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

SCALE = 20
"""Rules run so many times as fast: ten minutes become half a minute."""
PACKAGES = "apt-get install prometheus prometheus-alertmanager"
_LOCAL = "127.0.0.1"
_POLL_SECONDS = 1.0
_SETTLING_POLLS = 15
"""Polls from the rules' first heartbeat until alerts are shown: at first, windows are empty."""
_PENDING_POLLS = 3
"""Polls for which an alert must have been pending to be shown: a scrape may fail when busy."""
_MOST_BYTES = 16 * 2**20
Tell = Callable[[str], None]
Alerts = Mapping[str, tuple[str, str]]
"""State and description by alert."""


@contextmanager
def alerting(exporter: str, tell: Tell) -> Iterator[None]:
    """Prometheus, which scrapes `exporter` (host:port); `tell` gets alerts as they come and go."""
    prometheus = shutil.which("prometheus")
    # Debian's package has the longer name.
    alertmanager = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")
    if not prometheus or not alertmanager:
        missing = "alertmanager" if prometheus else "prometheus"
        tell(f"no alerts: {missing} is not installed ({PACKAGES})")
        yield
        return
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(TemporaryDirectory(prefix="gpu-demo-")))
        address, router = (f"{_LOCAL}:{_free_port()}" for _ in range(2))
        _configure(folder, exporter, router)
        storage = f"--storage.tsdb.path={folder}/prometheus"
        _run(cleanup, prometheus, folder / "prometheus.json", address, storage)
        tell(f"alerts, {SCALE} times as fast as usual: http://{address}/alerts")
        # No cluster, hence no port for its peers.
        flags = f"--storage.path={folder}/alertmanager", "--cluster.listen-address="
        _run(cleanup, alertmanager, folder / "alertmanager.json", router, *flags)
        tell(f"grouped and routed: http://{router}/")
        stop = threading.Event()
        cleanup.callback(stop.set)
        threading.Thread(target=_watch, args=(address, tell, stop), daemon=True).start()
        yield


def _free_port() -> int:
    with socket.create_server((_LOCAL, 0)) as server:
        return int(server.getsockname()[1])


def _configure(folder: Path, exporter: str, alertmanager: str) -> None:
    """Write the rules and both configurations. JSON will do, as it is YAML too."""
    for name, text in adapted(files(), Changes(scale=SCALE)).items():
        (folder / name).write_text(text)
    prometheus = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{folder}/*.yml"],
        "scrape_configs": [{"job_name": "gpu", "static_configs": [{"targets": [exporter]}]}],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
    }
    # It groups by alert and instance, and sends nothing.
    route = {"receiver": "nobody", "group_by": ["alertname", "instance"], "group_wait": "5s"}
    routes = {"route": route, "receivers": [{"name": "nobody"}]}
    for program, settings in (("prometheus", prometheus), ("alertmanager", routes)):
        (folder / f"{program}.json").write_text(json.dumps(settings))


def _run(cleanup: ExitStack, program: str, file: Path, address: str, *flags: str) -> None:
    """Start a program, configured by `file` and serving on `address`, that ends with `cleanup`."""
    command = [program, f"--config.file={file}", f"--web.listen-address={address}", *flags]
    # However this process ends, the kernel kills the child too.
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*guard, *command], stdout=quiet, stderr=quiet)  # noqa: S603
    cleanup.callback(process.wait)
    cleanup.callback(process.kill)


def _watch(prometheus: str, tell: Tell, stop: threading.Event) -> None:
    began = time.monotonic()
    known: Alerts = {}
    polls: dict[str, int] = {}
    beats = 0
    while not stop.wait(_POLL_SECONDS):
        with suppress(ExporterError, ValueError, LookupError):
            # Before rules have seen the first scrapes, all that is measured seems to be missing.
            beats += beats > 0 or _rules_work(prometheus)
            now = _alerts(prometheus) if beats > _SETTLING_POLLS else {}
            polls = {alert: polls.get(alert, 0) + 1 for alert in now}
            now = lasting(now, polls)
            for line in changes(known, now):
                tell(f"[{time.monotonic() - began:4.0f} s] {line}")
            known = now


def lasting(alerts: Alerts, polls: Mapping[str, int]) -> Alerts:
    """Those that fire, or have been there for `_PENDING_POLLS` in a row; `polls`: for how many."""
    return {
        alert: (state, description)
        for alert, (state, description) in alerts.items()
        if state == "firing" or polls[alert] >= _PENDING_POLLS
    }


def changes(before: Alerts, now: Alerts) -> list[str]:
    """What to tell of each alert that changed its state or is over."""
    lines = []
    for alert, (state, description) in sorted(now.items()):
        if alert not in before or before[alert][0] != state:
            more = f"\n         {description}" if state == "firing" else ""
            lines.append(f"{state:8} {alert}{more}")
    return lines + [f"{'over':8} {alert}" for alert in sorted(before.keys() - now.keys())]


def _asked(prometheus: str, what: str) -> dict[str, object]:
    """The data of an answer of its API."""
    body = Server(f"http://{prometheus}").get(f"/api/v1/{what}", _MOST_BYTES)
    return checked(dict, parsed(body)["data"])


def _rules_work(prometheus: str) -> bool:
    """Whether all rules have run. Raises ExporterError while Prometheus does not answer."""
    return bool(_asked(prometheus, "query?query=gpu:rules:heartbeat_timestamp")["result"])


def _alerts(prometheus: str) -> Alerts:
    """All alerts. Raises ExporterError while Prometheus does not answer."""
    found = checked(list, _asked(prometheus, "alerts")["alerts"])
    return {
        _named(one["labels"]): (one["state"], one["annotations"].get("description", ""))
        for one in found
    }


def _named(labels: Mapping[str, str]) -> str:
    gpu, name, severity = (labels.get(key) or "-" for key in ("gpu", "alertname", "severity"))
    return f"GPU {gpu}  {name} ({severity})"
