"""The annotations of every alert, rendered by a real Prometheus: each alert fires at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from rules.causes_table import pack
from rules.fired import fired, vector

VALUE = "0.6342"
TARGET = {"job": "gpu", "instance": "[fe80::7]:9", "blind": "host_causes"}
GPU = {"gpu": "5", "uuid": "GPU-5"}
OWNERS = ("pod nlp/train-0", "Slurm job 4711", "owner unknown")
PER_NODE = ("GpuExporterDown", "GpuCausesBlind", "GpuNodeBottleneck")
PER_SERVER = ("GpuThresholdsMissing", "GpuFleetBottleneck")
BROKEN = ("<error", "{{", "}}", "%!", "<no value>", "NaN")
VALUES = re.compile(r"\{\{\s*\$value\s*(\|\s*humanizePercentage\s*)?\}\}")


def test_what_alerts_say(tmp_path: Path) -> None:
    """What is the same before it is rendered is in test_contract."""
    alerts = [rule for rule in pack() if rule.is_alert]
    every = " or ".join(vector({**TARGET, **GPU, "workload": owner}, VALUE) for owner in OWNERS)
    made = [
        {"alert": rule.name, "expr": every, "labels": rule.labels, "annotations": rule.annotations}
        for rule in alerts
    ]
    found = fired(tmp_path, made, len(alerts) * len(OWNERS))
    with_value = 0
    for alert in found:
        labels, texts = alert["labels"], alert["annotations"]
        (rule,) = (
            one
            for one in alerts
            if one.name == labels["alertname"] and one.labels.items() <= labels.items()
        )
        assert [*faults(rule.name, labels["workload"], texts)] == [], rule
        template = rule.annotations["description"]
        values = VALUES.findall(template)
        with_value += len(values)
        for percentage in values:
            assert ("63.42%" if percentage else VALUE) in texts["description"], rule
        assert template.count("$value") == len(values), "a way of writing it that is not known here"
    assert with_value > len(found) / 2


def faults(name: str, owner: str, texts: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the annotations of an alert of that name."""
    for text in texts.values():
        if any(part in text for part in BROKEN) or text != " ".join(text.split()):
            yield f"broken: {text}"
    query = parse_qs(urlsplit(texts["dashboard_url"]).query)
    asked = {key.removeprefix("var-"): value for key, (value,) in query.items()}
    if not asked.items() <= {"instance": TARGET["instance"], "gpu": GPU["uuid"]}.items():
        yield f"of another GPU: {asked}"
    said, node = texts["description"], TARGET["instance"]
    named = node in said if name in PER_NODE else said.startswith(f"GPU 5 on {node} ({owner}) ")
    if name not in PER_SERVER and not named:
        yield f"names no node, or not the GPU and its owner first: {said}"
