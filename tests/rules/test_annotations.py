"""The annotations of every alert, rendered by a real Prometheus: each alert fires at once."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rules.fleet import RULES
from rules.parsed import Rule, rules
from support.daemon import get
from support.prometheus import Prometheus, prometheus
from support.waiting import until

VALUE = "0.6342"
TARGET = {"job": "gpu", "instance": "[fe80::7]:9", "blind": "host_causes"}
GPU = {"gpu": "5", "uuid": "GPU-5"}
OWNERS = ("pod nlp/train-0", "Slurm job 4711", "owner unknown")
PER_NODE = ("GpuExporterDown", "GpuCausesBlind", "GpuNodeBottleneck")
PER_SERVER = ("GpuThresholdsMissing", "GpuFleetBottleneck")
BROKEN = ("<error", "{{", "}}", "%!", "<no value>", "NaN")
VALUES = re.compile(r"\{\{\s*\$value\s*(\|\s*humanizePercentage\s*)?\}\}")


@dataclass(frozen=True, slots=True)
class Rendered:
    """An alert that fires, and the templates it comes from."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    templates: Mapping[str, str]


def rendered(folder: Path) -> list[Rendered]:
    """Each alert of the pack, for each kind of owner."""
    alerts = rules({"alerts.yml": (RULES / "alerts.yml").read_text()})
    made = folder / "made.yml"
    made.write_text(json.dumps(_constant(alerts)))  # JSON is YAML
    with prometheus(folder, [], [made]) as server:
        wanted = len(alerts) * len(OWNERS)
        until(lambda: len(firing(server)) == wanted, "all alerts")
        return [_rendered(alert, alerts) for alert in firing(server)]


def test_what_alerts_say(tmp_path: Path) -> None:
    fired = rendered(tmp_path)
    assert_no_template_breaks(fired)
    for alert in fired:
        assert_it_says_what_where_and_what_to_do(alert)
        assert_it_names_node_gpu_and_owner(alert)
    assert_values_are_written_for_people(fired)


def assert_no_template_breaks(fired: list[Rendered]) -> None:
    broken = [
        (alert.name, text)
        for alert in fired
        for text in alert.annotations.values()
        if any(part in text for part in BROKEN) or text != " ".join(text.split())
    ]
    assert broken == []


def assert_it_says_what_where_and_what_to_do(alert: Rendered) -> None:
    names = {"summary", "description", "runbook_url", "dashboard_url"}
    assert alert.annotations.keys() == names, alert
    assert "{{" not in alert.templates["summary"], "static: it is the title of a group"
    assert alert.annotations["runbook_url"].endswith(f"/{alert.name}.md")
    found = urlsplit(alert.annotations["dashboard_url"])
    asked = {name.removeprefix("var-"): text for name, (text,) in parse_qs(found.query).items()}
    given = {"instance": TARGET["instance"], "gpu": GPU["uuid"]}
    assert asked.items() <= given.items(), found


def assert_it_names_node_gpu_and_owner(alert: Rendered) -> None:
    text = alert.annotations["description"]
    owner = alert.labels["workload"]
    if alert.name in PER_NODE:
        assert TARGET["instance"] in text, text
    elif alert.name not in PER_SERVER:
        assert text.startswith(f"GPU 5 on {TARGET['instance']} ({owner}) "), text


def assert_values_are_written_for_people(fired: list[Rendered]) -> None:
    with_value = 0
    for alert in fired:
        text = alert.annotations["description"]
        for percentage in VALUES.findall(alert.templates["description"]):
            with_value += 1
            assert ("63.42%" if percentage else VALUE) in text, text
        assert alert.templates["description"].count("$value") == len(
            VALUES.findall(alert.templates["description"])
        ), "a way of writing it that this test does not know"
    assert with_value > len(fired) / 2


def _constant(alerts: Sequence[Rule]) -> object:
    """The same alerts, but they fire at once, once for each kind of owner."""
    expression = " or ".join(vector({**TARGET, **GPU, "workload": owner}) for owner in OWNERS)
    kept = ("alert", "labels", "annotations")
    made = [{"expr": expression, **{key: one.fields[key] for key in kept}} for one in alerts]
    return {"groups": [{"name": "made", "interval": "1s", "rules": made}]}


def vector(labels: Mapping[str, str], value: str = VALUE) -> str:
    """An expression for one series with these labels."""
    expression = f"vector({value})"
    for name, text in labels.items():
        # A `$` would refer to a group.
        quoted = json.dumps(text, ensure_ascii=False)
        expression = f'label_replace({expression}, "{name}", {quoted}, "", "")'
    return expression


def _rendered(alert: Mapping[str, Any], alerts: Sequence[Rule]) -> Rendered:
    labels = alert["labels"]
    rule = next(
        rule
        for rule in alerts
        if rule.name == labels["alertname"] and rule.labels.items() <= labels.items()
    )
    return Rendered(rule.name, labels, alert["annotations"], rule.annotations)


def firing(server: Prometheus) -> list[Mapping[str, Any]]:
    """The alerts that `server` fires, with labels and annotations."""
    status, body = get(server.port, "/api/v1/alerts")
    assert status == http.client.OK, body
    alerts: list[Mapping[str, Any]] = json.loads(body)["data"]["alerts"]
    return alerts
