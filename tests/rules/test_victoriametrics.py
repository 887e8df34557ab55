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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.rulepack import without_keep_firing, without_prescriptions
from rules.cases import table
from rules.firing import ALERTS, stage
from rules.fleet import FILES, RULES, Fleet, add_gpu, group_names
from rules.parsed import Rule, rules
from support.daemon import HOST, get, post
from support.prometheus import Prometheus
from support.tools import require
from support.victoriametrics import PACKAGE, victoria_metrics
from support.waiting import PATIENCE_SECONDS

START = datetime(2024, 6, 3, tzinfo=timezone.utc)
ENDS = (59, 119)
"""Minutes of two hours, between evaluations: whether an hour has both ends is a matter of taste."""
MINUTES = 120
EDGE = 2
"""By so many evaluations one of the engines may fire longer within an hour: one where an alert
begins and one where it ends. rate() of Prometheus extrapolates from the samples within its window,
that of VictoriaMetrics begins with the last one before it, so that a value that comes near a
threshold passes it one evaluation apart."""
FIRING = 'count_over_time(ALERTS{alertstate="firing"}[1h])'
IDENTITY = ("alertname", "severity", "instance", "gpu", "blind")
Fired = Mapping[tuple[object, ...], int]
"""For how many evaluations each alert fired, by hour and IDENTITY."""


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
    _vmalert("-dryRun", *(f"-rule={file}" for file in files))


@pytest.mark.timeout(1800)  # a minute alone, seven at a load of 30
def test_the_same_alerts_fire_on_both(pack: Sequence[Path], tmp_path: Path) -> None:
    fleet = Fleet(MINUTES, evaluation_interval="2m")
    for name, case in ALERTS.items():
        stage(fleet, name, case)
    # Exporters and GPUs that come and go.
    for node, row in table("telemetry", "failing").items():
        add_gpu(fleet, node, row.gpu)
        if row.unscraped:
            fleet.fail_scrapes(node, *row.unscraped)
    there = _on_victoria_metrics(fleet, pack, tmp_path)
    here = _on_prometheus(fleet, pack, tmp_path)
    differ = {
        key: (here.get(key, 0), there.get(key, 0))
        for key in here.keys() | there.keys()
        if abs(here.get(key, 0) - there.get(key, 0)) > EDGE
    }
    assert differ == {}
    assert len({key[1:3] for key, count in here.items() if count > EDGE}) >= len(ALERTS)


def _on_victoria_metrics(fleet: Fleet, pack: Sequence[Path], folder: Path) -> Fired:
    """A replay evaluates one rule for all of the time, then the next: stage by stage."""
    # A replay writes no markers where a recorded series ends: it has, if a minute has none. A
    # query may take longer than half a minute on a busy machine.
    flags = [
        *("-retentionPeriod=100y", "-search.maxStalenessInterval=1m"),
        f"-search.maxQueryDuration={PATIENCE_SECONDS:.0f}s",
    ]
    with victoria_metrics(folder, *flags) as server:
        status, body = post(server.port, "/api/v1/import", "\n".join(_json_lines(fleet)))
        assert status == http.client.NO_CONTENT, body
        _flush(server)
        for number, stage in enumerate(_stages(pack)):
            file = folder / f"stage{number}.yml"
            made = [dict(rule.fields) for rule in stage]
            group = {"name": file.stem, "interval": "2m", "rules": made}
            file.write_text(json.dumps({"groups": [group]}))  # JSON is YAML
            _replay(server, file)
        return _fired(
            (end, server.query(FIRING, (START + timedelta(minutes=end)).timestamp()))
            for end in ENDS
        )


def _json_lines(fleet: Fleet) -> Iterator[str]:
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


def _replay(server: Prometheus, file: Path) -> None:
    url = f"http://{HOST}:{server.port}"
    _vmalert(
        *(f"-rule={file}", f"-datasource.url={url}", f"-remoteWrite.url={url}"),
        f"-replay.timeFrom={START:%Y-%m-%dT%H:%M:%SZ}",
        f"-replay.timeTo={START + timedelta(minutes=MINUTES):%Y-%m-%dT%H:%M:%SZ}",
        # No rule of a stage waits for another one.
        *("-replay.rulesDelay=0s", "-replay.maxDatapointsPerQuery=10000"),
        # By default 5 minutes, whatever the interval of the rules.
        *("-datasource.queryStep=2m", "-disableAlertgroupLabel", "-replay.disableProgressBar"),
        *(f"-httpListenAddr={HOST}:0", "-loggerLevel=WARN"),
    )
    _flush(server)


def _flush(server: Prometheus) -> None:
    """Make what has been written visible."""
    assert get(server.port, "/internal/force_flush")[0] == http.client.OK


def _on_prometheus(fleet: Fleet, pack: Sequence[Path], folder: Path) -> Fired:
    """promtool says what a query gives only where it gives something else than expected."""
    fleet.files = pack
    # Groups that are not named are evaluated first, alerts then one evaluation late.
    fleet.groups = group_names(*pack)
    for end in ENDS:
        fleet.expect(end, FIRING, {'{what="else"}': 1.0})
    answers = fleet.unexpected(folder)
    assert len(answers) == len(ENDS), answers
    return _fired((end, samples) for end, (_, samples) in zip(ENDS, answers, strict=True))


def _fired(found: Iterable[tuple[int, Iterable[tuple[Mapping[str, str], float]]]]) -> Fired:
    fired = Counter[tuple[object, ...]]()
    for end, samples in found:
        for labels, count in samples:
            # Its other labels may change within an hour.
            fired[(end, *(labels.get(name, "") for name in IDENTITY))] += int(count)
    return fired


def _vmalert(*arguments: str) -> None:
    command = [require("vmalert", PACKAGE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
