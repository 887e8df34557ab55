"""The pack on VictoriaMetrics: vmalert replays hours, and its alerts are those of Prometheus.

Debian's vmalert does not know `keep_firing_for`, and a replay looks nothing up for descriptions, so
both engines get the pack without these. Both evaluate every two minutes, as half a minute takes
promtool four times as long.
"""

from __future__ import annotations

import http.client
import json
import math
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.rulepack import without_keep_firing, without_prescriptions
from rules.cases import table
from rules.fleet import FILES, RULES, Fleet, add_gpu, group_names
from rules.parsed import Rule, rules
from rules.test_every_alert import ALERTS, stage
from support.daemon import HOST, get, post
from support.prometheus import Prometheus
from support.tools import require
from support.victoriametrics import PACKAGE, victoria_metrics
from support.waiting import PATIENCE_SECONDS

INTERVAL = timedelta(minutes=2)
START = datetime(2024, 6, 3, tzinfo=timezone.utc)
HOURS = range(1, 3)
MINUTES = 60 * len(HOURS)
EDGE = timedelta(minutes=4)
"""By so much one of the engines may fire longer within an hour: one evaluation where an alert
begins and one where it ends. rate() of Prometheus extrapolates from the samples within its window,
that of VictoriaMetrics begins with the last one before it, so that a value that comes near a
threshold passes it one evaluation apart."""
FIRING = 'count_over_time(ALERTS{alertstate="firing"}[1h])'
IDENTITY = ("alertname", "severity", "instance", "gpu", "blind")

Alert = tuple[str, ...]
"""The labels of IDENTITY."""
Fired = Mapping[tuple[Alert, int], timedelta]
"""For how long each alert fired, by hour."""


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """The files, as both engines get them."""
    folder = tmp_path_factory.mktemp("rules")
    for file in FILES:
        text = without_prescriptions(without_keep_firing(file.read_text()))
        (folder / file.name).write_text(text)
    return [folder / file.name for file in FILES]


def test_vmalert_loads_the_pack(pack: Sequence[Path]) -> None:
    lookups = pack[0].with_name("lookups.yml")
    lookups.write_text(without_keep_firing((RULES / "alerts.yml").read_text()))
    files = [*pack, lookups, RULES / "dcgm.yml"]
    done = _vmalert("-dryRun", *(f"-rule={file}" for file in files))
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(1800)  # a minute alone, seven at a load of 30
def test_the_same_alerts_fire_on_both(pack: Sequence[Path], tmp_path: Path) -> None:
    fleet = Fleet(MINUTES, evaluation_interval=_duration(INTERVAL))
    for name, case in ALERTS.items():
        stage(fleet, name, case)
    # Exporters and GPUs that come and go.
    for node, row in table("telemetry", "failing").items():
        add_gpu(fleet, node, row.gpu)
        if row.unscraped:
            fleet.fail_scrapes(node, *row.unscraped)
    there = _on_victoria_metrics(fleet, pack, tmp_path)
    here = _on_prometheus(fleet, pack, tmp_path)
    none = timedelta()
    differ = {
        key: (here.get(key, none), there.get(key, none))
        for key in here.keys() | there.keys()
        if abs(here.get(key, none) - there.get(key, none)) > EDGE
    }
    assert differ == {}
    assert len({alert[:2] for (alert, _), time in here.items() if time > EDGE}) >= len(ALERTS)


def _on_victoria_metrics(fleet: Fleet, pack: Sequence[Path], folder: Path) -> Fired:
    """A replay evaluates one rule for all of the time, then the next: stage by stage."""
    # A replay writes no markers where a recorded series ends: it has, if a minute has none. A
    # query may take longer than half a minute on a busy machine.
    flags = [
        *("-retentionPeriod=100y", "-search.maxStalenessInterval=1m"),
        f"-search.maxQueryDuration={PATIENCE_SECONDS:.0f}s",
    ]
    with victoria_metrics(folder, *flags) as server:
        _post(server, "\n".join(json_lines(fleet)))
        for number, stage in enumerate(_stages(pack)):
            file = folder / f"stage{number}.yml"
            group = {
                "name": file.stem,
                "interval": _duration(INTERVAL),
                "rules": [dict(rule.fields) for rule in stage],
            }
            file.write_text(json.dumps({"groups": [group]}))  # JSON is YAML
            _replay(server, file)
        return _fired(
            (hour, labels, count)
            for hour in HOURS
            for labels, count in server.query(FIRING, (START + _end(hour)).timestamp())
        )


