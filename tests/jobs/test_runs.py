"""Runs of a Slurm job: a requeued one keeps its number, and each run has a record of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpu_bottleneck_exporter.jobs.ledger import Ledger
from gpu_bottleneck_exporter.jobs.runs import is_later, run_of
from gpu_bottleneck_exporter.jobs.store import Row
from jobs.held import at_work, jobs, keeping, process
from support import leftovers
from support.trees import cgroup_v2, lay
from support.waiting import until

NUMBER = {"SLURM_JOB_ID": "7"}
EARLIER = re.compile(r"slurm-7\.[0-9]{13}")
FREEZER = Path("/sys/fs/cgroup/freezer")


def again(count: int) -> dict[str, str]:
    """The environment of a run after this number of restarts."""
    return {**NUMBER, "SLURM_RESTART_COUNT": f"{count}"}


def run(ledger: Ledger, variables: dict[str, str], seconds: float = 0.1) -> None:
    """A process that holds the GPU and ends."""
    with process(variables) as child:
        at_work(ledger, child, seconds)
    until(lambda: all(job["end_seconds"] for job in jobs(ledger)), "its end")


def ids(ledger: Ledger) -> list[str]:
    """The ids of all jobs without a claimant, those of earlier runs as `earlier`."""
    names = [job["id"].removesuffix("-root") for job in jobs(ledger)]
    return sorted("earlier" if EARLIER.fullmatch(name) else name for name in names)


def last(ledger: Ledger) -> dict[str, Any]:
    document = ledger.document("slurm-7")
    assert document
    fields: dict[str, Any] = json.loads(document)["job"]
    return fields


def test_a_run_after_a_requeue_is_another_record(tmp_path: Path) -> None:
    with keeping(jobs_state_file=f"{tmp_path / 'jobs'}") as ledger:
        run(ledger, NUMBER, 0.8)
        run(ledger, again(1), 0.1)
        run(ledger, again(1), 0.1)
        assert ids(ledger) == ["earlier", "slurm-7"]
        run(ledger, again(2), 0.1)
        assert ids(ledger) == ["earlier", "earlier", "slurm-7"]
        first, second, third = sorted(jobs(ledger), key=lambda job: job["start_seconds"])
        assert third["id"] == last(ledger)["id"]
        assert [item["run"]["restarts"] for item in (first, second, third)] == ["0", "1", "2"]
        assert first["end_seconds"] <= second["start_seconds"]
        assert second["end_seconds"] <= third["start_seconds"]
        assert first["owner"]["slurm_job_id"] == third["owner"]["slurm_job_id"] == "7"
    with keeping(jobs_state_file=f"{tmp_path / 'jobs'}") as ledger:
        assert ids(ledger) == ["earlier", "earlier", "slurm-7"]
        assert ledger.document("slurm-7")


def test_a_run_that_follows_within_a_tick_is_another_record() -> None:
    with keeping() as ledger, process(NUMBER) as one, process(again(1)) as two:
        at_work(ledger, one)
        at_work(ledger, two)  # the end of the first one is not known otherwise
        assert ids(ledger) == ["earlier", "slurm-7"]
        assert last(ledger)["end_seconds"] is None


def test_a_run_after_a_restart_of_the_exporter_is_another_record(tmp_path: Path) -> None:
    file = f"{tmp_path / 'jobs'}"
    with keeping(jobs_state_file=file) as ledger:
        run(ledger, NUMBER)
    with keeping(jobs_state_file=file) as ledger:
        run(ledger, again(1))
        assert ids(ledger) == ["earlier", "slurm-7"]
    with keeping(jobs_state_file=file) as ledger:
        run(ledger, again(1))  # the same run once more
        assert ids(ledger) == ["earlier", "slurm-7"]


def test_both_runs_are_stored_before_the_last_one_ends(tmp_path: Path) -> None:
    file = f"{tmp_path / 'jobs'}"
    with keeping(jobs_state_file=file) as ledger:
        run(ledger, NUMBER)
        with process(again(1)) as child:
            at_work(ledger, child)
            assert ids(ledger) == ["earlier", "slurm-7"]

            def stored() -> list[Row]:
                return ledger._store.read() or []

            until(
                lambda: {*ids(ledger)} == {"earlier", "slurm-7"} and len(stored()) == 2,
                "both in the store",
            )
            until(
                lambda: '"restarts": "1"' in next(r for r in stored() if "." not in r.id).text,
                "the last run under its own id",
            )


@pytest.mark.parametrize(
    "variables",
    [
        NUMBER,
        again(0),
        {**NUMBER, "SLURM_RESTART_COUNT": "-1"},
        {**NUMBER, "SLURM_RESTART_COUNT": "x"},
        {**NUMBER, "SLURM_RESTART_COUNT": ""},
    ],
)
def test_a_pause_is_no_new_run(variables: dict[str, str]) -> None:
    with keeping() as ledger:
        run(ledger, NUMBER)
        run(ledger, variables)
        assert ids(ledger) == ["slurm-7"]


# --- Control groups --------------------------------------------------------------------------


@contextmanager
def job_group(top: Path) -> Iterator[Path]:
    """The group of Slurm job 7, as slurmd creates it."""
    group = top / "slurm/uid_0/job_7"
    (group / "step_0").mkdir(parents=True)
    yield group / "step_0"
    for folder in (group / "step_0", group):

        def removed(folder: Path = folder) -> bool:
            with suppress(OSError):
                folder.rmdir()
            return not folder.exists()

        until(removed, f"the end of {folder}")


@pytest.fixture
def top() -> Iterator[Path]:
    """A control group in which Slurm's are: not where it is taken for the machine's own Slurm."""
    if os.geteuid() != 0 or not (FREEZER / "cgroup.procs").exists():
        pytest.skip("takes root and cgroup v1")
    result = FREEZER / f"runs-{leftovers.mark()}-{os.getpid()}"
    result.mkdir()
    yield result
    for folder in ("slurm/uid_0", "slurm", "."):
        (result / folder).rmdir()


def enter(group: Path, one: subprocess.Popen[bytes]) -> None:
    (group / "cgroup.procs").write_text(f"{one.pid}")


def test_a_group_that_was_created_anew_is_another_run(top: Path) -> None:
    """Containers may hide what Slurm sets: then the group decides."""
    with keeping() as ledger:
        for _ in range(2):
            with job_group(top) as group:
                for _ in range(2):
                    with process() as child:
                        enter(group, child)
                        at_work(ledger, child)
                    until(lambda: all(job["end_seconds"] for job in jobs(ledger)), "its end")
        assert ids(ledger) == ["earlier", "slurm-7"]


@pytest.mark.parametrize("group", ["pbs_jobs.service/jobs/7.s", "lsf/c/job.7.8.9", "lxc/7"])
def test_a_run_of_another_scheduler_is_known_by_its_group(group: str, tmp_path: Path) -> None:
    proc, sysfs = tmp_path / "proc", tmp_path / "sys"
    lay(proc, {"1/cgroup": f"0::/{group}/a/b\n", "sys/kernel/random/boot_id": "boot\n"})
    mount = cgroup_v2(sysfs, {f"{group}/a/b/cgroup.procs": "1\n"})
    assert run_of(proc, sysfs, 1) == {"group": f"{(mount / group).stat().st_ino} boot"}


def test_a_step_after_another_is_the_same_run(top: Path) -> None:
    """The job's group ends with each step on nodes without a batch script."""
    with keeping() as ledger:
        for variables in (NUMBER, NUMBER, again(1)):
            with job_group(top) as group, process(variables) as child:
                enter(group, child)
                at_work(ledger, child)
                (job,) = (job for job in jobs(ledger) if job["end_seconds"] is None)
                assert job["id"] == last(ledger)["id"]
                child.kill()
                child.wait()
            until(lambda: all(job["end_seconds"] for job in jobs(ledger)), "its end")
        assert ids(ledger) == ["earlier", "slurm-7"]


