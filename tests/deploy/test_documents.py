"""Figures of the documents on a fleet, and on the unit's exposure, hold."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from deploy.machine import README, UNIT, fleets_configuration
from support.tools import require


def test_the_configuration_for_a_fleet_is_one(tmp_path: Path) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(fleets_configuration().replace("/etc/prometheus/", f"{tmp_path}/"), "utf-8")
    (tmp_path / "gpu-nodes.json").write_text('[{"targets": ["node-1:10170"]}]')
    command = [require("promtool", "prometheus"), "check", "config", f"{path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_exposure_of_the_unit_is_as_documented() -> None:
    (result,) = re.findall(r"scores it (\d\.\d)", " ".join(README.split()))
    analyze = require("systemd-analyze", "systemd")
    command = [analyze, "security", "--offline=true", "--no-pager", f"{UNIT}"]
    report = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    (score,) = re.findall(r"exposure level for \S+: (\d+\.\d)", report)
    assert float(score) <= float(result)
