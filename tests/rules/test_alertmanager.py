"""The example configuration in a real Alertmanager, with a real receiver of its notifications."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

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
SLURM = {"slurm_job_id": "4711", "user": "ada"}
POD = {"workload_namespace": "nlp", "workload_pod": "train-0", "pod_uid": "7d1f"}
RANKS = 64
STORAGE, WEST = "network_storage_bound", {"cluster": "west"}
TEAM_POD = {**POD, "workload_namespace": "vision-prod"}


def alerts(rule: str, node: str, gpus: Sequence[int] = (), /, **owner: str) -> list[Labels]:
    """Labels of "Name/severity" on GPUs of a node, as Prometheus sends them; no GPU: the node's."""
    name, severity = rule.split("/")
    target = {"alertname": name, "job": "gpu", "instance": node, **PACK[name, severity], **owner}
    return [
        {**target, "gpu": f"{gpu}", "uuid": f"GPU-{node}-{gpu}"} for gpu in gpus
    ] or [target]  # fmt: skip


def pod_of(rank: int) -> dict[str, str]:
    pod = {"workload_pod": f"train-{rank}", "pod_uid": f"{rank}"}
    return {**POD, **pod, "workload_group": "nlp/5f3c9ab01d2e"}


def of_west(job: int) -> dict[str, str]:
    return {**WEST, "slurm_job_id": f"{job}", "workload_group": f"slurm-{job}"}


LOCAL = "local_storage_bound"
HUNG = {**SLURM, "slurm_job_id": "99", "workload_group": "slurm-99"}

