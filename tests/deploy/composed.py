"""Runs the programs of compose.yml with its files, in namespaces of their own; notes what is up.

For `unshare --mount --net --pid --fork --kill-child`, as root: addresses, ports and paths are those
of the files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "exporter/deploy/compose"
HOSTS = ("gpu-node", "alertmanager", "prometheus")
_PATIENCE_SECONDS = 120


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def start(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    with (folder / "said").open("ab") as result:
        return subprocess.Popen(command, stdout=result, stderr=result, cwd=folder)


def asked(path: str) -> Any:  # noqa: ANN401 - JSON
    with urllib.request.urlopen(f"http://prometheus:9090/api/v1/{path}", timeout=5) as reply:
        return json.load(reply)["data"]


def found() -> dict[str, Any]:
    """Targets, rules and alertmanagers of Prometheus."""
    groups = asked("rules")["groups"]
    targets = asked("targets?state=active")["activeTargets"]
    return {
        "targets": {target["scrapeUrl"]: target["health"] for target in targets},
        "alertmanagers": [
            manager["url"] for manager in asked("alertmanagers")["activeAlertmanagers"]
        ],
        "groups": [group["name"] for group in groups],
        "errors": [
            rule["lastError"] for of in groups for rule in of["rules"] if "lastError" in rule
        ],
    }


def main(folder: Path, exporter: Sequence[str], prometheus: str, alertmanager: str) -> None:
    (folder / "hosts").write_text(f"127.0.0.1 localhost {' '.join(HOSTS)}\n")
    run("ip", "link", "set", "lo", "up")
    run("mount", "--bind", f"{folder / 'hosts'}", "/etc/hosts")
    run("mount", "-t", "tmpfs", "tmpfs", "/etc/prometheus")
    Path("/etc/prometheus/gpu").mkdir()
    run("mount", "--bind", f"{ROOT / 'rules'}", "/etc/prometheus/gpu")
    start(folder, *exporter, "demo", "--web.listen-address", ":10170")
    start(folder, prometheus, f"--config.file={COMPOSE / 'prometheus.yml'}")
    routes = f"--config.file={ROOT / 'rules/alertmanager.yml'}"
    start(folder, alertmanager, routes, "--cluster.listen-address=")
    until = time.monotonic() + _PATIENCE_SECONDS
    result: dict[str, Any] = {}
    while time.monotonic() < until and "up" not in result.get("targets", {}).values():
        time.sleep(1)
        try:
            result = found()
        except OSError:
            continue
    (folder / "seen.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[4:], *sys.argv[2:4])
