"""The ledger with real processes: whose they are, when they end, and what a restart leaves."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_bottleneck_exporter.accounting.stall import ASLEEP
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.driver.about import UNKNOWN
from gpu_bottleneck_exporter.driver.readings import Identity, Pod, Process, Processes
from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.jobs.ledger import MOST_BYTES, Ledger, _name_of
from gpu_bottleneck_exporter.jobs.records import Job
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.sampling.opened import Spent
from gpu_bottleneck_exporter.sampling.sampler import NO_SYSTEM, SamplerState
from gpu_bottleneck_exporter.settings import Settings
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
def keeping(**settings: Any) -> Iterator[Ledger]:  # noqa: ANN401 - of any type
    ledger = Ledger(Settings(**settings), document)
    ledger.start(Looked())
    yield ledger
    ledger.stop()
    assert not ledger._thread.is_alive()


@contextmanager
def process(variables: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        ["sleep", "600"], env={**os.environ, **(variables or {})}, start_new_session=True
    ) as one:
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


def test_a_process_is_charged_until_the_moment_of_its_end() -> None:
    with keeping() as ledger, process() as one:
        hold(ledger, one.pid)
        (job,) = until(lambda: jobs(ledger), "it is seen")
        assert (job["end_seconds"], job["gpus"][0]["end_seconds"]) == (None, None)
        assert job["owner"]["user"]
        assert job["id"].startswith("user-")
        until(lambda: ledger._pidfds, "it is followed")
        one.kill()
        one.wait()
        ended = time.time()
        (job,) = until(lambda: [j for j in jobs(ledger) if j["end_seconds"]], "its end")
        assert job["end_seconds"] == pytest.approx(ended, abs=0.5)
        assert isinstance(ledger._sampler, Looked)
        assert ledger._sampler.uuids == ["GPU-1"]
        spend(ledger, 0.2)
        until(lambda: ledger._store.find(job["id"]), "it is stored")
        found = json.loads(ledger.document(job["id"]) or "")
        assert found["job"]["id"] == job["id"]
        assert ledger.document("nothing") is None
    assert not ledger._pidfds


def test_a_second_job_of_a_user_is_another_one() -> None:
    with keeping() as ledger:
        for _ in range(3):
            with process() as one:
                hold(ledger, one.pid)
                until(lambda: any(j["end_seconds"] is None for j in jobs(ledger)), "it is seen")
            until(lambda: all(j["end_seconds"] for j in jobs(ledger)), "it has ended")
        assert len({job["id"] for job in jobs(ledger)}) == 3


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
    assert _name_of(owner) == name


def test_another_user_who_claims_a_slurm_job_gets_one_of_their_own() -> None:
    with keeping() as ledger:
        ada = ledger._job((1, 1), Owner(slurm_job_id="7", user="ada"), 1, 0)
        eve = ledger._job((2, 2), Owner(slurm_job_id="7", user="eve"), 2, 0)
        assert (ada.id, ada.owner["user"]) == ("slurm-7", "ada")
        assert eve.id.startswith("user-eve-")
        assert ledger._job((3, 3), Owner(slurm_job_id="7", user="ada"), 3, 0) is ada


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
    file = f"{tmp_path / 'jobs'}"
    with process() as one:
        with keeping(jobs_state_file=file) as ledger:
            hold(ledger, one.pid)
            ended_ns = time.monotonic_ns()
            spend(ledger, 0.1, end_ns=ended_ns)
            (before,) = jobs(ledger)
        time.sleep(0.3)
        with keeping(jobs_state_file=file) as ledger:
            hold(ledger, one.pid)
            began_ns = time.monotonic_ns()
            spend(ledger, 0.1, end_ns=began_ns + SECOND // 10)
            (after,) = jobs(ledger)
            down = (began_ns - ended_ns) / SECOND
    assert (after["id"], after["start_seconds"]) == (before["id"], before["start_seconds"])
    then, now = before["gpus"][0], after["gpus"][0]
    assert now["busy_seconds"] == pytest.approx(then["busy_seconds"] + 0.025)
    assert now["unobserved_seconds"] - then["unobserved_seconds"] == pytest.approx(down, abs=0.05)
    assert after["end_seconds"] is None


def test_a_job_that_ended_meanwhile_ended_when_it_was_last_seen(tmp_path: Path) -> None:
    file = f"{tmp_path / 'jobs'}"
    with process() as one, keeping(jobs_state_file=file) as ledger:
        hold(ledger, one.pid)
        spend(ledger, 0.1)
        (before,) = jobs(ledger)
        assert before["end_seconds"] is None
        seen = time.time()
        ledger.stop()
    with keeping(jobs_state_file=file) as ledger:
        (after,) = jobs(ledger)
        assert after["end_seconds"] == pytest.approx(seen, abs=0.5)
        until(lambda: [r for r in ledger._store.read() if not r.holders], "as one that ended")


def test_a_clock_that_is_set_back_moves_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with keeping() as ledger, process() as one:
        hold(ledger, one.pid)
        (before,) = jobs(ledger)
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() - 3600 * SECOND)
        spend(ledger, 0.1)
        hold(ledger)
        (after,) = jobs(ledger)
        assert after["start_seconds"] == before["start_seconds"]
        assert 0 <= after["end_seconds"] - after["start_seconds"] < 60


def test_an_answer_is_bounded_and_says_what_it_leaves_off() -> None:
    with keeping(jobs_keep=100_000) as ledger, process() as one:
        hold(ledger, one.pid)
        assert jobs(ledger)
        (job,) = ledger._jobs.values()
        job.owner["rendezvous"] = "x" * 200_000
        job.uses["GPU-1"].held = 0
        rows = [ledger._row(replace_id(job, number)) for number in range(100)]
        ledger._store.write(rows, time.time())
        text = ledger.documents()
        assert len(text) < MOST_BYTES + 10_000
        assert json.loads(text)["left_off"] > 50


def replace_id(job: Job, number: int) -> Job:
    return replace(job, id=f"slurm-{number}")


def test_thousands_of_jobs_take_little_memory() -> None:
    with keeping() as ledger, process() as one:
        hold(ledger, one.pid)
        (running,) = until(lambda: list(ledger._jobs.values()), "it is seen")
        line = running.uses["GPU-1"].timeline
        line.busy, line.stall = [123_456_789] * 60, [{ASLEEP: 876_543_211}] * 60
        for number in range(3000):
            ledger._store.write([ledger._row(replace_id(running, number))], time.time())
        kept = ledger._store.read()
        print(f"{len(kept)} jobs: {sum(len(row.body) for row in kept) / 1e6:.2f} MB")  # noqa: T201
        assert len(kept) <= 1000
        assert sum(len(row.body) for row in kept) < 2e6


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