# Each case has nodes of its own.
POSTED = [
    # One job on two nodes, with two causes.
    *alerts("GpuLocalStorageBound/warning", "job-a", range(4), **SLURM),
    *alerts("GpuLocalStorageBound/warning", "job-b", range(4), **SLURM),
    *alerts("GpuHostLoopBound/warning", "job-a", [0], **SLURM),
    # Other owners.
    *alerts("GpuTooFewWorkers/warning", "pods", [0, 1], **POD),
    *alerts("GpuTooFewWorkers/warning", "pods", [2], **{**POD, "workload_pod": "train-1"}),
    *alerts("GpuTooFewWorkers/warning", "pods", [3], **TEAM_POD),
    *alerts("GpuTooFewWorkers/warning", "shell-a", [0, 1], user="ada"),
    *alerts("GpuTooFewWorkers/warning", "shell-a", [2], user="bob"),
    *alerts("GpuTooFewWorkers/warning", "shell-a", [3], user="bob", container_id="c0ffee"),
    *alerts("GpuTooFewWorkers/warning", "nobody-a", [0, 1]),
    *alerts("GpuTooFewWorkers/warning", "nobody-b", [0]),
    # Hardware of one node, with jobs on it.
    *alerts("GpuClockLimited/warning", "clocks", [0], **SLURM),
    *alerts("GpuClockLimited/warning", "clocks", [1], **POD),
    # A fault, what it does to its GPU, and to another one of the job.
    *alerts("GpuFault/critical", "fault", [3], **SLURM),
    *alerts("GpuFault/warning", "fault", [3]),
    *alerts("GpuTelemetryLost/warning", "fault", [3], **SLURM),
    *alerts("GpuJobStalled/warning", "fault", [3, 4], **{**SLURM, "slurm_job_id": "4712"}),
    *alerts("GpuPcieLinkDegraded/warning", "fault", [3], **SLURM),
    # A contained error explains nothing.
    *alerts("GpuFault/warning", "contained", [0]),
    *alerts("GpuHostLoopBound/warning", "contained", [0], user="ada"),
    # A GPU that does not answer, and one that is slowed down.
    *alerts("GpuTelemetryLost/warning", "lost", [0], **POD),
    *alerts("GpuCpuThrottled/warning", "lost", [0, 1], **{**POD, "workload_pod": "lost"}),
    *alerts("GpuHardwareSlowdown/warning", "hot", [0], **POD),
    *alerts("GpuStraggler/warning", "hot", [0], **POD),
    # Severities of one alert.
    *alerts("GpuCheckpointStall/warning", "both", [0], user="ada"),
    *alerts("GpuCheckpointStall/info", "both", [0, 1], user="ada"),
    # An exporter that is down.
    *alerts("GpuExporterDown/warning", "down"),
    *alerts("GpuTooFewWorkers/warning", "down", [0], **POD),
    *alerts("GpuHardwareSlowdown/warning", "down", [1], **POD),
    *alerts("GpuCausesBlind/info", "down", blind="host_causes"),
    *alerts("GpuFault/critical", "down", [2], **POD),
    # A job of many pods that meet at one address.
    *(
        alert
        for rank in range(RANKS)
        for alert in alerts("GpuTooFewWorkers/warning", f"rank-{rank}", range(8), **pod_of(rank))
    ),
    # An image that does not start, everywhere.
    *(
        alert
        for node in range(1000)
        for alert in alerts("GpuExporterDown/warning", f"image-{node}", cluster="north")
    ),
    # Storage that is slow for all.
    *alerts("GpuFleetBottleneck/warning", "", cause=STORAGE, **WEST),
    *(
        alert
        for job in range(200)
        for alert in alerts("GpuNetworkStorageBound/warning", f"job-{job}", [0], **of_west(job))
    ),
    *alerts("GpuHostLoopBound/warning", "job-7", [1], **{**WEST, "slurm_job_id": "7"}),
    # A dying disk under eight jobs.
    *alerts("GpuNodeBottleneck/warning", "dying", cause=LOCAL),
    *(
        alert
        for job in range(8)
        for alert in alerts("GpuLocalStorageBound/warning", "dying", [job], slurm_job_id=f"{job}")
    ),
    *alerts("GpuUnderused/warning", "dying", [0], cause=LOCAL, slurm_job_id="0"),
    # A hang: some of its ranks would be told something else.
    *alerts("GpuCollectiveHang/warning", "hang-a", range(8), **HUNG),
    *alerts("GpuImbalance/warning", "hang-b", [0], **HUNG),
    *alerts("GpuSmallBatch/info", "hang-b", [1], **HUNG),
    # What tells of an hour, beside what tells of its cause.
    *alerts("GpuUnderused/warning", "hour", [0, 1], cause="host_loop_bound", user="ada"),
    *alerts("GpuHostLoopBound/warning", "hour", [0], user="ada"),
    # None of ours.
    {"alertname": "DiskFull", "severity": "critical", "instance": "elsewhere"},
]
LAST = [
    *alerts("GpuFault/critical", "last", [0]),
    *alerts("GpuFault/warning", "last", [0]),
]


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

    def muted(self, node: str) -> set[Alert]:
        """Alerts of the node that others inhibit."""
        return {
            _seen(labels)
            for labels, muted in inhibited(self.port)
            if labels.get("instance", "") == node and muted
        }

    def assert_sent(self, *nodes: str, notes: Sequence[Note], status: str = "firing") -> None:
        """Exactly these come about the nodes."""
        wanted = sorted(notes, key=_order)

        def found() -> list[Note]:
            return self.received.about(*nodes, status=status)

        until(lambda: found() == wanted, lambda: f"{wanted} instead of {found()}")


@contextmanager
def told_everything(home: Path) -> Iterator[Alertmanager]:
    """All of POSTED have been posted, and each group looked at."""
    with alertmanager_running(home) as server:
        told = _told()
        server.post([labels for labels in POSTED if _seen(labels) in told] + LAST)
        # All that mutes others is told itself. It must be known before these come, or on a slow
        # machine their groups are notified first. Alerts are taken in their order.
        until(lambda: server.muted("last"), "the end of the last alert's way")
        server.post([labels for labels in POSTED if _seen(labels) not in told])
        time.sleep(SETTLED_SECONDS)
        yield server


