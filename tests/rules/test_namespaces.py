"""Alerts in a cluster that goes by the label `namespace`, as kube-prometheus-stack does.

Its default inhibition rules are in a real Alertmanager; alerts have the labels that a real
Prometheus gives them with `--workload-namespace`.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.ruleoutput import Wanted, printed
from rules.parsed import rules
from support.daemon import HOST, daemon, free_port, get, wait_until
from support.prometheus import prometheus
from support.tools import require

SAME = ["namespace", "alertname"]
DEFAULTS = {
    "route": {"receiver": "null"},
    "receivers": [{"name": "null"}],
    "inhibit_rules": [
        {
            "source_matchers": ["severity = critical"],
            "target_matchers": ["severity =~ warning|info"],
            "equal": SAME,
        },
        {
            "source_matchers": ["severity = warning"],
            "target_matchers": ["severity = info"],
            "equal": SAME,
        },
        {
            "source_matchers": ["alertname = InfoInhibitor"],
            "target_matchers": ["severity = info"],
            "equal": ["namespace"],
        },
    ],
}
"""Of kube-prometheus-stack 75."""
EXPORTERS = {"job": "gpu", "instance": "node-1", "namespace": "monitoring"}
"""What the operator gives to every series of the exporter, but for what the chart drops."""
Seen = Mapping[tuple[str, str, str], bool]
"""Name, severity and namespace of an alert: whether it is inhibited."""


def gpu(name: str, index: int, severity: str, namespace: str) -> dict[str, str]:
    """Labels of the series of an alert, and what makes it this one of its variants."""
    owner = {"workload_namespace": namespace} if namespace else {}
    return {"alert": name, "is": severity, "gpu": f"{index}", **EXPORTERS, **owner}


POSTED = (
    gpu("GpuCpuThrottled", 0, "warning", "nlp"),
    gpu("GpuCpuThrottled", 1, "info", "nlp"),
    gpu("GpuCpuThrottled", 2, "info", "vision"),
    gpu("GpuThermalThrottle", 3, "info", "vision"),
    gpu("GpuHostLoopBound", 4, "warning", ""),
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What Alertmanager makes of them."""
    folder = tmp_path_factory.mktemp("namespaces")
    with alertmanager(folder) as port:
        made = folder / "made.yml"
        made.write_text(
            json.dumps({"groups": [{"name": "made", "interval": "1s", "rules": as_rules()}]})
        )
        with prometheus(folder, [], [made]) as server:
            wait_until(
                lambda: len(server.query('ALERTS{alertstate="firing"}')) == len(POSTED),
                "all alerts",
                give_up=lambda: False,
            )
            fired = [labels for labels, _ in server.query('ALERTS{alertstate="firing"}')]
        post(port, fired)
        return {
            (one["alertname"], one["severity"], one.get("namespace", "")): inhibited
            for one, inhibited in shown(port)
        }


def as_rules() -> list[dict[str, object]]:
    """Alerts with the labels of the pack, which fire at once."""
    pack = [rule for rule in rules({"": printed(Wanted(workload_namespace=True))}) if rule.is_alert]
    found: list[dict[str, object]] = []
    for one in POSTED:
        labels = next(
            rule.labels
            for rule in pack
            if (rule.name, rule.labels["severity"]) == (one["alert"], one["is"])
        )
        expr = "vector(1)"
        for name, text in one.items():
            if name not in ("alert", "is"):
                expr = f'label_replace({expr}, "{name}", "{text}", "", "")'
        found.append({"alert": one["alert"], "expr": expr, "labels": dict(labels)})
    return found


@contextmanager
def alertmanager(folder: Path) -> Iterator[int]:
    config, port = folder / "alertmanager.yml", free_port()
    config.write_text(json.dumps(DEFAULTS))  # JSON is YAML
    program = require("prometheus-alertmanager", "prometheus-alertmanager")
    command = [program, f"--config.file={config}", f"--storage.path={folder / 'data'}"]
    command += [f"--web.listen-address={HOST}:{port}", "--cluster.listen-address="]
    with daemon(command, port, "/-/ready", folder / "log"):
        yield port


def post(port: int, fired: list[dict[str, str]]) -> None:
    labels = [
        {k: v for k, v in one.items() if k not in ("__name__", "alertstate")} for one in fired
    ]
    connection = http.client.HTTPConnection(HOST, port)
    try:
        headers = {"Content-Type": "application/json"}
        body = json.dumps([{"labels": one} for one in labels])
        connection.request("POST", "/api/v2/alerts", body, headers)
        assert connection.getresponse().status == http.client.OK
    finally:
        connection.close()


def shown(port: int) -> list[tuple[dict[str, str], bool]]:
    """Each alert, and whether others inhibit it; once all of them have been looked at."""
    found: list[tuple[dict[str, str], bool]] = []

    def settled() -> bool:
        status, body = get(port, "/api/v2/alerts")
        assert status == http.client.OK
        told = [one for one in json.loads(body) if one["status"]["state"] != "unprocessed"]
        found[:] = [(one["labels"], bool(one["status"]["inhibitedBy"])) for one in told]
        return len(found) == len(POSTED)

    wait_until(settled, "all alerts in Alertmanager", give_up=lambda: False)
    return found


def test_an_alert_of_a_job_is_in_the_namespace_of_its_pod(seen: Seen) -> None:
    assert ("GpuCpuThrottled", "warning", "nlp") in seen
    assert ("GpuCpuThrottled", "info", "vision") in seen


def test_without_a_pod_and_of_the_platform_it_is_the_exporters(seen: Seen) -> None:
    assert ("GpuHostLoopBound", "warning", "monitoring") in seen
    assert ("GpuThermalThrottle", "info", "monitoring") in seen


def test_default_inhibition_keeps_to_a_namespace(seen: Seen) -> None:
    muted = {alert for alert, inhibited in seen.items() if inhibited}
    assert muted == {("GpuCpuThrottled", "info", "nlp")}
