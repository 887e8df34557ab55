"""A real Alertmanager, and what it is asked."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.daemon import HOST, daemon, free_port, get
from support.daemon import post as send
from support.tools import require

PROGRAM = "prometheus-alertmanager"
"""Debian's name, also of the package."""


@contextmanager
def alertmanager_with(config: Path) -> Iterator[int]:
    """The port of one that is ready; its files lie beside `config`."""
    port, folder = free_port(), config.parent
    command = [require(PROGRAM, PROGRAM), f"--config.file={config}", "--log.level=warn"]
    command += [f"--storage.path={folder / 'data'}", f"--web.listen-address={HOST}:{port}"]
    command += ["--cluster.listen-address="]
    with daemon(command, port, "/-/ready", folder / "log"):
        yield port


def post(port: int, alerts: Sequence[dict[str, Any]]) -> None:
    """Give it alerts, as its API describes them. It takes them in their order."""
    status, body = send(port, "/api/v2/alerts", json.dumps(alerts), "application/json")
    assert status == http.client.OK, body


def inhibited(port: int) -> list[tuple[dict[str, str], bool]]:
    """The labels of each alert that it has, and whether others inhibit it.

    It mutes by an alert a moment after it has it: ask until what was given last is muted.
    """
    status, body = get(port, "/api/v2/alerts")
    assert status == http.client.OK, body
    return [(alert["labels"], bool(alert["status"]["inhibitedBy"])) for alert in json.loads(body)]