def _told() -> set[Alert]:
    """Alerts that somebody is to be told."""
    about = [one for sent in SENT.values() for _, alerts_of in sent for one in alerts_of]
    return {_seen(labels) for one in about for labels in alerts(*one)}


def note(receiver: str, *labels: Sequence[Labels]) -> Note:
    return receiver, frozenset(_seen(one) for some in labels for one in some)


def test_amtool_accepts_the_example() -> None:
    done = _amtool("check-config", str(EXAMPLE))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_of_the_pack_has_its_receiver() -> None:
    wanted = {key: _receiver_of(labels) for key, labels in PACK.items()}
    found = {key: _routed({"alertname": key[0], **labels}) for key, labels in PACK.items()}
    assert found == wanted
    assert set(found.values()) == {"platform-page", "platform-ticket", "job-ticket", "shown-only"}


@pytest.mark.parametrize(
    ("owner", "receiver"),
    [(SLURM, "job-ticket"), (POD, "job-ticket"), (TEAM_POD, "team-vision"), ({}, "job-ticket")],
)
def test_a_job_alert_goes_to_its_owner(owner: Labels, receiver: str) -> None:
    assert _routed(alerts("GpuHostLoopBound/warning", "n", [0], **owner)[0]) == receiver


Sent = tuple[str, list[tuple[str, str, Sequence[int]]]]
"""A receiver, and the alerts of one notification: "Name/severity", node, GPUs."""
FLEET_WIDE: tuple[str, str, Sequence[int]] = ("GpuFleetBottleneck/warning", "", [])
SHELLS = (("shell-a", [0, 1]), ("shell-a", [2]), ("shell-a", [3]))
NOBODYS = (("nobody-a", [0, 1]), ("nobody-b", [0]))
SENT: dict[str, list[Sent]] = {
    "one for each job and cause": [
        (
            "job-ticket",
            [("GpuLocalStorageBound/warning", node, range(4)) for node in ("job-a", "job-b")],
        ),
        ("job-ticket", [("GpuHostLoopBound/warning", "job-a", [0])]),
    ],
    "pods are told apart and go to their team": [
        ("job-ticket", [("GpuTooFewWorkers/warning", "pods", [0, 1])]),
        ("job-ticket", [("GpuTooFewWorkers/warning", "pods", [2])]),
        ("team-vision", [("GpuTooFewWorkers/warning", "pods", [3])]),
    ],
    "without a scheduler container or user stand for the job": [
        ("job-ticket", [("GpuTooFewWorkers/warning", node, gpus)])
        for node, gpus in (*SHELLS, *NOBODYS)
    ],
    "hardware is one ticket for each node": [
        ("platform-ticket", [("GpuClockLimited/warning", "clocks", [0, 1])])
    ],
    "a fault pages and mutes its GPU only": [
        ("platform-page", [("GpuFault/critical", "fault", [3])]),
        ("job-ticket", [("GpuJobStalled/warning", "fault", [4])]),
    ],
    "a contained error mutes nothing": [
        ("platform-ticket", [("GpuFault/warning", "contained", [0])]),
        ("job-ticket", [("GpuHostLoopBound/warning", "contained", [0])]),
    ],
    "lost telemetry mutes causes": [
        ("platform-ticket", [("GpuTelemetryLost/warning", "lost", [0])]),
        ("job-ticket", [("GpuCpuThrottled/warning", "lost", [1])]),
    ],
    "slow hardware mutes causes": [
        ("platform-ticket", [("GpuHardwareSlowdown/warning", "hot", [0])])
    ],
    # On GPU 1 there is no warning: its info is shown.
    "info is shown, not sent": [("job-ticket", [("GpuCheckpointStall/warning", "both", [0])])],
    "a silent exporter mutes what is old but no page": [
        ("platform-ticket", [("GpuExporterDown/warning", "down", [])]),
        ("platform-page", [("GpuFault/critical", "down", [2])]),
    ],
    "a job of many pods": [
        (
            "job-ticket",
            [("GpuTooFewWorkers/warning", f"rank-{rank}", range(8)) for rank in range(RANKS)],
        )
    ],
    "an image that does not start": [
        (
            "platform-ticket",
            [("GpuExporterDown/warning", f"image-{node}", []) for node in range(1000)],
        )
    ],
    "what is slow for the fleet is told once": [
        ("platform-ticket", [FLEET_WIDE]),
        ("job-ticket", [("GpuHostLoopBound/warning", "job-7", [1])]),
    ],
    "a dying disk is the node's": [
        ("platform-ticket", [("GpuNodeBottleneck/warning", "dying", [])]),
    ],
    "a hang is one for all of its ranks": [
        ("job-ticket", [("GpuCollectiveHang/warning", "hang-a", range(8))]),
    ],
    "a cause says more than an hour": [
        ("job-ticket", [("GpuHostLoopBound/warning", "hour", [0])]),
        ("job-ticket", [("GpuUnderused/warning", "hour", [1])]),
    ],
}
SILENT = {
    "what is slow for the fleet is told once": {f"job-{job}" for job in range(200)},
    "a hang is one for all of its ranks": {"hang-b"},
}
"""Nodes about which nothing else comes."""
MUTED = {
    "fault": {
        (name, "warning", "fault", "3")
        for name in ("GpuFault", "GpuTelemetryLost", "GpuJobStalled", "GpuPcieLinkDegraded")
    },
    "lost": {("GpuCpuThrottled", "warning", "lost", "0")},
    "hot": {("GpuStraggler", "warning", "hot", "0")},
    "both": {("GpuCheckpointStall", "info", "both", "0")},
    "hang-b": {
        ("GpuImbalance", "warning", "hang-b", "0"),
        ("GpuSmallBatch", "info", "hang-b", "1"),
    },
    "down": {
        ("GpuTooFewWorkers", "warning", "down", "0"),
        ("GpuHardwareSlowdown", "warning", "down", "1"),
        ("GpuCausesBlind", "info", "down", ""),
    },
}


