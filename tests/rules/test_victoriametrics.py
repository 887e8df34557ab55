"""The pack on VictoriaMetrics: vmalert replays hours, and its alerts are those of Prometheus.

Debian's vmalert does not know `keep_firing_for`, and a replay looks nothing up for descriptions, so
it gets the pack without these. Rules are evaluated every two minutes.
"""

from __future__ import annotations

import http.client
import json
import math
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.rulepack import Changes, adapted
from rules.cases import alerts
from rules.firing import ALERTS, stage
from rules.fleet import FILES, RULES, Fleet, fired
from rules.parsed import Rule, rules
from support.daemon import HOST, get, post
from support.prometheus import Prometheus
from support.tools import require
from support.victoriametrics import PACKAGE, victoria_metrics
from support.waiting import PATIENCE_SECONDS

START = datetime(2024, 6, 3, tzinfo=timezone.utc)
LATE_MINUTES = 10
"""In which an alert fires: rate() of Prometheus extrapolates from the samples within its window,
that of VictoriaMetrics begins with the last one before it, so that a value that comes near a
threshold passes it one evaluation apart. Without `keep_firing_for` it may end meanwhile."""
TOLD = {name: case for name, case in ALERTS.items() if case.lasts >= LATE_MINUTES}
MINUTES = max(case.after for case in TOLD.values()) + LATE_MINUTES + 2


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """The files, as both engines get them."""
    folder = tmp_path_factory.mktemp("rules")
    texts = {file.name: file.read_text() for file in FILES}
    changes = Changes(without_keep_firing=True, without_prescriptions=True)
    for name, text in adapted(texts, changes).items():
        (folder / name).write_text(text)
    return [folder / file.name for file in FILES]


def test_vmalert_loads_the_pack(pack: Sequence[Path]) -> None:
    texts = {name: (RULES / name).read_text() for name in ("alerts.yml", "budgets.yml")}
    changes = Changes(without_keep_firing=True, budgets={"vision": 400})
    with_lookups = [pack[0].with_name(f"with-lookups-{name}") for name in texts]
    for file, text in zip(with_lookups, adapted(texts, changes).values(), strict=True):
        file.write_text(text)
    others = (RULES / name for name in ("dcgm.yml", "owners.yml", "jobstats.yml", "opencost.yml"))
    _vmalert("-dryRun", *(f"-rule={file}" for file in (*pack, *with_lookups, *others)))


@pytest.mark.timeout(1800)  # a minute alone, seven at a load of 30
def test_the_same_alerts_fire_on_it(pack: Sequence[Path], tmp_path: Path) -> None:
    """As test_every_alert has them on Prometheus, and no others."""
    fleet = Fleet(MINUTES)
    expected: dict[str, set[tuple[str, str]]] = {}
    now: dict[str, set[tuple[str, str]]] = {}
    lately: dict[str, set[tuple[str, str]]] = {}
    for name, case in TOLD.items():
        node, guilty = stage(fleet, name, case)
        expected[node] = {(alerts()[name].name, f"{at}") for at in guilty}
    # A replay writes no markers where a recorded series ends: it has, if a minute has none. A
    # query may take longer than half a minute on a busy machine.
    flags = [
        *("-retentionPeriod=100y", "-search.maxStalenessInterval=1m"),
        f"-search.maxQueryDuration={PATIENCE_SECONDS:.0f}s",
    ]
    with victoria_metrics(tmp_path, *flags) as server:
        status, body = post(server.port, "/api/v1/import", "\n".join(_json_lines(fleet)))
        assert status == http.client.NO_CONTENT, body
        _flush(server)
        for number, rules_of_stage in enumerate(_stages(pack)):
            # It evaluates one rule for all of the time, then the next.
            file = tmp_path / f"stage{number}.yml"
            made = [dict(rule.fields) for rule in rules_of_stage]
            group = {"name": file.stem, "interval": "2m", "rules": made}
            file.write_text(json.dumps({"groups": [group]}))  # JSON is YAML
            _replay(server, file)
        for name, case in TOLD.items():
            node, at = name.replace("/", "-"), START + timedelta(minutes=case.after + LATE_MINUTES)
            here = fired(node)
            for told, query in ((now, here), (lately, f"max_over_time({here}[{LATE_MINUTES}m])")):
                firing = server.query(query, at.timestamp())
                told[node] = {(of["alertname"], of.get("gpu", "")) for of, _ in firing}
    assert {node: told for node, told in now.items() if not told <= expected[node]} == {}
    assert {node: told for node, told in lately.items() if not told >= expected[node]} == {}


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


def _after_what_they_read(every: Sequence[Rule]) -> Iterator[Rule]:
    """Rules in their order, but after those of other files that they read.

    Prometheus evaluates all files each minute, so that two files may read each other.
    """
    at: defaultdict[str, list[int]] = defaultdict(list)
    for index, rule in enumerate(every):
        at["ALERTS" if rule.is_alert else rule.name].append(index)
    placed: set[int] = set()

    def place(index: int) -> Iterator[Rule]:
        if index in placed:
            return
        placed.add(index)
        rule = every[index]
        for name in sorted(rule.reads):
            for other in at[name]:
                if other < index or every[other].file != rule.file:
                    yield from place(other)
        yield rule

    for index in range(len(every)):
        yield from place(index)


def _stages(pack: Sequence[Path]) -> Iterator[list[Rule]]:
    """The rules in their order, cut where one reads what has been recorded since the last cut."""
    stage: list[Rule] = []
    for rule in _after_what_they_read(rules({file.name: file.read_text() for file in pack})):
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


def _vmalert(*arguments: str) -> None:
    command = [require("vmalert", PACKAGE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
