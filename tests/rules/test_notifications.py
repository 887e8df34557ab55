"""From raw series to tickets: what the rules make of an incident, told through Alertmanager."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from rules.fleet import Fleet
from rules.notifier import Alertmanager, alertmanager_running
from rules.scenes import add_scenes

MINUTE = 0.2
"""Seconds that a minute takes in the Alertmanager: all durations of the example shrink so."""
QUIET_MINUTES = 20
"""Longer than group_interval: what follows is as after any longer time without a change."""
END = 145
"""Minute after which all is over, resolved and told."""
WORK = 4 * 60
"""Minutes of work in phases, each as the one before: the longest window of rules is two hours."""
Alert = tuple[tuple[str, str], ...]
"""Its labels."""
Alerts = frozenset[Alert]
Notes = dict[str, list[tuple[str, str]]]
"""By cluster: status and name of each notification's alerts."""


def staged(section: str, minutes: int, interval: str) -> Fleet:
    """One situation in each cluster. An alert comes one `interval` later at most."""
    fleet = Fleet(minutes, evaluation_interval=interval)
    add_scenes(fleet, section)
    return fleet


def firing(fleet: Fleet, folder: Path) -> Iterator[tuple[int, Alerts]]:
    """What fires after each minute.

    promtool evaluates the pack as Prometheus does, `for` and `keep_firing_for` included. It says
    what fires where that is not what was expected: here, that nothing does.
    """
    for minute in range(1, fleet.minutes + 1):
        fleet.expect(minute, 'ALERTS{alertstate="firing",alertname!="GpuCausesBlind"}', {})
    found = {
        round(minute): frozenset(
            tuple(pair for pair in labels.items() if pair[0] not in {"__name__", "alertstate"})
            for labels, _ in samples
        )
        for minute, samples in fleet.unexpected(folder)
    }
    return ((minute, found.get(minute, frozenset())) for minute in range(fleet.minutes + 1))


def notified(home: Path) -> Notes:
    """What was sent of each cluster, in the order in which it came."""
    timeline: dict[int, set[Alert]] = {}
    for fleet in (staged("incidents", END, "2m"), staged("work_in_phases", WORK, "4m")):
        for minute, alerts in firing(fleet, home):
            timeline.setdefault(minute, set()).update(alerts)
    with alertmanager_running(home, MINUTE / 60) as server:
        _replay(timeline, server)
        time.sleep(QUIET_MINUTES * MINUTE)
        found: Notes = defaultdict(list)
        for _, note in server.notes:
            labels = note["alerts"][0]["labels"]
            found[labels["cluster"]].append((note["status"], labels["alertname"]))
        return found


def _replay(timeline: Mapping[int, set[Alert]], server: Alertmanager) -> None:
    """Post what begins and what ends when it does; long times without a change are shortened."""
    due, quiet = time.monotonic(), 0
    for (_, before), (_, now) in pairwise(sorted({-1: set(), **timeline}.items())):
        quiet = 0 if before != now else quiet + 1
        if quiet > QUIET_MINUTES:
            continue
        due += MINUTE
        time.sleep(max(0.0, due - time.monotonic()))
        for alerts, resolved in ((now - before, False), (before - now, True)):
            if alerts:
                server.post([dict(one) for one in sorted(alerts)], resolved=resolved)


SITUATIONS = {
    "dying disk": "GpuNodeBottleneck",
    "hot rack": "GpuFleetBottleneck",
    "slow NFS at checkpoints": "GpuFleetBottleneck",
    "hang of eight": "GpuCollectiveHang",
}


@pytest.mark.first
def test_an_incident_is_told_once_and_its_end_once(tmp_path: Path) -> None:
    """And work in phases opens two tickets a day at most."""
    notes = notified(tmp_path)
    phases = notes.pop("phases of 30 minutes")
    once = {s: [("firing", name), ("resolved", name)] for s, name in SITUATIONS.items()}
    assert notes == once
    assert 1 <= [status for status, _ in phases].count("firing") <= 2, phases
