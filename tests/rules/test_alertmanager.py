"""The example configuration in a real Alertmanager, with a real receiver of its notifications."""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from rules.cases import alerts as pack
from rules.cases import rows
from rules.notifier import EXAMPLE, Alertmanager, Labels, alertmanager_running, note, seen
from support.alertmanager import PROGRAM
from support.tools import require
from support.waiting import until


def alerts(rule: str, node: str, gpus: Sequence[object] = (), /, **owner: str) -> list[Labels]:
    """Labels of "Name/severity" on GPUs of a node, as Prometheus sends them; no GPU: the node's."""
    name = rule.partition("/")[0]
    target = {"alertname": name, "job": "gpu", "instance": node, **pack()[rule].labels, **owner}
    return [{**target, "gpu": f"{gpu}", "uuid": f"GPU-{node}-{gpu}"} for gpu in gpus] or [target]


def posted(situation: str) -> Iterator[tuple[str, bool, list[Labels]]]:
    """Alerts of each row: who is told, and in which notification; whether they are shown."""
    for row in rows("notified")[situation]:
        owner = {name: text for name, text in row.items() if name not in NO_LABELS}
        for n in range(row.get("times", 1)):
            whose = {name: text.format(n=n) for name, text in owner.items()}
            gpus = [f"{gpu}".format(n=n) for gpu in row.get("gpus", ())]
            found = alerts(row["alert"], row["node"].format(n=n), gpus, **whose)
            yield row.get("to", ""), row.get("shown", False), found


NO_LABELS = {"alert", "node", "gpus", "times", "to", "shown"}
OTHERS: Labels = {"alertname": "DiskFull", "severity": "critical", "instance": "elsewhere"}
"""None of ours."""
LAST = [
    one
    for how in ("critical", "warning")
    for one in alerts(f"GpuFault/{how}/gpu_fault", "last", [0])
]
"""The second one is muted by the first one."""


def test_every_alert_of_the_pack_has_its_receiver() -> None:
    by_severity = {"critical": "platform-page", "info": "shown-only"}
    by_name = {"GpuReclaimable": "reclaim", "GpuReclaimableSoon": "job-ticket"}
    for rule in pack().values():
        labels = {"alertname": rule.name, **rule.labels}
        pairs = [f"{name}={value}" for name, value in labels.items()]
        told = amtool("config", "routes", "test", f"--config.file={EXAMPLE}", *pairs)
        expected = by_severity.get(labels["severity"], f"{labels['responder']}-ticket")
        expected = by_name.get(rule.name, expected)
        assert told.strip() == expected, f"{rule}"


def test_who_is_told(tmp_path: Path) -> None:
    """Of all situations in one Alertmanager."""
    situations = {name: [*posted(name)] for name in rows("notified")}
    every = [one for found in situations.values() for one in found]
    with alertmanager_running(tmp_path) as server:
        server.post([labels for to, _, found in every if to for labels in found] + LAST)
        # All that mutes others is told itself. It must be known before these come, or on a slow
        # machine their groups are notified first. Alerts are taken in their order.
        until(lambda: server.muted() >= {seen(LAST[-1])}, "the end of the last alert's way")
        server.post([labels for to, _, found in every if not to for labels in found])
        assert_end_is_told(server)  # by then each group has been looked at
        for found in situations.values():
            sent: dict[str, list[Labels]] = defaultdict(list)
            for to, _, told in found:
                sent[to] += told
            nodes = {labels["instance"] for _, _, told in found for labels in told}
            notes = [note(to, of) for to, of in sent.items() if to]
            server.assert_sent(*notes, to_nodes=nodes)
        untold = {seen(one) for to, is_shown, of in every for one in of if not (to or is_shown)}
        wanted = untold | {seen(LAST[-1])}
        until(lambda: server.muted() == wanted, lambda: f"only in one: {server.muted() ^ wanted}")


def test_a_job_that_can_be_given_back_is_exactly_one_webhook(tmp_path: Path) -> None:
    """However often Prometheus sends its alerts, and none at its end."""
    given = [
        labels
        for n in range(2)
        for pod in range(3)
        for labels in alerts(
            "GpuReclaimable/info",
            "",
            workload_namespace="nlp",
            workload_pod=f"job-{n}-{pod}",
            workload_group=f"nlp/job-{n}",
            reason="allocated_idle",
        )
    ]
    with alertmanager_running(tmp_path) as server:
        for _ in range(4):
            server.post(given)
            time.sleep(1)
        until(lambda: len(server.notes) == 2, lambda: f"{server.notes}")
        server.post(given, resolved=True)
        assert_end_is_told(server)
        bodies = [body for path, body in server.notes if path == "/reclaim"]
    told = sorted([seen_job(one["labels"]) for one in body["alerts"]] for body in bodies)
    assert told == [[seen_job(one) for one in given[:3]], [seen_job(one) for one in given[3:]]]


def seen_job(labels: Labels) -> list[str]:
    names = ("workload_namespace", "workload_pod", "workload_group", "reason")
    return [labels[name] for name in names]


def assert_end_is_told(server: Alertmanager) -> None:
    """And of alerts of others that they fire."""
    server.post([OTHERS])
    server.assert_sent(note("platform-ticket", [OTHERS]), to_nodes={"elsewhere"})
    labels = alerts("GpuStarved/warning/inline_loading", "ends", [0, 1], user="ada")
    for status in ("firing", "resolved"):
        server.post(labels, resolved=status == "resolved")
        server.assert_sent(note("job-ticket", labels), to_nodes={"ends"}, status=status)


def amtool(*arguments: str) -> str:
    command = [require("amtool", PROGRAM), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
