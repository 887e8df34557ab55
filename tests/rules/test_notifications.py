"""From raw series to tickets: what the rules make of an incident, told through Alertmanager."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from rules.fleet import Fleet, Gpu, add_gpu
from rules.parsed import seconds
from rules.series import Phases
from rules.test_alertmanager import Alertmanager, alertmanager_running

MINUTE = 0.2
"""Seconds that a minute takes in the Alertmanager: all durations of the example shrink so."""
QUIET_MINUTES = 20
"""Longer than group_interval: what follows is as after any longer time without a change."""
START, OVER, END = 20, 55, 145
"""Minutes at which an incident begins and ends, and after which all is resolved and told."""
DAY = 8 * 60
EVALUATED = "2m"
"""Half of promtool's time; an alert comes one such step later at most."""
Alert = tuple[tuple[str, str], ...]
"""Its labels."""
Alerts = frozenset[Alert]
Notes = dict[str, list[tuple[str, str]]]
"""By cluster: status and name of each notification's alerts."""

HEALTHY = Gpu()
NEIGHBOURS = 24
PLAIN = Gpu(
    target={"cluster": "dying disk"},
    feeders=False,
    sm=None,
    occupancy=None,
    dram=None,
    pipes=None,
    pcie_bytes=None,
    nvlink_bytes=None,
    clock=None,
    throttle=None,
)
"""With few series, as promtool takes its time for each."""
SLOW = {"busy": 0.25, "sm": 0.2, "dram": 0.1}
DISK = {**SLOW, "stalls": {"storage": 0.75}, "disk_busy": 0.9}
HOT = {"throttle": {"sw_thermal": 0.3}, "clock": 0.8}
SAVING = {"busy": 0.7, "stalls": {"storage": 0.3}, "main_written_bytes": 4e8}
STUCK = {"stalls": {"peer": 0.0}, "main_cpu": 0.0, "worker_cpu": 0.0, "worker_read_bytes": 0.0}
HANGING = {
    "busy": 1.0,
    "sm": 0.2,
    "dram": 0.01,
    "memory_controller": 0.01,
    "pipes": {"tensor": 0.0, "fp32": 0.0},
    "power_watts": 140.0,
    "pcie_bytes": 0.0,
    "nvlink_bytes": 0.0,
    "network_bytes": 0.0,
    **STUCK,
}
CULPRIT = {**HANGING, "busy": 0.0, "sm": 0.0, "power_watts": 80.0, "stalls": {"peer": 1.0}}


def during(changed: Mapping[str, object], job: int, cluster: str, **always: object) -> Gpu:
    """A healthy GPU of a Slurm job that has these fields from START until OVER."""

    def phased(before: object, then: object) -> object:
        if isinstance(then, Mapping):
            old = before if isinstance(before, Mapping) else {}
            return {key: phased(old.get(key, 0.0), value) for key, value in then.items()}
        return [(START, before), (OVER - START, then), (END, before)]

    fields = {name: phased(getattr(HEALTHY, name), then) for name, then in changed.items()}
    owner = {"slurm_job_id": f"{job}", "user": "ada"}
    return replace(HEALTHY, owner=owner, target={"cluster": cluster}, **fields, **always)  # type: ignore[arg-type]


def in_turns(first: float, second: float) -> Phases:
    """The one and the other for half an hour each, for all of a working day."""
    return [(30, first), (30, second)] * (DAY // 60)


def incidents() -> Fleet:
    """One situation in each cluster."""
    fleet = Fleet(END, evaluation_interval=EVALUATED)
    for at in range(8):
        add_gpu(fleet, "dying", during(DISK, at, "dying disk"), at)
        hot = HOT if at < 4 else {}
        add_gpu(fleet, f"rack-{at}", during(hot, at // 2, "hot rack"))
        saving = SAVING if at < 6 else {}
        add_gpu(fleet, f"nfs-{at}", during(saving, at, "slow NFS at checkpoints"))
        hanging = CULPRIT if at == 5 else HANGING
        add_gpu(fleet, "hang", during(hanging, 1, "hang of eight"), at)
    # One node of a fleet: its disk is not all storage.
    for at in range(NEIGHBOURS):
        add_gpu(fleet, "neighbour", replace(PLAIN, owner={"slurm_job_id": f"{at}"}), at)
    return fleet


def working_day() -> Fleet:
    """Work in phases."""
    fleet = Fleet(DAY, evaluation_interval=EVALUATED)
    busy, idle = in_turns(0.98, 0.2), in_turns(0.02, 0.8)
    gpu = Gpu(busy=busy, stalls={"host_code": idle}, target={"cluster": "phases of 30 minutes"})
    add_gpu(fleet, "phases", replace(gpu, owner={"slurm_job_id": "1", "user": "ada"}))
    return fleet


def firing(fleet: Fleet, folder: Path) -> Iterator[tuple[int, Alerts]]:
    """What fires after each minute.

    promtool evaluates the pack as Prometheus does, `for` and `keep_firing_for` included. It says
    what fires where that is not what was expected: here, that nothing does.
    """
    for minute in range(1, fleet.minutes + 1):
        fleet.expect(minute, 'ALERTS{alertstate="firing",alertname!="GpuCausesBlind"}', {})
    done = fleet.run(folder)
    answers = r"time: (\S+),\n\s*exp: nil\n\s*got: (.*)"
    told = re.findall(answers, done.stderr)
    assert told, done.stdout + done.stderr
    found = {round(seconds(at) / 60): _alerts(answer) for at, answer in told}
    return ((minute, found.get(minute, frozenset())) for minute in range(fleet.minutes + 1))


def _alerts(answer: str) -> Alerts:
    """The label sets of promtool's answer."""
    series = (re.findall(r'(\w+)="([^"]*)"', one) for one in re.findall(r"{(.*?)} 1E\+00", answer))
    return frozenset(
        tuple(pair for pair in pairs if pair[0] not in {"__name__", "alertstate"})
        for pairs in series
    )


def notified(home: Path) -> Notes:
    """What was sent of each cluster, in the order in which it came."""
    timeline: dict[int, set[Alert]] = {}
    for fleet in (incidents(), working_day()):
        for minute, alerts in firing(fleet, home):
            timeline.setdefault(minute, set()).update(alerts)
    with alertmanager_running(home, MINUTE / 60) as server:
        _replay(timeline, server)
        time.sleep(QUIET_MINUTES * MINUTE)
        found: Notes = defaultdict(list)
        for _, note in server.received.notes:
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


def test_an_incident_is_told_once_and_its_end_once(tmp_path: Path) -> None:
    """And work in phases opens two tickets a day at most."""
    notes = notified(tmp_path)
    phases = notes.pop("phases of 30 minutes")
    once = {s: [("firing", name), ("resolved", name)] for s, name in SITUATIONS.items()}
    assert notes == once
    assert 1 <= [status for status, _ in phases].count("firing") <= 2, phases
