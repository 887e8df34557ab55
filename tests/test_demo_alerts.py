"""`demo --alerts`: the rule pack at work in a terminal."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gpu_bottleneck_exporter.demo.alerts import alerting, changes, lasting
from support.command import ANY_PORT, serving
from support.tools import require
from support.waiting import until

NAMED = "GPU 2  GpuStarved (warning)"
OTHER = "GPU 3  GpuIdle (info)"
PENDING, FIRING = ("pending", "what and why"), ("firing", "what and why")


def test_only_changes_are_reported() -> None:
    assert changes({}, {NAMED: PENDING}) == [f"pending  {NAMED}"]
    assert changes({NAMED: PENDING}, {NAMED: PENDING}) == []
    assert changes({NAMED: PENDING}, {NAMED: FIRING, OTHER: PENDING}) == [
        f"firing   {NAMED}\n         what and why",
        f"pending  {OTHER}",
    ]
    assert changes({NAMED: FIRING}, {}) == [f"over     {NAMED}"]


def test_an_alert_that_is_pending_for_a_moment_is_not_reported() -> None:
    now = {NAMED: PENDING, OTHER: FIRING}
    assert lasting(now, {NAMED: 1, OTHER: 1}) == {OTHER: FIRING}
    assert lasting(now, {NAMED: 3, OTHER: 3}) == now


def test_without_prometheus_the_demo_explains_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    values: list[str] = []
    with alerting("127.0.0.1:1", values.append):
        pass
    (sentence,) = values
    assert sentence.startswith("no alerts: prometheus is not installed (apt-get install ")


def test_alerts_come_and_all_ends_with_the_demo(tmp_path: Path) -> None:
    require("prometheus", "prometheus")
    require("prometheus-alertmanager", "prometheus-alertmanager")
    # A proxy is not asked for what is on this machine.
    proxy = {"http_proxy": "http://127.0.0.1:9"}
    with serving(tmp_path, "demo", "--alerts", *ANY_PORT, **proxy) as demo:
        until(lambda: "grouped and routed: " in demo.said, "Alertmanager's address")
        result = re.search(r"usual: (http://\S+)/alerts", demo.said)
        assert result is not None
        until(lambda: re.search(r"pending  GPU \d  Gpu\w+ \(", demo.said), "an alert")
        until(
            lambda: alertmanagers(result[1]), "Alertmanager, which Prometheus looks for by itself"
        )
        values = {*re.findall(r"(?:pending|over) +GPU \S+  (\w+)", demo.said)}
        if asked(result[1], "query?query=min_over_time(up[10m])==0")["result"]:
            # On a machine too busy to answer within a second, that it did not answer is true.
            values.discard("GpuExporterDown")
        assert values.isdisjoint({"GpuThresholdsMissing", "GpuCausesBlind", "GpuExporterDown"})
        assert demo.terminate() == 0
        until(lambda: not demo.session(), "the end of its processes")


def alertmanagers(prometheus: str) -> list[object]:
    """Receivers of its alerts."""
    return list(asked(prometheus, "alertmanagers")["activeAlertmanagers"])


def asked(prometheus: str, what: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{prometheus}/api/v1/{what}") as reply:
        data: dict[str, Any] = json.load(reply)["data"]
        return data
