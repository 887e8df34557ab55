"""`demo --alerts`: the rule pack at work in a terminal."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.demo.alerts import alerting, changes, programs
from support.command import ANY_PORT, serving
from support.tools import require
from support.waiting import until

NAMED = ("GpuHostLoopBound", "2", "warning")
OTHER = ("GpuAllocatedIdle", "3", "info")


def test_only_what_changed_is_told() -> None:
    assert changes({}, {NAMED: "pending"}) == ["pending  GPU 2  GpuHostLoopBound (warning)"]
    assert changes({NAMED: "pending"}, {NAMED: "pending"}) == []
    assert changes({NAMED: "pending"}, {NAMED: "firing", OTHER: "pending"}) == [
        "pending  GPU 3  GpuAllocatedIdle (info)",
        "firing   GPU 2  GpuHostLoopBound (warning)",
    ]
    assert changes({NAMED: "firing"}, {}) == ["over     GPU 2  GpuHostLoopBound (warning)"]
    assert changes({}, {("GpuThresholdsMissing", "", "warning"): "pending"}) == [
        "pending  GPU -  GpuThresholdsMissing (warning)"
    ]


def test_without_prometheus_the_demo_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    said: list[str] = []
    assert programs() is None
    with alerting("127.0.0.1:1", said.append):
        pass
    (sentence,) = said
    assert sentence.startswith("no alerts: prometheus is not installed (apt-get install ")


def test_alerts_come_and_all_ends_with_the_demo(tmp_path: Path) -> None:
    require("prometheus", "prometheus")
    require("prometheus-alertmanager", "prometheus-alertmanager")
    with serving(tmp_path, "demo", "--alerts", *ANY_PORT) as demo:
        until(lambda: "grouped and routed: " in demo.said, "Alertmanager's address")
        found = re.search(r"usual: (http://\S+)/alerts", demo.said)
        assert found is not None
        # The demo's jobs have no scheduler: what is blind for it is the first alert to come.
        until(lambda: "pending  GPU -  GpuCausesBlind (info)" in demo.said, "an alert")
        until(lambda: alertmanagers(found[1]), "Alertmanager, which Prometheus looks for by itself")
        assert demo.terminate() == 0
        until(lambda: not demo.session(), "the end of its processes")


def alertmanagers(prometheus: str) -> list[object]:
    """Those that it sends alerts to."""
    with urllib.request.urlopen(f"{prometheus}/api/v1/alertmanagers") as reply:
        return list(json.load(reply)["data"]["activeAlertmanagers"])
