"""The example configuration in a real Alertmanager, with a real receiver of its notifications."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from rules.cases import rows
from rules.fleet import RULES
from rules.parsed import rules, seconds
from support.alertmanager import PROGRAM, alertmanager_with, inhibited, post
from support.daemon import HOST
from support.tools import require
from support.waiting import until

EXAMPLE = RULES / "alertmanager.yml"
INTERVALS = {"group_wait": "3s", "group_interval": "1s", "repeat_interval": "1h"}
SETTLED_SECONDS = 6.0
"""After this each group has been looked at more than once."""

Labels = dict[str, str]
Alert = tuple[str, str, str, str]
"""Name, severity, node, GPU."""
Note = tuple[str, frozenset[Alert]]
"""A notification: the receiver, and the alerts in it."""


ALERTS = rules({"alerts.yml": (RULES / "alerts.yml").read_text()})
PACK = {(rule.name, rule.labels["severity"]): dict(rule.labels) for rule in ALERTS}
"""The labels that the pack gives: by name and severity."""


def alerts(rule: str, node: str, gpus: Sequence[object] = (), /, **owner: str) -> list[Labels]:
    """Labels of "Name/severity" on GPUs of a node, as Prometheus sends them; no GPU: the node's."""
    name, severity = rule.split("/")
    target = {"alertname": name, "job": "gpu", "instance": node, **PACK[name, severity], **owner}
    return [
        {**target, "gpu": f"{gpu}", "uuid": f"GPU-{node}-{gpu}"} for gpu in gpus
    ] or [target]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Posted:
    """Alerts of a row, and what becomes of them."""

    situation: str
    alerts: Sequence[Labels]
    to: str
    """Who is told, and in which notification; "": nobody."""
    shown: bool


def posted() -> Iterator[Posted]:
    for situation, together in rows("notified").items():
        for row in together:
            owner = {name: text for name, text in row.items() if name not in NO_LABELS}
            for n in range(row.get("times", 1)):
                whose = {name: text.format(n=n) for name, text in owner.items()}
                gpus = [f"{gpu}".format(n=n) for gpu in row.get("gpus", ())]
                found = alerts(row["alert"], row["node"].format(n=n), gpus, **whose)
                yield Posted(situation, found, row.get("to", ""), row.get("shown", False))


NO_LABELS = {"alert", "node", "gpus", "times", "to", "shown"}
OTHERS: Labels = {"alertname": "DiskFull", "severity": "critical", "instance": "elsewhere"}
"""None of ours."""
LAST = [one for how in ("critical", "warning") for one in alerts(f"GpuFault/{how}", "last", [0])]
"""The second one is muted by the first one."""


@dataclass(slots=True)
class Received:
    """Notifications, in the order in which they came: path and content."""

    notes: list[tuple[str, Any]] = field(default_factory=list)

    def about(self, *nodes: str, status: str = "firing") -> list[Note]:
        """Those with alerts of the nodes, in a stable order."""
        # Of each group the last: on a slow machine some of its alerts come late, and are added.
        last = {
            (path, note["groupKey"]): note
            for path, note in tuple(self.notes)
            if note["status"] == status
            and any(alert["labels"].get("instance", "") in nodes for alert in note["alerts"])
        }
        found = [
            (path.strip("/"), frozenset(_seen(alert["labels"]) for alert in note["alerts"]))
            for (path, _), note in last.items()
        ]
        return sorted(found, key=_order)


@dataclass(frozen=True, slots=True)
class Alertmanager:
    port: int
    received: Received

    def post(self, labels: Sequence[Labels], *, resolved: bool = False) -> None:
        """As Prometheus does: again and again until an alert is over, here once and for long."""
        now = datetime.now(timezone.utc)
        body = [
            {
                "labels": one,
                "annotations": {"summary": "…"},
                # Of a group with an older alert nothing waits for group_wait: it would be sent
                # before what mutes it is there.
                "startsAt": now.isoformat(),
                "endsAt": (now if resolved else now + timedelta(hours=1)).isoformat(),
                "generatorURL": "http://prometheus.example/graph",
            }
            for one in labels
        ]
        post(self.port, body)

    def muted(self) -> set[Alert]:
        """Alerts that others inhibit."""
        return {_seen(labels) for labels, muted in inhibited(self.port) if muted}

    def assert_sent(self, *nodes: str, notes: Sequence[Note], status: str = "firing") -> None:
        """Exactly these come about the nodes."""
        wanted = sorted(notes, key=_order)

        def found() -> list[Note]:
            return self.received.about(*nodes, status=status)

        until(lambda: found() == wanted, lambda: f"{wanted} instead of {found()}")