def test_a_lasting_group_is_one_run_for_any_claim_of_the_job(top: Path) -> None:
    with keeping() as ledger, job_group(top) as group:
        for count in range(3):
            with process(again(count)) as child:
                enter(group, child)
                at_work(ledger, child)
            until(lambda: all(job["end_seconds"] for job in jobs(ledger)), "its end")
        assert ids(ledger) == ["slurm-7"]


@pytest.mark.parametrize(
    ("run", "before", "later"),
    [
        ({}, {}, False),
        ({"restarts": "1"}, {}, False),
        ({"group": "2"}, {}, False),
        ({"restarts": "1"}, {"restarts": "0"}, True),
        ({"restarts": "10"}, {"restarts": "9"}, True),
        ({"restarts": "0"}, {"restarts": "1"}, False),
        ({"group": "2"}, {"group": "1"}, True),
        ({"group": "2", "restarts": "0"}, {"group": "1", "restarts": "0"}, False),
        ({"group": "2", "restarts": "0"}, {"group": "1"}, True),
        ({"group": "1", "restarts": "5"}, {"group": "1", "restarts": "0"}, False),
    ],
)
def test_marks_that_separate_runs(run: dict[str, str], before: dict[str, str], later: bool) -> None:  # noqa: FBT001
    assert is_later(run, before) == later
