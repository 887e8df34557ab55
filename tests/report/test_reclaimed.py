"""`report --reclaimable` against a real Prometheus, of jobs whose ends are known."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import run
from support.prometheus import Prometheus, on_data, write_past

END = int(time.time()) // 600 * 600 - 3600
IDLE, STALLED = "allocated_idle", "job_stalled"
JOBS = (
    # job, workload, owner, reason, GPUs, minutes, busy GPUs, minutes of work
    ("slurm-1", "Slurm job 1", "ada", IDLE, 8, 150, 0, 0),
    ("slurm-2", "Slurm job 2", "bob", IDLE, 2, 90, 1.5, 60),
    ("nlp/train", "pod nlp/train-0", "nlp", STALLED, 1, 30, 0, 0),
    ("nlp/train", "pod nlp/train-1", "nlp", STALLED, 1, 30, 0, 0),
)
"""Each from when it could be given back to its end."""
FOUND = [
    ("Slurm job 1", "ada", IDLE, 20.0, 0.0),
    ("Slurm job 2", "bob", IDLE, 3.0, 1.5),
    ("nlp/train", "nlp", STALLED, 1.0, 0.0),
]
RULES_MINUTES = 300


def series(name: str, labels: dict[str, str], value: float, minutes: int) -> Iterator[str]:
    """A constant series of the last minutes."""
    of = ",".join(f"{label}={json.dumps(text)}" for label, text in labels.items())
    for minute in reversed(range(minutes)):
        yield f"{name}{{{of}}} {value} {END - 60 * minute}\n"


def past() -> Iterator[str]:
    yield from series("gpu:threshold:reclaim_used", {}, 0.001, RULES_MINUTES)
    for group, workload, owner, reason, gpus, minutes, busy, working in JOBS:
        labels = {"workload_group": group, "workload": workload, "workload_owner": owner}
        yield from series("workload:reclaimed:gpus", labels | {"reason": reason}, gpus, minutes)
        busy_labels = labels | {"reason": reason}
        yield from series("workload:reclaimed:busy_gpus", busy_labels, busy, working)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    write_past(folder, past())
    with on_data(folder, {}) as found:
        yield found


def report(folder: Path, server: Prometheus, *more: str) -> subprocess.CompletedProcess[str]:
    url = f"127.0.0.1:{server.port}"
    return run(folder, "report", "--prometheus", url, "--reclaimable", *more)


def test_false_reclaims_are_jobs_that_went_on_to_work(tmp_path: Path, server: Prometheus) -> None:
    done = report(tmp_path, server, "--since", "7d", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    jobs = [tuple(job.values()) for job in found.pop("jobs")]
    assert jobs == [(*job[:3], *map(pytest.approx, job[3:])) for job in FOUND]
    totals = {"job_count": 3, "false_count": 1, "gpu_hours": pytest.approx(24.0)}
    assert found == {"version": 1, "recorded_hours": RULES_MINUTES / 60, **totals}


def test_it_is_told_in_words(tmp_path: Path, server: Prometheus) -> None:
    done = report(tmp_path, server, "--since", "7d", "--limit", "2")
    assert done.stdout.splitlines() == [
        "3 jobs would have been ended, 24 GPU-hours; known of 5 of 168 hours",
        "False reclaims: 1 (33 %) went on to work, 1.5 GPU-hours",
        "Job          Owner  Reason          GPU-hours  Worked later",
        "Slurm job 1  ada    allocated_idle  20         0",
        "Slurm job 2  bob    allocated_idle  3          1.5",
    ]


def test_without_these_rules_nothing_is_known(tmp_path: Path, server: Prometheus) -> None:
    """Rather than no job: the last minute has no evaluation."""
    done = report(tmp_path, server, "--since", "1m")
    assert done.returncode == 1
    assert "has recorded no gpu:threshold:reclaim_used" in done.stderr


@pytest.mark.parametrize("wrong", ["--owner ada", "--format html", "--cost-per-gpu-hour 2"])
def test_options_of_other_reports_are_refused(
    tmp_path: Path, server: Prometheus, wrong: str
) -> None:
    done = report(tmp_path, server, *wrong.split())
    assert done.returncode == 2
    assert "--reclaimable needs --prometheus, and takes" in done.stderr
