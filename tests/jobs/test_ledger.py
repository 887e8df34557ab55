"""The ledger with real processes: whose they are, when they end, and what a restart leaves."""

from __future__ import annotations

import json
import os
import subprocess
import time
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from gpu_bottleneck_exporter.accounting.stall import ASLEEP
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.driver.about import UNKNOWN
from gpu_bottleneck_exporter.driver.readings import Identity, Pod, Process, Processes
from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.jobs.ledger import MOST_BYTES, Ledger, name_of
from gpu_bottleneck_exporter.jobs.store import Row, Store
from gpu_bottleneck_exporter.nodeview import wire
from gpu_bottleneck_exporter.sampling.opened import Spent
from gpu_bottleneck_exporter.sampling.sampler import NO_SYSTEM, Sampler, SamplerState
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.stacktraces.model import CodeLine, IdleLines
from gpu_bottleneck_exporter.workload.identity import Owner
from support.waiting import until

GPU = Identity(0, "GPU-1", "H100")
PARTS = Identity(0, "MIG-1", "H100", mig_profile="1g.10gb", parent_uuid="GPU-1")
SECOND = 1_000_000_000


class Looked:
    """A sampler that knows no GPU, and notes which it is asked to look at."""

    def __init__(self) -> None:
        self.uuids: list[str] = []

    def state(self) -> SamplerState:
        return SamplerState(NO_SYSTEM, UNKNOWN, frozenset(), (), (), 0, 0.0, None)

    def look(self, uuids: Collection[str], *, now: bool) -> None:
        if now:
            self.uuids += uuids


@contextmanager
def keeping(sampler: Looked | None = None, **settings: Any) -> Iterator[Ledger]:  # noqa: ANN401
    ledger = Ledger(Settings(**settings))
    ledger.start(cast("Sampler", sampler or Looked()))
    yield ledger
    ledger.stop()