def post_everything(server: Alertmanager, every: Sequence[Posted]) -> None:
    """And wait until each group has been looked at."""
    server.post([labels for one in every if one.to for labels in one.alerts] + LAST)
    # All that mutes others is told itself. It must be known before these come, or on a slow
    # machine their groups are notified first. Alerts are taken in their order.
    until(lambda: server.muted() >= {_seen(LAST[-1])}, "the end of the last alert's way")
    server.post([*(labels for one in every if not one.to for labels in one.alerts), OTHERS])
    time.sleep(SETTLED_SECONDS)


def note(to: str, labels: Sequence[Labels]) -> Note:
    return to.split(maxsplit=1)[0], frozenset(map(_seen, labels))


def test_amtool_accepts_the_example() -> None:
    done = _amtool("check-config", str(EXAMPLE))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_of_the_pack_has_its_receiver() -> None:
    wanted = {key: _receiver_of(labels) for key, labels in PACK.items()}
    found = {key: _routed({"alertname": key[0], **labels}) for key, labels in PACK.items()}
    assert found == wanted
    assert set(found.values()) == {"platform-page", "platform-ticket", "job-ticket", "shown-only"}


def test_who_is_told(tmp_path: Path) -> None:
    """Of all situations in one Alertmanager."""
    every = [*posted()]
    with alertmanager_running(tmp_path) as server:
        post_everything(server, every)
        for situation in rows("notified"):
            here = [one for one in every if one.situation == situation]
            nodes = {labels["instance"] for one in here for labels in one.alerts}
            sent: dict[str, list[Labels]] = defaultdict(list)
            for one in here:
                sent[one.to] += one.alerts
            server.assert_sent(*nodes, notes=[note(to, of) for to, of in sent.items() if to])
        server.assert_sent("elsewhere", notes=[note("platform-ticket", [OTHERS])])
        untold = [one for one in every if not one.to and not one.shown]
        muted = {_seen(labels) for one in untold for labels in one.alerts} | {_seen(LAST[-1])}
        until(
            lambda: server.muted() == muted,
            lambda: f"only in one: {server.muted() ^ muted}",
        )
        assert_end_is_told(server)


def assert_end_is_told(alertmanager: Alertmanager) -> None:
    labels = alerts("GpuInlineLoading/warning", "ends", [0, 1], user="ada")
    alertmanager.post(labels)
    alertmanager.assert_sent("ends", notes=[note("job-ticket", labels)])
    alertmanager.post(labels, resolved=True)
    alertmanager.assert_sent("ends", notes=[note("job-ticket", labels)], status="resolved")


def _seen(labels: Mapping[str, str]) -> Alert:
    instance = labels.get("instance", "")
    return (labels["alertname"], labels["severity"], instance, labels.get("gpu", ""))


def _order(one: Note) -> tuple[str, list[Alert]]:
    return one[0], sorted(one[1])


def _receiver_of(labels: Mapping[str, str]) -> str:
    by_severity = {"critical": "platform-page", "info": "shown-only"}
    return by_severity.get(labels["severity"], f"{labels['owner']}-ticket")


def _routed(labels: Mapping[str, str]) -> str:
    pairs = [f"{name}={value}" for name, value in labels.items()]
    done = _amtool("config", "routes", "test", f"--config.file={EXAMPLE}", *pairs)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _amtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [require("amtool", PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@contextmanager
def _receiver() -> Iterator[tuple[int, Received]]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.notes.append((self.path, json.loads(body)))
            self.send_response(http.client.OK)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port, received
        finally:
            server.shutdown()
            thread.join()


def _timed(text: str, scale: float | None) -> str:
    """The durations of the routes replaced by INTERVALS, or each times `scale`."""
    lines = re.compile(rf"({'|'.join(INTERVALS)}): (\S+)")
    assert {name for name, _ in lines.findall(text)} == {*INTERVALS}

    def shortened(found: re.Match[str]) -> str:
        if scale is None:
            return f"{found[1]}: {INTERVALS[found[1]]}"
        return f"{found[1]}: {max(1, round(seconds(found[2]) * scale * 1000))}ms"

    return lines.sub(shortened, text)


@contextmanager
def alertmanager_running(home: Path, scale: float | None = None) -> Iterator[Alertmanager]:
    """One with the example, its placeholders at a receiver; its times INTERVALS, or scaled."""
    text = _timed(EXAMPLE.read_text(), scale)
    config = home / "alertmanager.yml"
    with _receiver() as (receiver_port, received):
        config.write_text(text.replace("127.0.0.1:9095", f"127.0.0.1:{receiver_port}"))
        with alertmanager_with(config) as port:
            yield Alertmanager(port, received)
