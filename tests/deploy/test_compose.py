"""The files for compose: valid, and with them Debian's Prometheus and Alertmanager work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import composed
from gpu_bottleneck_exporter.rulepack import NAMES
from support.command import COMMAND
from support.tools import missing, require

FILES = {
    path.name: yaml.safe_load(path.read_text("utf-8")) for path in composed.COMPOSE.glob("*.yml")
}
SERVICES: dict[str, Any] = FILES["compose.yml"]["services"]
GRAFANA = composed.COMPOSE / "grafana"


@pytest.mark.parametrize("profile", ["gpu", "demo"])
def test_the_file_is_one_for_compose(profile: str) -> None:
    compose = require("docker-compose", "--no-install-recommends docker-compose")
    command = [compose, "--profile", profile, "-f", f"{composed.COMPOSE / 'compose.yml'}", "config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {*yaml.safe_load(done.stdout)["services"]} >= {"prometheus", "alertmanager", "grafana"}


def test_all_that_is_mounted_is_there() -> None:
    result = FILES["compose.yml"]["volumes"]
    for name, service in SERVICES.items():
        for source, *_ in (item.split(":") for item in service.get("volumes", ())):
            there = (composed.COMPOSE / source).exists()
            assert there or source in result or source.startswith("/sys/"), (name, source)
        if "build" in service:
            context = composed.COMPOSE / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).exists()
    rules = {Path(file).name for file in FILES["prometheus.yml"]["rule_files"]}
    assert rules == {*NAMES}


def test_nothing_can_be_reached_from_other_machines() -> None:
    ports = [port for service in SERVICES.values() for port in service["ports"]]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_grafana_gets_a_data_source_and_the_dashboards() -> None:
    """The fields are those of Grafana's documentation of provisioning."""
    (source,) = yaml.safe_load((GRAFANA / "datasources/prometheus.yml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    host, port = source["url"].removeprefix("http://").split(":")
    assert f"127.0.0.1:{port}:{port}" in SERVICES[host]["ports"]
    (provider,) = yaml.safe_load((GRAFANA / "dashboards/gpu.yml").read_text())["providers"]
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    boards = {path: source for source, path in mounts.items()}[provider["options"]["path"]]
    assert [*(composed.COMPOSE / boards).glob("*.json")]


def test_prometheus_and_alertmanager_run_with_these_files(tmp_path: Path) -> None:
    prometheus = require("prometheus", "prometheus")
    alertmanager = require("prometheus-alertmanager", "prometheus-alertmanager")
    if os.geteuid() != 0:
        missing("root is missing")
    apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [*apart, sys.executable, composed.__file__, f"{tmp_path}", prometheus, alertmanager]
    done = subprocess.run([*command, *COMMAND], capture_output=True, text=True, check=False)
    result = (tmp_path / "said").read_text(errors="replace")
    assert done.returncode == 0, done.stderr + result
    document = json.loads((tmp_path / "seen.json").read_text())
    assert document["targets"] == {"http://gpu-node:10170/metrics": "up"}, result
    assert document["alertmanagers"] == ["http://alertmanager:9093/api/v2/alerts"]
    assert {"gpu-inputs", "gpu-alerts"} & {*document["groups"]}, document["groups"]
    assert document["errors"] == []
