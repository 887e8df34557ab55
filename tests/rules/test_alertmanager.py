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
from rules.parsed import rules
from support.daemon import HOST, PATIENCE_SECONDS, daemon, free_port, get
from support.tools import require

PACKAGE = "prometheus-alertmanager"
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
    *alerts("GpuCpuThrottled/warning", "both", [0], user="ada"),
    *alerts("GpuCpuThrottled/info", "both", [0, 1], user="ada"),
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
    # What tells of an hour, beside what tells of its cause.
    *alerts("GpuUnderused/warning", "hour", [0, 1], cause="host_loop_bound", user="ada"),
    *alerts("GpuHostLoopBound/warning", "hour", [0], user="ada"),
    # None of ours.
    {"alertname": "DiskFull", "severity": "critical", "instance": "elsewhere"},
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
        connection = http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE_SECONDS)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/api/v2/alerts", json.dumps(body), headers)
            response = connection.getresponse()
            assert response.status == http.client.OK, response.read()
        finally:
            connection.close()

    def muted(self, node: str) -> set[Alert]:
        """Alerts of the node that others inhibit."""
        status, body = get(self.port, "/api/v2/alerts")
        assert status == http.client.OK, body
        return {
            _seen(alert["labels"])
            for alert in json.loads(body)
            if alert["labels"].get("instance", "") == node and alert["status"]["inhibitedBy"]
        }

    def assert_sent(self, *nodes: str, notes: Sequence[Note], status: str = "firing") -> None:
        """Exactly these come about the nodes."""
        wanted = sorted(notes, key=_order)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := self.received.about(*nodes, status=status)) != wanted:
            assert time.monotonic() < deadline, f"{found} instead of {wanted}"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    """All of POSTED have been posted, and each group looked at."""
    home = tmp_path_factory.mktemp("alertmanager")
    with _receiver() as (receiver_port, received), _running(home, receiver_port) as port:
        server = Alertmanager(port, received)
        server.post(POSTED)
        time.sleep(SETTLED_SECONDS)
        yield server


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


def test_one_notification_for_each_job_and_cause(alertmanager: Alertmanager) -> None:
    eight = [alerts("GpuLocalStorageBound/warning", node, range(4)) for node in ("job-a", "job-b")]
    other = alerts("GpuHostLoopBound/warning", "job-a", [0])
    notes = [note("job-ticket", *eight), note("job-ticket", other)]
    alertmanager.assert_sent("job-a", "job-b", notes=notes)


def test_pods_are_told_apart_and_go_to_their_team(alertmanager: Alertmanager) -> None:
    rule = "GpuTooFewWorkers/warning"
    notes = [
        note("job-ticket", alerts(rule, "pods", [0, 1])),
        note("job-ticket", alerts(rule, "pods", [2])),
        note("team-vision", alerts(rule, "pods", [3])),
    ]
    alertmanager.assert_sent("pods", notes=notes)


def test_without_a_scheduler_container_or_user_stand_for_the_job(
    alertmanager: Alertmanager,
) -> None:
    shell = [("shell-a", gpus) for gpus in ([0, 1], [2], [3])]
    cases = [*shell, ("nobody-a", [0, 1]), ("nobody-b", [0])]
    rule = "GpuTooFewWorkers/warning"
    notes = [note("job-ticket", alerts(rule, node, gpus)) for node, gpus in cases]
    alertmanager.assert_sent("shell-a", "nobody-a", "nobody-b", notes=notes)


def test_hardware_is_one_ticket_for_each_node(alertmanager: Alertmanager) -> None:
    notes = [note("platform-ticket", alerts("GpuClockLimited/warning", "clocks", [0, 1]))]
    alertmanager.assert_sent("clocks", notes=notes)


def test_a_fault_pages_and_mutes_its_gpu_only(alertmanager: Alertmanager) -> None:
    page = note("platform-page", alerts("GpuFault/critical", "fault", [3]))
    sibling = note("job-ticket", alerts("GpuJobStalled/warning", "fault", [4]))
    alertmanager.assert_sent("fault", notes=[page, sibling])
    names = ("GpuFault", "GpuTelemetryLost", "GpuJobStalled", "GpuPcieLinkDegraded")
    assert alertmanager.muted("fault") == {(name, "warning", "fault", "3") for name in names}


