"""Each situation, held for hours: only GPUs of forgotten jobs can ever be given back.

Also the waits of the real processes of tests/scenarios and tests/stacks, as measured there.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rules.cases import Row, gpu_of, jobs, node_of, rows, table
from rules.fleet import ASIDE, ENGINE_RATES, RULES, Fleet, Gpu, add_gpu, changed, group_names, job
from rules.fleet import FILES as PACK
from rules.series import Signal, level

AFTER_SECONDS = 2400
"""Instead of each reason's hours: less is stricter with all that must never be named."""
MINUTES = 200
"""The last change is in minute 90; a start takes an hour, a checkpoint counts for half of one."""
LAST = 60
"""The last minutes, in which a forgotten job does nothing."""
FILES = (*PACK[:2], PACK[3], RULES / "reclaim.yml")
NOT_ASKED = (*ASIDE, "gpu-lost-hour", "gpu-fleet", "serving-week", "gpu-reclaimable-alerts")
FORGETS = "unallocated", "asleep", "requests"
"""What a forgotten job waits for."""
JOBS = ("imbalance", "straggler", "communication", "hang")
SECTIONS = (
    *(("telemetry", "faults"), ("clocks", "temperatures", "links"), ("starts", "exempt", "stops")),
    *(("holders", "servers"), ("engines",), ("hours", "failing", "starving", "on_the_gpu")),
    *(("apart",), ("measured", "lost"), JOBS[:1], JOBS[1:2], JOBS[2:], ("one_gpu",)),
    *(("pairs", "gates"), ("states",)),
)
"""Those that run together; others stage queries."""
FOUND = 'count by (instance, reason) (gpu:reclaimable:info{instance!=""})'
CAUSES = """count by (instance, cause) (
    gpu:bottleneck:primary and on (cause) helper:reclaim:seconds
    or on (instance) gpu:cause:likely{cause="memory_not_released"})"""
SUITES = Path(__file__).parents[1]
Staged = Mapping[str, Sequence[Row]]


def held(staged: Staged, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """By GPU at the end: why it can be given back, and its cause if it is one of those."""
    files = (_thresholds(folder), *FILES[1:])
    fleet = Fleet(MINUTES, files, group_names(*FILES), "4m", without=NOT_ASKED)
    for name, ranks in staged.items():
        for rank, row in enumerate(ranks):
            node = _node(name, rank)
            gpu = row.gpu
            if not (gpu.owner or gpu.owners or gpu.engine or gpu.processes == 0):
                gpu = changed(gpu, owner=job(node_of(name)))
            add_gpu(fleet, node, gpu)
            fleet.fail_scrapes(node, *(row.unscraped or (0, 0)))
            fleet.fail_scrapes(node, 0, row.unknown_until, up=None)
    for query in (FOUND, CAUSES):
        fleet.expect(MINUTES - 4, query, {'{instance="nothing"}': 1.0})  # prints the real answer
    (_, found), (_, causes) = fleet.unexpected(folder)
    return (
        {labels["instance"]: labels["reason"] for labels, _ in found},
        {labels["instance"]: labels["cause"] for labels, _ in causes},
    )


def _thresholds(folder: Path) -> Path:
    text = PACK[0].read_text(encoding="utf-8")
    hours = re.compile(r"(record: gpu:threshold:reclaim_\w+_seconds\n +expr: )vector\(\d+\)")
    copy = folder / PACK[0].name
    copy.write_text(hours.sub(rf"\1vector({AFTER_SECONDS})", text))
    return copy


def _node(name: str, rank: int) -> str:
    return f"{node_of(name)}-{rank}"


def is_forgotten(gpu: Gpu) -> bool:
    """Whether it does nothing at the end, and waits for nothing, as far as all of it is seen."""
    age = gpu.age_seconds
    return (
        max(_last(gpu.busy)) < 0.001
        and (not gpu.stalls or sum(min(_last(gpu.stalls.get(on, 0))) for on in FORGETS) > 0.9)
        and (age is None or min(_last(age)) > 3600)
        and not any(max(_last(rate)) for of, rate in gpu.engine.items() if of in ENGINE_RATES)
        and gpu.feeders
        and not moves_data(gpu)
        and not re.fullmatch(gpu.missing, "gpu_stall_seconds_total")
        and gpu.exempt is None
    )


def moves_data(gpu: Gpu) -> bool:
    """Whether it reads, writes, or sends and receives, 100 kB/s at the end."""
    files = (gpu.main_read_bytes, gpu.worker_read_bytes, gpu.main_written_bytes)
    network = 0 if gpu.network_shared else 2 * max(_last(gpu.network_bytes))
    rates = (network, max(_last(gpu.socket_bytes or 0)), sum(max(_last(rate)) for rate in files))
    return max(rates) >= 1e5 and not re.fullmatch(gpu.missing, "gpu_feeder_read_bytes_total")


def _last(signal: Signal) -> list[float]:
    values = level(MINUTES, signal)[-LAST:]
    return [value for value in values if value is not None and not math.isnan(value)] or [0.0]


@pytest.mark.parametrize("sections", SECTIONS, ids=" ".join)
def test_only_forgotten_jobs_can_be_given_back(sections: Sequence[str], tmp_path: Path) -> None:
    staged: dict[str, Sequence[Row]] = {}
    for section in sections:
        single = {} if section in JOBS else table(section)
        staged |= (
            jobs(section) if section in JOBS else {name: [row] for name, row in single.items()}
        )
    found, causes = held(staged, tmp_path)
    wanted = {
        _node(name, rank)
        for name, ranks in staged.items()
        for rank, row in enumerate(ranks)
        if all(is_forgotten(row.gpu) for row in ranks)
        and (cause := causes.get(_node(name, rank)))
        and not (cause == "memory_not_released" and row.gpu.owner)
    }
    assert found.keys() == wanted


# --- Real processes ------------------------------------------------------------------------------
SHARE = re.compile(r"(\w+) (\d+)%")


@pytest.mark.parametrize("suite", ["scenarios", "stacks"])
def test_real_waits_are_never_taken_for_neglect(suite: str, tmp_path: Path) -> None:
    """Each measured GPU waits without end, or works. Its construction says if it is forgotten.

    One that was measured wrongly, ✗, may be missed.
    """
    staged: dict[str, Sequence[Row]] = {}
    forgotten: set[str] = set()
    wrong: set[str] = set()
    with open(SUITES / suite / "measured.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name = f"{row.get('family', suite)}: {row['case']}"
            stalls = {on: int(percent) / 100 for on, percent in SHARE.findall(row["found"])}
            does = {"stalls": stalls} if stalls else {"busy": 1}
            staged[name] = [Row(gpu_of({**rows("bases")["idle"], **does}))]
            if {*re.split(" or |; ", row["waits for"])} <= {*FORGETS}:
                (wrong if "✗" in name else forgotten).add(_node(name, 0))
    found, _ = held(staged, tmp_path)
    assert forgotten <= found.keys() <= forgotten | wrong
