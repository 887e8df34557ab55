"""A real Alertmanager with the example configuration, and a real receiver of its notifications."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from rules.fleet import RULES
from rules.parsed import seconds
from support.alertmanager import alertmanager_with, inhibited, post
from support.beside import Reply, Request, answering
from support.waiting import until

EXAMPLE = RULES / "alertmanager.yml"
INTERVALS = {"group_wait": "3s", "group_interval": "1s", "repeat_interval": "1h"}

Labels = dict[str, str]
Alert = tuple[str, str, str, str]
"""Name, severity, node, GPU."""
Note = tuple[str, frozenset[Alert]]
"""A notification: the receiver, and the alerts in it."""


def seen(labels: Mapping[str, str]) -> Alert:
    instance = labels.get("instance", "")
    return (labels["alertname"], labels["severity"], instance, labels.get("gpu", ""))


def note(to: str, labels: Sequence[Labels]) -> Note:
    return to.split(maxsplit=1)[0], frozenset(map(seen, labels))


def ordered(notes: Sequence[Note]) -> list[Note]:
    return sorted(notes, key=lambda one: (one[0], sorted(one[1])))


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """A running one, and the notifications of it in their order: path and content."""

    port: int
    notes: list[tuple[str, Any]] = field(default_factory=list)

    def post(self, labels: Sequence[Labels], *, resolved: bool = False) -> None:
        """As Prometheus does: again and again until an alert is over, here once and for long."""
        now = datetime.now(timezone.utc)
        # Of a group with an older alert nothing waits for group_wait: it would be sent before what
        # mutes it is there.
        end = now if resolved else now + timedelta(hours=1)
        times = {"startsAt": now.isoformat(), "endsAt": end.isoformat()}
        post(self.port, [{"labels": one, "annotations": {}, **times} for one in labels])

    def muted(self) -> set[Alert]:
        """Alerts that others inhibit."""
        return {seen(labels) for labels, muted in inhibited(self.port) if muted}

    def about(self, nodes: set[str], status: str) -> list[Note]:
        """Notifications with alerts of the nodes."""
        # Of each group the last: on a slow machine some of its alerts come late, and are added.
        last = {
            (path, note["groupKey"]): [alert["labels"] for alert in note["alerts"]]
            for path, note in tuple(self.notes)
            if note["status"] == status
        }
        return ordered(
            [
                note(path.strip("/"), alerts)
                for (path, _), alerts in last.items()
                if any(labels.get("instance", "") in nodes for labels in alerts)
            ]
        )

    def assert_sent(self, *notes: Note, to_nodes: set[str], status: str = "firing") -> None:
        """Exactly these come about the nodes."""
        wanted = ordered(notes)

        def found() -> list[Note]:
            return self.about(to_nodes, status)

        until(lambda: found() == wanted, lambda: f"{wanted} instead of {found()}")


def timed(text: str, scale: float | None) -> str:
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
    config = home / "alertmanager.yml"
    notes: list[tuple[str, Any]] = []

    def receive(request: Request) -> Reply:
        notes.append((request.path, json.loads(request.body)))
        return Reply()

    with answering(receive) as receiver:
        text = timed(EXAMPLE.read_text(), scale)
        config.write_text(text.replace("127.0.0.1:9095", f"127.0.0.1:{receiver}"))
        with alertmanager_with(config) as port:
            yield Alertmanager(port, notes)
