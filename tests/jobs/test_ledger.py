"""The ledger with real processes: whose they are, when they end, and what a restart leaves."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from gpu_bottleneck_exporter.accounting.bucket import Role
from gpu_bottleneck_exporter.accounting.stall import ASLEEP, HOST_CODE, STORAGE
from gpu_bottleneck_exporter.accounting.tick import UNATTRIBUTED, TenantTime, Tick
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.driver.readings import Identity, Pod
from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.host.files import FileLimitError
from gpu_bottleneck_exporter.host.process import Started, stat_of
from gpu_bottleneck_exporter.host.programs import program_name
from gpu_bottleneck_exporter.jobs.ledger import MAX_JOBS_BYTES, Ledger
from gpu_bottleneck_exporter.jobs.model import Job, JobGpu
from gpu_bottleneck_exporter.jobs.store import Row, Store
from gpu_bottleneck_exporter.nodeview import wire
from gpu_bottleneck_exporter.prescription.model import Outlook
from gpu_bottleneck_exporter.sampling.sampler import Sampler, SamplerState
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.stacktraces.lines import LineCount, StackSample, ThreadSample
from gpu_bottleneck_exporter.stacktraces.model import CodeLine, IdleLines
from gpu_bottleneck_exporter.stacktraces.reader import StackReader, UnreadableReason
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.names import name_of
from jobs.held import GPU, SECOND, Looked, find, hold, jobs, keeping, process, spend
from support.logged import logged
from support.programs import Program, program, started
from support.states import PRESCRIBED, SCORED, feeding, hopper, state
from support.waiting import PATIENCE_SECONDS, until

PARTS = Identity(0, "MIG-1", "H100", mig_profile="1g.10gb", parent_uuid="GPU-1")


def test_a_process_is_charged_until_the_moment_of_its_end(tmp_path: Path) -> None:
    file, sampler = f"{tmp_path / 'jobs'}", Looked()
    with keeping(sampler, jobs_state_file=file) as ledger:
        for _ in range(2):
            with process() as child:
                hold(ledger, child.pid)
                job = next(job for job in jobs(ledger) if job["end_seconds"] is None)
                assert job["gpus"][0]["end_seconds"] is None
                assert job["id"].startswith(f"user-{job['owner']['user']}-")
            ended = time.time()
            until(lambda: all(job["end_seconds"] for job in jobs(ledger)), "its end")
            result = json.loads(ledger.document(job["id"]) or "")["job"]
            assert result["end_seconds"] == pytest.approx(ended, abs=0.5)
        assert sampler.uuids == ["GPU-1"] * 2
        assert ledger.document("nothing") is None
        assert len({job["id"] for job in jobs(ledger)}) == 2
    with closing(Store(file, 10, 1e9)) as store:
        assert len(store.read() or ()) == 2


def test_lines_belong_to_present_processes_and_outlive_a_restart(
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
    lines = IdleLines(seconds=4.0, looks=9, lines=(line,))
    with process() as child, keeping(jobs_state_file=file) as ledger:
        hold(ledger, child.pid)
        find(ledger, lines, started(child.pid))
        find(ledger, IdleLines(seconds=1.0, trouble="it is stopped"), started(child.pid))
    with keeping(jobs_state_file=file) as ledger:
        (job,) = jobs(ledger)
        assert wire.read(IdleLines, job["gpus"][0]["idle_lines"]) == lines


def test_gpus_and_mig_instances_are_parts_of_a_job_of_their_own() -> None:
    with keeping() as ledger, process() as child:
        hold(ledger, child.pid)
        hold(ledger, child.pid, gpu=PARTS)
        (job,) = jobs(ledger)
        values = [{key: gpu.get(key) for key in ("gpu", "uuid", "mig")} for gpu in job["gpus"]]
        assert values == [
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
        (Owner(slurm_job_id="4711", pod_uid="1-2", user="ada", source="cgroup"), "slurm-4711"),
        (Owner(slurm_job_id="4711", user="ada", source="prolog"), "slurm-4711"),
        (Owner(slurm_job_id="4711", user="ada", source="claim"), "slurm-4711-ada"),
        (Owner(slurm_job_id="4711"), "slurm-4711-unknown"),
        (Owner(slurm_job_id="7", user="a-b"), "slurm-7-a-b-39320b39fbf7"),
        (Owner(pod_uid="1-2", container_id="a" * 64), "pod-1-2"),
        (Owner(container_id="0123456789abcdef", user="ada"), "container-0123456789ab"),
        (Owner(job="pbs-7.head", container_id="a" * 64), "pbs-7.head"),
        (Owner(namespace="../é", pod="x" * 200), f"pod-..--.{'x' * 58}-2e25d6b2415e"),
        (Owner(user="ada"), None),
    ],
)
def test_a_job_is_known_by_the_best_name_of_its_owner(owner: Owner, name: str | None) -> None:
    assert name_of(owner) == name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_each_user_that_claims_a_slurm_number_has_a_separate_job(tmp_path: Path) -> None:
    number, file = {"SLURM_JOB_ID": "7"}, f"{tmp_path / 'jobs'}"
    with (
        keeping(jobs_state_file=file) as ledger,
        process(number, user=65534) as eve,
        process(number, user=65533) as ada,
        process(number) as prolog,
        process({"SLURM_JOB_ID": "70"}) as other,
    ):
        hold(ledger, eve.pid, prolog.pid, other.pid)
        (claims,) = (job for job in jobs(ledger) if job["owner"]["user"] in ("nobody", "65534"))
        assert claims["id"] == f"slurm-7-{claims['owner']['user']}"
        # While one user claims it, it is known by its number; root's claim is that of a prolog.
        assert json.loads(ledger.document("slurm-7") or "")["job"]["id"] == claims["id"]
        hold(ledger, eve.pid, prolog.pid, other.pid, ada.pid)
        assert len(jobs(ledger)) == 4
        assert ledger.document("slurm-7") is None
        assert ledger.document(claims["id"])
    with keeping(jobs_state_file=file) as ledger:
        assert ledger.document("slurm-7") is None
        assert json.loads(ledger.document("slurm-70") or "")["job"]["id"] == "slurm-70-root"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_job_has_one_id_however_slowly_a_directory_names_its_user() -> None:
    """The first name of a user may take longer than the next one, and than on another node."""
    with keeping() as ledger, ExitStack() as stack:
        users = ledger._recorder._owners._users
        users._has_host_users = True
        users._look_up = lambda uid: None if threading.Event().wait(0.2) else f"u{uid}"
        for _ in range(2):
            child = stack.enter_context(process({"SLURM_JOB_ID": "7"}, user=54321))
            hold(ledger, child.pid)
            until(lambda: jobs(ledger), "its job")
            stack.pop_all().close()
        assert [job["id"] for job in jobs(ledger)] == ["slurm-7-u54321"]


def test_claims_are_those_that_are_asked_for_and_cut() -> None:
    variables = {"WANDB_RUN_ID": "7\x1b[2J" * 100, "SECRET": "no", "EMPTY": ""}
    result = frozenset({"WANDB_RUN_ID", "EMPTY"})
    with keeping(jobs_claims=result) as ledger, process(variables) as child:
        hold(ledger, child.pid)
        text = b"".join(ledger.documents()).decode()
        (job,) = json.loads(text)["jobs"]
        assert list(job["claims"]) == ["WANDB_RUN_ID"]
        assert len(job["claims"]["WANDB_RUN_ID"]) == 128
        assert job["command"] == "sleep", "without its arguments"
        assert "\x1b" not in text
        assert "SECRET" not in text


def test_a_name_that_cannot_be_read_costs_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [FileLimitError("no more files")]

    def name(proc: Path, pid: int) -> str:
        if refusals:
            raise refusals.pop()
        return program_name(proc, pid)

    monkeypatch.setattr("gpu_bottleneck_exporter.jobs.recorder.program_name", name)
    with keeping() as ledger, process() as child:
        hold(ledger, child.pid)
        assert jobs(ledger) == [], "no job without an end"
        hold(ledger, child.pid)
        (job,) = jobs(ledger)
        assert job["command"] == "sleep"


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
        with process() as child:
            hold(ledger, os.getpid(), child.pid)
            assert len(jobs(ledger)) == 2
        until(lambda: len(store.read() or ()) > 1, "the second one")
        assert running in (store.read() or ())


def test_a_job_that_ended_meanwhile_ended_when_it_was_last_seen(tmp_path: Path) -> None:
    file = f"{tmp_path / 'jobs'}"
    with process() as child, keeping(jobs_state_file=file) as ledger:
        hold(ledger, child.pid)
        spend(ledger, 0.1)
        (before,) = jobs(ledger)
        assert before["end_seconds"] is None
        result = time.time()
    with keeping(jobs_state_file=file) as ledger:
        (after,) = jobs(ledger)
        assert after["end_seconds"] == pytest.approx(result, abs=0.5)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_changes_no_duration(
    step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, pod = time.time, Pod("vision", "train-0", "main")
    with keeping() as ledger, process() as one, process() as two:
        hold(ledger, one.pid, pod=pod)
        (before,) = jobs(ledger)
        monkeypatch.setattr(time, "time", lambda: real() + step)
        spend(ledger, 0.1)
        (after,) = jobs(ledger)
        moved = after["start_seconds"] - before["start_seconds"]
        assert moved == pytest.approx(step, abs=0.5), "times are those of the clock as it is now"
        hold(ledger, pod=pod)
        (ended,) = jobs(ledger, since=real() + step - 60)
        assert 0 <= ended["end_seconds"] - ended["start_seconds"] < 60
        assert 0 < ended["observed_seconds"] <= ended["end_seconds"] - ended["start_seconds"] + 1e-3
        monkeypatch.setattr(time, "time", real)
        hold(ledger, two.pid, pod=pod)
        spend(ledger, 0.1)
        (again,) = jobs(ledger)
        assert again["start_seconds"] == pytest.approx(before["start_seconds"], abs=0.5)
        assert "pause_seconds" not in again["gpus"][0]
        line = again["gpus"][0]["timeline"]
        assert line["start_seconds"] == pytest.approx(again["start_seconds"], abs=1e-3)
        assert line["step_seconds"] == 1.0
        (worked,) = (step for step in line["spent_seconds"]["busy"] if step)
        assert worked == pytest.approx(again["busy_seconds"], abs=2e-3)


def test_a_response_is_bounded_and_names_its_omissions(tmp_path: Path) -> None:
    file, body = f"{tmp_path / 'jobs'}", zlib.compress(b'{"noise": "%s"}' % (b"x" * 200_000))
    now = time.time()
    with closing(Store(file, 1000, 1e9)) as store:
        store.write([Row(f"{n}", "ada", now, body) for n in range(100)], now)
    with keeping(jobs_state_file=file) as ledger:
        text = b"".join(ledger.documents())
    assert len(text) < MAX_JOBS_BYTES + 10_000
    assert json.loads(text)["left_off"] > 50


def test_a_process_that_gives_its_gpu_back_and_lives_on_leaves_no_descriptor() -> None:
    with keeping() as ledger, process() as child:
        hold(ledger, child.pid)
        assert jobs(ledger)
        before = len([*Path("/proc/self/fd").iterdir()])
        for _ in range(50):
            hold(ledger)
            hold(ledger, child.pid)
            assert len(jobs(ledger)) == 1
        assert len([*Path("/proc/self/fd").iterdir()]) == before


BROKEN = {
    "no archive": b"{}",
    "a cut one": zlib.compress(b'{"id": "broken"}')[:-1],
    "a bomb": zlib.compress(bytes(2**26)),
    "no JSON": zlib.compress(b'{"id": "bro'),
    "no text": zlib.compress(b"\xff"),
    "deep": zlib.compress(b"[" * 200_000),
    "a long number": zlib.compress(b'{"line": ' + b"9" * 5000 + b"}"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_row_that_cannot_be_read_costs_itself(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, now = f"{tmp_path / 'jobs'}", time.time()
    whole = zlib.compress(b'{"id": "whole"}')
    name = "slurm-7-root"
    rows = [Row(f"{n}", "ada", now - n, whole) for n in range(3)]
    with closing(Store(file, 1000, 1e9)) as store:
        store.write([*rows, Row(name, "root", now - 1.5, BROKEN[how])], now)
    with keeping(jobs_state_file=file) as ledger:
        for _ in range(2):
            assert [job["id"] for job in jobs(ledger)] == ["whole"] * 3
            assert ledger.document(name) is None
            assert ledger.document("0")
        assert len([line for line in logged(caplog) if name in line]) == 1
        # The job that it was goes on anew.
        with process({"SLURM_JOB_ID": "7"}) as child:
            hold(ledger, child.pid)
            assert name in [job["id"] for job in jobs(ledger)]
            assert ledger.document(name)
    with closing(Store(file, 1000, 1e9)) as store:
        assert json.loads(store.read(0.0, name, name)[0].text)["id"] == name  # type: ignore[index]


def test_a_job_that_cannot_be_described_is_recorded_without_fields_shaped_by_its_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = f"{tmp_path / 'jobs'}"
    shaped = CodeLine(
        file=cast("str", object()),
        line=1,
        function="f",
        role="worker",
        seconds=3.0,
        ratio=0.75,
        lock_ratio=0.0,
        native_ratio=0.5,
    )
    large = IdleLines(lines=(replace(shaped, file="\x01" * 1000, function="é" * 1000),) * 99)
    with (
        keeping(jobs_state_file=file) as ledger,
        process() as one,
        process() as two,
        process() as three,
    ):
        for number, pid in enumerate((one.pid, two.pid, three.pid)):
            hold(ledger, pid, gpu=Identity(number, f"GPU-{number}", "H100"))
        for number, (pid, lines) in enumerate(
            ((one.pid, IdleLines(lines=(shaped,))), (two.pid, large))
        ):
            find(ledger, lines, started(pid), uuid=f"GPU-{number}")
        fields = {job["gpus"][0]["uuid"]: job for job in jobs(ledger)}
        assert {*fields} == {"GPU-0", "GPU-1", "GPU-2"}
        assert "idle_lines" not in fields["GPU-0"]["gpus"][0]
        assert all(ledger.document(job["id"]) for job in fields.values())
        assert len([line for line in logged(caplog) if fields["GPU-0"]["id"] in line]) == 1
    with keeping(jobs_state_file=file) as ledger:
        assert {job["id"] for job in jobs(ledger)} == {job["id"] for job in fields.values()}


def test_a_full_disk_costs_the_jobs_that_ended_first(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    ledger = Ledger(Settings(jobs_state_file=f"{folder / 'jobs'}"))
    shutil.rmtree(folder)
    folder.write_text("in the way")
    ended = time.time() - 1000
    for n in range(300):
        gpu = JobGpu(gpu="0", uuid="GPU-1", start_seconds=ended, end_seconds=ended + n)
        ledger._recorder.jobs[f"{n}"] = Job(id=f"{n}", gpus=[gpu])
    ledger._save(running=False)
    assert [*ledger._recorder.jobs] == [f"{n}" for n in range(44, 300)]
    folder.unlink()
    folder.mkdir()
    ledger._save(running=False)
    assert not ledger._recorder.jobs
    assert [job["id"] for job in jobs(ledger)] == [f"{n}" for n in range(299, 43, -1)]


def test_a_slurm_job_proved_by_root_is_one_for_all_its_users() -> None:
    ledger, now = Ledger(Settings()), time.time_ns()
    proven = Owner(slurm_job_id="7", user="ada", source="cgroup")
    claims = [Owner(slurm_job_id="7", user=user, source="claim") for user in ("eve", "ada")]
    first, second, *others = [
        ledger._recorder._job(owner, 1, now, {})
        for owner in (claims[0], proven, replace(proven, user="165536"), *claims)
    ]
    assert first is others[1]
    assert second is others[0]
    assert second.id == "slurm-7"
    assert second.owner == {"slurm_job_id": "7", "user": "ada", "source": "cgroup"}
    assert len({item.id for item in (first, second, others[2])}) == 3


def test_names_with_the_same_look_differ(tmp_path: Path) -> None:
    settings = Settings(jobs_state_file=f"{tmp_path / 'jobs'}")
    now = time.time_ns() - 10 * SECOND
    ledger = Ledger(settings)
    owners = [
        (Owner(user="a"), 12345),
        (Owner(user="a-12345"), 7),
        (Owner(user="a", rendezvous="12345-7"), 7),
        (Owner(user="corp+a"), 7),
        (Owner(user="corp-a"), 7),
        (Owner(user="corp*a"), 7),
        (Owner(user="x" * 100 + "1"), 7),
        (Owner(user="x" * 100 + "2"), 7),
        (Owner(slurm_job_id="7", user="a", pod_uid="b-c"), 7),
        (Owner(slurm_job_id="7", user="a-b", pod_uid="c"), 7),
        (Owner(slurm_job_id="7", user="a-b-c"), 7),
    ]
    values = []
    for owner, session in owners:
        values.append(ledger._recorder._job(owner, session, now, {}))
        values[-1].gpus = [JobGpu(gpu="0", uuid="GPU-1", start_seconds=now / 1e9)]
    assert len({job.id for job in values}) == len(owners)
    assert [ledger._recorder._job(owner, session, now, {}) for owner, session in owners] == values
    ledger._save(running=True)
    # After a restart, processes that started before go on with what was stored.
    for (owner, session), job in zip(owners, values, strict=True):
        assert Ledger(settings)._recorder._job(owner, session, now, {}).id == job.id


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_users_without_names_share_the_room_of_their_range(tmp_path: Path) -> None:
    file = f"{tmp_path / 'jobs'}"
    users = (165_536, 200_000, 231_071, 300_000)
    with keeping(jobs_state_file=file) as ledger, ExitStack() as there:
        hold(ledger, *(there.enter_context(process(user=user)).pid for user in users))
        assert len(jobs(ledger)) == len(users)
    with closing(Store(file, 10, 1e9)) as store:
        accounts = Counter(row.account for row in store.read() or ())
    assert sorted(accounts.values()) == [1, 3]


def test_a_container_with_many_users_as_its_root_has_the_room_of_one(tmp_path: Path) -> None:
    """Its root may take any uid below 65 536, and claim a Slurm job with each."""
    ledger, now = Ledger(Settings(jobs_state_file=f"{tmp_path / 'jobs'}")), time.time_ns()
    for uid in range(3):
        user, number = f"{1000 + uid}", f"{uid}"
        owner = Owner(container_id="c", slurm_job_id=number, user=user, source="claim")
        gpus = ledger._recorder._job(owner, 1, now, {}).gpus
        gpus.append(JobGpu(gpu="0", uuid="GPU-1", start_seconds=now / 1e9))
    ledger._save(running=True)
    assert len({row.account for row in ledger._store.read() or ()}) == 1


def test_a_list_is_made_while_it_is_sent(tmp_path: Path) -> None:
    file, now = f"{tmp_path / 'jobs'}", time.time()
    body = zlib.compress(b'{"noise": "%s"}' % (b"x" * 1000))
    with closing(Store(file, 1000, 1e9)) as store:
        store.write([Row(f"{n}", "ada", now - 100 + n, body) for n in range(50)], now)
        with keeping(jobs_state_file=file) as ledger:
            parts = ledger.documents()
            text = next(parts) + next(parts)
            # What is written meanwhile holds up nothing, and is not shown twice.
            assert store.write([Row("30", "ada", now + 9, body)], now)
            text += b"".join(parts)
    assert len(json.loads(text)["jobs"]) == 49
    assert json.loads(text)["left_off"] == 0


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


UNNAMED = 'exec(compile("ready()\\nos.read(0, 1)", "", "exec"))'


class Knows(Looked):
    """A sampler that has advice for some processes."""

    outlook = Outlook()

    def state(self) -> SamplerState:
        shown = replace(hopper(), identity=GPU, feeding=replace(feeding(), outlook=self.outlook))
        return state(shown)


@pytest.fixture
def two() -> Iterator[tuple[Program, Program]]:
    with ExitStack() as stack:
        first, second = (stack.enter_context(program(UNNAMED)) for _ in range(2))
        yield first, second


def lines_of(*pids: int) -> IdleLines:
    """Lines found by a sample of these."""
    count = LineCount()

    def counted() -> IdleLines:
        with StackReader(Path("/proc"), PATIENCE_SECONDS) as reader:
            result = reader.read([started(pid) for pid in pids], ()).values()
        stacks = [
            stack for item in result if not isinstance(item, UnreadableReason) for stack in item
        ]
        threads = [ThreadSample(Role.MAIN, stack.wait, stack.frames) for stack in stacks]
        count.add([Window(SECOND, SECOND, 0)], {HOST_CODE: SECOND}, [StackSample(1, threads)])
        return count.result()

    return until(lambda: result if (result := counted()).waits else None, "a line")


def note(ledger: Ledger, lines: IdleLines, *mains: Started) -> None:
    find(ledger, replace(lines, lines=lines.lines or lines.waits), *mains)


def with_lines(ledger: Ledger) -> dict[str, Any]:
    """The lines of each job that has any, by its id."""
    gpus = {job["id"]: job["gpus"][0] for job in jobs(ledger)}
    return {name: gpu["idle_lines"] for name, gpu in gpus.items() if "idle_lines" in gpu}


def test_lines_of_a_file_without_a_name_outlive_a_restart(
    tmp_path: Path, two: tuple[Program, Program]
) -> None:
    one, _ = two
    file, lines, pod = f"{tmp_path / 'jobs'}", lines_of(one.pid), Pod("vision", "train-0", "main")
    assert lines.waits[0].file == ""
    with keeping(jobs_state_file=file) as ledger:
        hold(ledger, one.pid, pod=pod)
        note(ledger, lines, started(one.pid))
        (name,) = with_lines(ledger)
    with keeping(jobs_state_file=file) as ledger:
        hold(ledger, one.pid, pod=pod)
        (job,) = jobs(ledger)
        assert (job["id"], job["end_seconds"]) == (name, None), "it goes on"
        assert with_lines(ledger)[name]["lines"][0]["file"] == ""


def test_lines_belong_to_the_sampled_job_also_once_it_has_left(
    two: tuple[Program, Program],
) -> None:
    one, other = two
    lines = lines_of(one.pid)
    with keeping() as ledger:
        hold(ledger, one.pid)
        (first,) = jobs(ledger)
        hold(ledger, other.pid)
        note(ledger, lines, started(one.pid))
        assert {*with_lines(ledger)} == {first["id"]}


@pytest.mark.parametrize("of", ["both", "nobody", "the pid of another", "one that is gone"])
def test_lines_that_are_of_no_single_job_are_of_none(of: str, two: tuple[Program, Program]) -> None:
    one, other = (started(program.pid) for program in two)
    mains = {
        "both": (one, other),
        "nobody": (),
        "the pid of another": ((one[0], (one[1] or 0) - 1),),
        "one that is gone": (one, (2**22, 7)),
    }
    lines = lines_of(one[0])
    with keeping() as ledger:
        hold(ledger, one[0], other[0])
        assert len(jobs(ledger)) == 2
        note(ledger, lines, *mains[of])
        assert not with_lines(ledger)


def test_a_recommendation_is_for_the_processes_that_it_is_about(
    two: tuple[Program, Program],
) -> None:
    one, other = two
    sampler = Knows()
    with keeping(sampler) as ledger:
        hold(ledger, one.pid)
        hold(ledger, other.pid)
        assert len(jobs(ledger)) == 2
        for mains, result in (((), 0), (two, 0), ((one,), 1)):
            about = frozenset(started(program.pid) for program in mains)
            sampler.outlook = Outlook(PRESCRIBED, SCORED, mains=about)
            ledger._recorder.update()
            advised = [job for job in jobs(ledger) if "recommendation" in job["gpus"][0]]
            assert [job["end_seconds"] is None for job in advised] == [False] * result
            assert all("score" in job["gpus"][0] for job in advised)


def test_a_process_is_charged_until_its_last_thread_has_ended() -> None:
    """Not only its first, which may call pthread_exit while others work on the GPU."""
    code = (
        "threading.Thread(target=locked, daemon=True).start()\n"
        "ready(); told(); ctypes.CDLL(None).pthread_exit(0)"
    )
    with keeping() as ledger, program(code) as child:
        child.tell()
        until(lambda: (stat := stat_of(Path("/proc"), child.pid)) and stat.leaderless, "a zombie")
        hold(ledger, child.pid)
        (job,) = jobs(ledger)
        assert job["end_seconds"] is None
        child.process.kill()
        until(lambda: jobs(ledger)[0]["end_seconds"], "its end")


def test_no_name_of_an_owner_keeps_other_jobs_from_being_stored(tmp_path: Path) -> None:
    file = f"{tmp_path / 'jobs'}"
    with keeping(jobs_state_file=file) as ledger, process() as one, process() as two:
        hold(ledger, one.pid, pod=Pod("\ud800" + "x" * 2000, "pod", "container"))
        hold(ledger, two.pid, gpu=Identity(1, "GPU-2", "H100"))
        assert len(jobs(ledger)) == 2
    with closing(Store(file, 10, 1e9)) as store:
        assert len(store.read() or ()) == 2


def test_a_job_that_has_ended_is_written_once() -> None:
    with keeping() as ledger:
        with process() as child:
            hold(ledger, child.pid)
            assert jobs(ledger)
        until(lambda: all(job["end_seconds"] for job in jobs(ledger)), "its end")
        (job,) = ledger._recorder.jobs.values()
        assert len({ledger._row(job, stored=True) for _ in range(50)}) == 1


def test_one_job_is_found_without_the_bodies_of_others(tmp_path: Path) -> None:
    file, now = f"{tmp_path / 'jobs'}", time.time()
    noise = json.dumps({"noise": os.urandom(50_000).hex()}).encode()
    ids = [f"{name}-{n}" for name in ("slurm-7", "user-root-7") for n in range(200)]
    with closing(Store(file, 1000, 1e9)) as store:
        store.write([Row(name, "ada", now, zlib.compress(noise)) for name in ids], now)
    ledger = Ledger(Settings(jobs_state_file=file))
    tracemalloc.start()
    assert ledger.document("slurm-7") is None
    assert ledger.document("slurm-7-5")
    ledger._recorder._job(Owner(user="root"), 7, time.time_ns(), {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * 2**20


def test_a_slow_client_holds_no_whole_job(tmp_path: Path) -> None:
    file, now = f"{tmp_path / 'jobs'}", time.time()
    body = zlib.compress(json.dumps({"noise": os.urandom(200_000).hex()}).encode())
    with closing(Store(file, 1000, 1e9)) as store:
        store.write([Row(f"{n}", "ada", now, body) for n in range(3)], now)
    parts = [*Ledger(Settings(jobs_state_file=file)).documents()]
    assert max(map(len, parts)) < 40_000
    assert len(json.loads(b"".join(parts))["jobs"]) == 3


def test_a_process_does_not_end_with_the_former_owner_of_its_descriptor() -> None:
    ledger = Ledger(Settings())
    ledger._recorder.start(cast("Sampler", Looked()))
    with process() as one, process() as two:
        hold(ledger, one.pid)
        assert jobs(ledger)
        ((descriptor, _),) = ledger._exits._callbacks.items()
        one.kill()
        until(lambda: ledger._exits._epoll.poll(0), "its end")
        hold(ledger, two.pid)
        assert len(jobs(ledger)) == 2
        assert [*ledger._exits._callbacks] == [descriptor]
        ledger._exits.notify()
        assert [job["end_seconds"] is None for job in jobs(ledger)] == [True, False]
    ledger._exits.notify()


def test_tenants_of_a_tick_reach_the_document() -> None:
    with keeping() as ledger, process() as busy, process() as idle:
        hold(ledger, busy.pid, idle.pid)
        tenants = [
            TenantTime("a", {busy.pid: SECOND // 2}, {ASLEEP: SECOND // 8}),
            TenantTime("b", {idle.pid: 0}, {STORAGE: SECOND // 8}),
            TenantTime(UNATTRIBUTED, {0: SECOND // 4}),
        ]
        window = Window(time.monotonic_ns() + SECOND, SECOND, SECOND * 3 // 4)
        stalls = {ASLEEP: SECOND // 8, STORAGE: SECOND // 8}
        tick = Tick(GPU, window.end_ns, windows=[window], stalls=stalls, tenants=tenants)
        ledger.enqueue(tick)
        by_busy = sorted(jobs(ledger), key=lambda job: -float(job["busy_seconds"]))
    for job, spent, wait in zip(by_busy, (0.625, 0.125), (ASLEEP, STORAGE), strict=True):
        assert job["busy_seconds"] == pytest.approx(spent)
        assert job["stall_seconds"] == pytest.approx({wait: 0.125})
        assert job["estimated_seconds"] == job["gpus"][0]["estimated_seconds"] == 0.125