def test_who_is_told(tmp_path: Path) -> None:
    """Of all situations in one Alertmanager."""
    with told_everything(tmp_path) as server:
        for case, sent in SENT.items():
            nodes = {node for _, about in sent for _, node, _ in about} | SILENT.get(case, set())
            notes = [note(receiver, *(alerts(*one) for one in about)) for receiver, about in sent]
            server.assert_sent(*nodes, notes=notes)
        for node, muted in MUTED.items():
            assert_muted(server, node, muted)
        others = frozenset({("DiskFull", "critical", "elsewhere", "")})
        server.assert_sent("elsewhere", notes=[("platform-ticket", others)])
        assert_end_is_told(server)


def assert_muted(server: Alertmanager, node: str, alerts: set[Alert]) -> None:
    until(
        lambda: server.muted(node) == alerts,
        lambda: f"{alerts} instead of {server.muted(node)}",
    )


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


def _faster(text: str) -> str:
    for name, duration in INTERVALS.items():
        text, count = re.subn(rf"{name}: \S+", f"{name}: {duration}", text)
        assert count > 0
    return text


def _scaled(text: str, scale: float) -> str:
    """Each duration of the routes times `scale`."""

    def shortened(found: re.Match[str]) -> str:
        return f"{found[1]}: {max(1, round(seconds(found[2]) * scale * 1000))}ms"

    return re.sub(rf"({'|'.join(INTERVALS)}): (\S+)", shortened, text)


@contextmanager
def alertmanager_running(home: Path, scale: float | None = None) -> Iterator[Alertmanager]:
    """One with the example, its placeholders at a receiver; its times INTERVALS, or scaled."""
    text = EXAMPLE.read_text()
    text = _faster(text) if scale is None else _scaled(text, scale)
    config = home / "alertmanager.yml"
    with _receiver() as (receiver_port, received):
        config.write_text(text.replace("127.0.0.1:9095", f"127.0.0.1:{receiver_port}"))
        with alertmanager_with(config) as port:
            yield Alertmanager(port, received)