def json_lines(fleet: Fleet) -> Iterator[str]:
    """The samples as VictoriaMetrics imports them."""
    for one in fleet._series:
        there = {
            round((START.timestamp() + 60 * minute) * 1000): value
            for minute, value in enumerate(one.values)
            if value is not None and not math.isnan(value)
        }
        if there:
            metric = {"__name__": one.name, **one.labels}
            samples = {"values": [*there.values()], "timestamps": [*there]}
            yield json.dumps({"metric": metric, **samples})


def _stages(pack: Sequence[Path]) -> Iterator[list[Rule]]:
    """The rules in their order, cut where one reads what has been recorded since the last cut."""
    stage: list[Rule] = []
    for rule in rules({file.name: file.read_text() for file in pack}):
        if any(("ALERTS" if done.is_alert else done.name) in rule.reads for done in stage):
            yield stage
            stage = []
        stage.append(rule)
    yield stage


def _post(server: Prometheus, lines: str) -> None:
    status, body = post(server.port, "/api/v1/import", lines)
    assert status == http.client.NO_CONTENT, body
    _flush(server)


def _replay(server: Prometheus, file: Path) -> None:
    url = f"http://{HOST}:{server.port}"
    done = _vmalert(
        f"-rule={file}",
        f"-datasource.url={url}",
        f"-remoteWrite.url={url}",
        f"-replay.timeFrom={START:%Y-%m-%dT%H:%M:%SZ}",
        f"-replay.timeTo={START + timedelta(minutes=MINUTES):%Y-%m-%dT%H:%M:%SZ}",
        # No rule of a stage waits for another one.
        "-replay.rulesDelay=0s",
        "-replay.maxDatapointsPerQuery=10000",
        "-replay.disableProgressBar",
        # By default 5 minutes, whatever the interval of the rules.
        f"-datasource.queryStep={_duration(INTERVAL)}",
        "-disableAlertgroupLabel",
        f"-httpListenAddr={HOST}:0",
        "-loggerLevel=WARN",
    )
    assert done.returncode == 0, done.stderr
    _flush(server)


def _flush(server: Prometheus) -> None:
    """Make what has been written visible."""
    assert get(server.port, "/internal/force_flush")[0] == http.client.OK


def _on_prometheus(fleet: Fleet, pack: Sequence[Path], folder: Path) -> Fired:
    """promtool says what a query gives only where it gives something else than expected."""
    fleet.files = pack
    # Groups that are not named are evaluated first, alerts then one evaluation late.
    fleet.groups = group_names(*pack)
    for hour in HOURS:
        fleet.expect(_end(hour) / timedelta(minutes=1), FIRING, {'{what="else"}': 1.0})
    answers = fleet.unexpected(folder)
    assert len(answers) == len(HOURS), answers
    return _fired(
        (hour, labels, count)
        for hour, (_, samples) in zip(HOURS, answers, strict=True)
        for labels, count in samples
    )


def _fired(found: Iterable[tuple[int, Mapping[str, str], float]]) -> Fired:
    fired: dict[tuple[Alert, int], timedelta] = defaultdict(timedelta)
    for hour, labels, count in found:
        alert = tuple(labels.get(name, "") for name in IDENTITY)
        # Its other labels may change within an hour.
        fired[alert, hour] += count * INTERVAL
    return dict(fired)


def _end(hour: int) -> timedelta:
    """Between two evaluations: whether an hour has both of its ends is a matter of taste."""
    return timedelta(hours=hour) - INTERVAL / 2


def _duration(time: timedelta) -> str:
    return f"{round(time.total_seconds())}s"


def _vmalert(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [require("vmalert", PACKAGE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