@contextmanager
def process(
    variables: Mapping[str, str] | None = None, user: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    variables = {**os.environ, **(variables or {})}
    command = ["sleep", "600"]
    with subprocess.Popen(command, env=variables, start_new_session=True, user=user) as one:
        # For a moment after it was started, its environment is empty.
        until(Path(f"/proc/{one.pid}/environ").read_bytes, "its environment")
        try:
            yield one
        finally:
            one.kill()


def hold(ledger: Ledger, *pids: int, gpu: Identity = GPU, pod: Pod | None = None) -> None:
    listed = tuple(Process(pid, 2**30) for pid in pids)
    ledger.note(gpu, time.monotonic_ns(), Processes(listed, pod=pod))


def spend(ledger: Ledger, seconds: float, gpu: Identity = GPU, end_ns: int | None = None) -> None:
    ns = round(seconds * SECOND)
    window = Window(end_ns or time.monotonic_ns(), ns, ns // 4)
    ledger.note(gpu, window.end_ns, Spent([window], {ASLEEP: ns - ns // 4}))


def jobs(ledger: Ledger, since: float = 0.0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ledger.documents(since))["jobs"]
    return found


def test_a_process_is_charged_until_the_moment_of_its_end(tmp_path: Path) -> None:
    file, sampler = f"{tmp_path / 'jobs'}", Looked()
    with keeping(sampler, jobs_state_file=file) as ledger:
        for _ in range(2):
            with process() as one:
                hold(ledger, one.pid)
                job = next(job for job in jobs(ledger) if job["end_seconds"] is None)
                assert job["gpus"][0]["end_seconds"] is None
                assert job["id"].startswith(f"user-{job['owner']['user']}-")
            ended = time.time()
            until(lambda: all(job["end_seconds"] for job in jobs(ledger)), "its end")
            found = json.loads(ledger.document(job["id"]) or "")["job"]
            assert found["end_seconds"] == pytest.approx(ended, abs=0.5)
        assert sampler.uuids == ["GPU-1"] * 2
        assert ledger.document("nothing") is None
        assert len({job["id"] for job in jobs(ledger)}) == 2
    with closing(Store(file, 10, 1e9)) as store:
        assert len(store.read()) == 2


def test_lines_that_were_found_are_whose_processes_are_there_and_outlive_a_restart(
    tmp_path: Path,
) -> None:
    file = f"{tmp_path / 'jobs'}"
    line = CodeLine(
        file="/train.py",
        line=142,
        function="collate",
        role="worker",
        seconds=3.0,
        ratio=0.75,
        lock_ratio=0.0,
        native_ratio=0.5,
    )
    found = IdleLines(seconds=4.0, looks=9, lines=(line,))
    with process() as one, keeping(jobs_state_file=file) as ledger:
        hold(ledger, one.pid)
        ledger.note(GPU, time.monotonic_ns(), found)
        ledger.note(GPU, time.monotonic_ns(), IdleLines(seconds=1.0, trouble="it is stopped"))
    with keeping(jobs_state_file=file) as ledger:
        (job,) = jobs(ledger)
        assert wire.read(IdleLines, job["gpus"][0]["idle_lines"]) == found


def test_gpus_and_mig_instances_are_parts_of_a_job_of_their_own() -> None:
    with keeping() as ledger, process() as one:
        hold(ledger, one.pid)
        hold(ledger, one.pid, gpu=PARTS)
        (job,) = jobs(ledger)
        known = [{key: gpu.get(key) for key in ("gpu", "uuid", "mig")} for gpu in job["gpus"]]
        assert known == [
            {"gpu": "0", "uuid": "GPU-1", "mig": None},
            {"gpu": "0", "uuid": "MIG-1", "mig": "1g.10gb"},
        ]


def test_a_pod_goes_on_with_another_process() -> None:
    with keeping() as ledger, process() as one, process() as two:
        pod = Pod("vision", "train-0", "main")
        hold(ledger, one.pid, pod=pod)
        hold(ledger, pod=pod)
        spend(ledger, 0.1)
        assert jobs(ledger)[0]["end_seconds"]
        hold(ledger, two.pid, pod=pod)
        (job,) = jobs(ledger)
        assert job["id"] == "pod-vision.train-0"
        assert job["end_seconds"] is None
        assert job["owner"]["container"] == "main"


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Owner(slurm_job_id="4711", pod_uid="1-2", user="ada"), "slurm-4711"),
        (Owner(pod_uid="1-2", container_id="a" * 64), "pod-1-2"),
        (Owner(container_id="0123456789abcdef", user="ada"), "container-0123456789ab"),
        (Owner(namespace="../é", pod="x" * 200), f"pod-..--.{'x' * 71}"),
        (Owner(user="ada"), None),
    ],
)
def test_a_job_is_known_by_the_best_name_of_its_owner(owner: Owner, name: str | None) -> None:
    assert name_of(owner) == name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_who_claims_a_slurm_job_gets_one_of_their_own() -> None:
    number = {"SLURM_JOB_ID": "7"}
    with keeping() as ledger, process(number) as one, process(number, user=65534) as two:
        hold(ledger, one.pid)
        assert [job["id"] for job in jobs(ledger)] == ["slurm-7"]
        hold(ledger, one.pid, two.pid)
        (eve,) = (job for job in jobs(ledger) if job["id"] != "slurm-7")
        assert eve["id"].startswith("user-")


def test_claims_are_those_that_are_asked_for_and_cut() -> None:
    variables = {"WANDB_RUN_ID": "7\x1b[2J" * 100, "SECRET": "no", "EMPTY": ""}
    asked = frozenset({"WANDB_RUN_ID", "EMPTY"})
    with keeping(jobs_claims=asked) as ledger, process(variables) as one:
        hold(ledger, one.pid)
        text = ledger.documents()
        (job,) = json.loads(text)["jobs"]
        assert list(job["claims"]) == ["WANDB_RUN_ID"]
        assert len(job["claims"]["WANDB_RUN_ID"]) == 128
        assert "\x1b" not in text
        assert "SECRET" not in text


def test_a_running_job_goes_on_after_a_restart(tmp_path: Path) -> None:
    file, busy, pid = f"{tmp_path / 'jobs'}", 0.0, os.getpid()
    until(lambda: time.time() - psutil.Process().create_time() > 2, "that this is no new process")
    for _ in range(2):
        with keeping(jobs_state_file=file) as ledger:
            hold(ledger, pid)
            spend(ledger, 0.1, end_ns=time.monotonic_ns() + SECOND // 10)
            busy += 0.025
            (job,) = jobs(ledger)
            (gpu,) = job["gpus"]
            assert gpu["busy_seconds"] == pytest.approx(busy)
            assert job["end_seconds"] is None
            assert gpu["observed_seconds"] == pytest.approx(4 * busy)
            assert job["start_seconds"] == pytest.approx(psutil.Process().create_time(), abs=1.5)


def test_a_job_that_ends_is_stored_without_those_that_run(tmp_path: Path) -> None:
    file = f"{tmp_path / 'jobs'}"
    with keeping(jobs_state_file=file) as ledger, closing(Store(file, 10, 1e9)) as store:
        hold(ledger, os.getpid())
        (running,) = until(store.read, "the first job")
        with process() as one:
            hold(ledger, os.getpid(), one.pid)
            assert len(jobs(ledger)) == 2
        until(lambda: len(store.read()) > 1, "the second one")
        assert store.read(ids=running.id) == [running]


def test_a_job_that_ended_meanwhile_ended_when_it_was_last_seen(tmp_path: Path) -> None:
    file = f"{tmp_path / 'jobs'}"
    with process() as one, keeping(jobs_state_file=file) as ledger:
        hold(ledger, one.pid)
        spend(ledger, 0.1)
        (before,) = jobs(ledger)
        assert before["end_seconds"] is None
        seen = time.time()
    with keeping(jobs_state_file=file) as ledger:
        (after,) = jobs(ledger)
        assert after["end_seconds"] == pytest.approx(seen, abs=0.5)


def test_a_clock_that_is_set_back_ends_no_job_before_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with keeping() as ledger, process() as one:
        hold(ledger, one.pid)
        assert jobs(ledger)
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() - 3600)
        spend(ledger, 0.1)
        hold(ledger)
        (after,) = jobs(ledger)
        assert 0 <= after["end_seconds"] - after["start_seconds"] < 60


def test_an_answer_is_bounded_and_says_what_it_leaves_off(tmp_path: Path) -> None:
    file, body = f"{tmp_path / 'jobs'}", zlib.compress(b'{"noise": "%s"}' % (b"x" * 200_000))
    now = time.time()
    with closing(Store(file, 1000, 1e9)) as store:
        store.write([Row(f"{n}", "ada", now, body) for n in range(100)], now)
    with keeping(jobs_state_file=file) as ledger:
        text = ledger.documents()
    assert len(text) < MOST_BYTES + 10_000
    assert json.loads(text)["left_off"] > 50


@pytest.mark.parametrize(
    "wrong",
    [
        {"jobs_claims": frozenset({"A=B"})},
        {"jobs_claims": frozenset(f"A{n}" for n in range(17))},
        {"jobs_keep": 0},
        {"jobs_keep_seconds": 1.0},
        {"jobs_state_file": "/nowhere/jobs"},
    ],
)
def test_mistakes_are_refused(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong)).split("_")[1]):
        Settings(**wrong)
