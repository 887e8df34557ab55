"""Alerts that a real Prometheus fires at once, for what it makes of their labels and texts."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.daemon import get
from support.prometheus import Prometheus, prometheus
from support.waiting import until


def fired(folder: Path, rules: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """What `rules` fire, with labels and annotations, once there are so many alerts."""
    made = folder / "made.yml"
    group = {"name": "made", "interval": "1s", "rules": rules}
    made.write_text(json.dumps({"groups": [group]}))  # JSON is YAML
    with prometheus(folder, [], [made]) as server:
        until(lambda: len(_alerts(server)) == count, "all alerts")
        return _alerts(server)


def _alerts(server: Prometheus) -> list[Mapping[str, Any]]:
    status, body = get(server.port, "/api/v1/alerts")
    assert status == http.client.OK, body
    alerts: list[Mapping[str, Any]] = json.loads(body)["data"]["alerts"]
    return alerts


def vector(labels: Mapping[str, str], value: str = "1") -> str:
    """An expression for one series with these labels."""
    expression = f"vector({value})"
    for name, text in labels.items():
        # A `$` would refer to a group.
        quoted = json.dumps(text, ensure_ascii=False)
        expression = f'label_replace({expression}, "{name}", {quoted}, "", "")'
    return expression