def test_a_contained_error_mutes_nothing(alertmanager: Alertmanager) -> None:
    notes = [
        note("platform-ticket", alerts("GpuFault/warning", "contained", [0])),
        note("job-ticket", alerts("GpuHostLoopBound/warning", "contained", [0])),
    ]
    alertmanager.assert_sent("contained", notes=notes)


def test_lost_telemetry_and_slow_hardware_mute_causes(alertmanager: Alertmanager) -> None:
    notes = [
        note("platform-ticket", alerts("GpuTelemetryLost/warning", "lost", [0])),
        note("job-ticket", alerts("GpuCpuThrottled/warning", "lost", [1])),
        note("platform-ticket", alerts("GpuHardwareSlowdown/warning", "hot", [0])),
    ]
    alertmanager.assert_sent("lost", "hot", notes=notes)
    assert alertmanager.muted("lost") == {("GpuCpuThrottled", "warning", "lost", "0")}
    assert alertmanager.muted("hot") == {("GpuStraggler", "warning", "hot", "0")}


def test_info_is_shown_not_sent(alertmanager: Alertmanager) -> None:
    notes = [note("job-ticket", alerts("GpuCpuThrottled/warning", "both", [0]))]
    alertmanager.assert_sent("both", notes=notes)
    # On GPU 1 there is no warning: its info is shown.
    assert alertmanager.muted("both") == {("GpuCpuThrottled", "info", "both", "0")}


def test_a_silent_exporter_mutes_what_is_old_but_no_page(alertmanager: Alertmanager) -> None:
    notes = [
        note("platform-ticket", alerts("GpuExporterDown/warning", "down")),
        note("platform-page", alerts("GpuFault/critical", "down", [2])),
    ]
    alertmanager.assert_sent("down", notes=notes)
    assert len(alertmanager.muted("down")) == 3


def test_a_job_of_many_pods_is_one_notification_for_each_cause(
    alertmanager: Alertmanager,
) -> None:
    nodes = [f"rank-{rank}" for rank in range(RANKS)]
    all_of_it = [alerts("GpuTooFewWorkers/warning", node, range(8)) for node in nodes]
    alertmanager.assert_sent(*nodes, notes=[note("job-ticket", *all_of_it)])


def test_an_image_that_does_not_start_is_one_notification(alertmanager: Alertmanager) -> None:
    nodes = [f"image-{node}" for node in range(1000)]
    down = [alerts("GpuExporterDown/warning", node) for node in nodes]
    alertmanager.assert_sent(*nodes, notes=[note("platform-ticket", *down)])


def test_what_is_slow_for_the_fleet_is_told_once(alertmanager: Alertmanager) -> None:
    nodes = ["", *(f"job-{job}" for job in range(200))]
    once = note("platform-ticket", alerts("GpuFleetBottleneck/warning", ""))
    other = note("job-ticket", alerts("GpuHostLoopBound/warning", "job-7", [1]))
    alertmanager.assert_sent(*nodes, notes=[once, other])


def test_a_cause_says_more_than_an_hour(alertmanager: Alertmanager) -> None:
    notes = [
        note("job-ticket", alerts("GpuHostLoopBound/warning", "hour", [0])),
        note("job-ticket", alerts("GpuUnderused/warning", "hour", [1])),
    ]
    alertmanager.assert_sent("hour", notes=notes)


def test_other_alerts_are_not_lost(alertmanager: Alertmanager) -> None:
    alertmanager.assert_sent(
        "elsewhere",
        notes=[("platform-ticket", frozenset({("DiskFull", "critical", "elsewhere", "")}))],
    )


def test_the_end_is_told(alertmanager: Alertmanager) -> None:
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
    command = [require("amtool", PACKAGE), *arguments]
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


@contextmanager
def _running(home: Path, receiver_port: int) -> Iterator[int]:
    """Alertmanager with the example, faster, and with its placeholders at `receiver_port`."""
    text = EXAMPLE.read_text()
    for name, duration in INTERVALS.items():
        text, count = re.subn(rf"{name}: \S+", f"{name}: {duration}", text)
        assert count > 0
    config = home / "alertmanager.yml"
    config.write_text(text.replace("127.0.0.1:9095", f"127.0.0.1:{receiver_port}"))
    port = free_port()
    command = [require("prometheus-alertmanager", PACKAGE), f"--config.file={config}"]
    command += [f"--storage.path={home / 'data'}", f"--web.listen-address={HOST}:{port}"]
    command += ["--cluster.listen-address=", "--log.level=warn"]
    with daemon(command, port, "/-/ready", home / "log"):
        yield port
