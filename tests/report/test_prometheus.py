"""`report --prometheus` against a real Prometheus whose past was written beforehand."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rules.parsed import rules
from support.beside import Reply, answering
from support.command import run
from support.prometheus import Prometheus, on_data, write_past

MINUTES = 180
END = int(time.time()) // 600 * 600 - 3600
"""The job ended an hour ago."""
BUSY, STALL = "workload:busy_gpu_seconds:sum5m", "workload:stall_gpu_seconds:sum5m"
ADA = {"slurm_job_id": "4711", "user": "ada", "workload": "Slurm job 4711"}
BOB = {
    "workload_namespace": "vision",
    "workload_pod": "train-0",
    "user": "root",
    "workload": "pod vision/train-0",
}
ADVICE = {
    "value": 6,
    "current_value": 2,
    "busy_ratio": 0.9,
    "busy_low_ratio": 0.8,
    "busy_high_ratio": 0.95,
    "upper_bound": 0,
}


def series(name: str, labels: Mapping[str, str], value: float, every: int = 60) -> Iterator[str]:
    """A constant series of the job's time."""
    head = f"{name}{{{','.join(f'{k}={json.dumps(v)}' for k, v in labels.items())}}} {value} "
    for at in range(END - 60 * MINUTES + every, END + 1, every):
        yield f"{head}{at}\n"


def past() -> Iterator[str]:
    """Two GPUs of ada's on two nodes, of which the second is slower, and one of a pod."""
    for node, gpu, idle, owner in (
        ("node7:10170", "3", 0.4, ADA),
        ("node8:10170", "0", 0.7, ADA),
        ("node9:10170", "0", 0.1, BOB),
    ):
        of = {"job": "gpu", "instance": node, "gpu": gpu, "uuid": f"GPU-{node}"}
        yield from series("gpu:busy:ratio_rate5m", of, 1 - idle)
        yield from series("gpu:owner:info", {**of, **owner}, 1)
        yield from series("gpu:stall:ratio_rate5m", {**of, "waiting_on": "worker_cpu"}, idle - 0.1)
        yield from series("gpu:stall:ratio_rate5m", {**of, "waiting_on": "storage"}, 0.1)
        for name, value in ADVICE.items():
            advised = [*series(f"gpu:prescription:{name}", {**of, "knob": "num_workers"}, value)]
            yield from advised if owner is ADA else advised[:-10]
            later = series(f"gpu:prescription:{name}", {**of, "knob": "cpu_limit"}, value)
            yield from () if owner is ADA else [*later][-10:]
    for owner, name, busy, storage, cpu in (
        (ADA, "ada", 0.9, 0.2, 0.9),
        (BOB, "research", 0.9, 0.1, 0),
    ):
        billed = {**owner, "workload_owner": name}
        values = ("workload_namespace", "workload_pod", "user", "workload_owner")
        of_owner = {label: billed[label] for label in values if label in billed}
        yield from series("helper:job_owner:info", of_owner, 1)
        yield from series(BUSY, billed, 300 * busy, 300)
        yield from series(STALL, {**billed, "waiting_on": "storage"}, 300 * storage, 300)
        yield from series(STALL, {**billed, "waiting_on": "worker_cpu"}, 300 * cpu, 300)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    write_past(folder, past())
    with on_data(folder, {}) as result:
        yield result


def report(folder: Path, server: Prometheus, *arguments: str) -> subprocess.CompletedProcess[str]:
    url = f"127.0.0.1:{server.port}"
    return run(folder, "report", "--prometheus", url, "--since", "30d", *arguments)


def test_all_jobs_with_totals_by_owner(tmp_path: Path, server: Prometheus) -> None:
    done = report(tmp_path, server, "--format", "json", "--verbose")
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("query ") for line in done.stderr.splitlines())
    document = json.loads(done.stdout)
    assert [job["id"] for job in document["jobs"]] == ["slurm-4711", "pod vision/train-0"]
    assert [owner["owner"] for owner in document["owners"]] == ["ada", "research"]
    ada = document["jobs"][0]
    assert ada["lost_gpu_hours"] == pytest.approx(3 * 1.1)
    assert ada["busy_ratio"] == pytest.approx(0.45)
    assert ada["stall_ratios"] == pytest.approx({"worker_cpu": 0.45, "storage": 0.1})
    assert document["total"]["lost_gpu_hours"] == pytest.approx(3 * 1.2)
    assert document["job_count"] == 2


@pytest.mark.parametrize(
    ("owner", "job"),
    [("ada", "slurm-4711"), ("vision", "pod vision/train-0"), ("research", "pod vision/train-0")],
)
def test_one_owner(tmp_path: Path, server: Prometheus, owner: str, job: str) -> None:
    done = report(tmp_path, server, "--format", "json", "--owner", owner)
    assert [item["id"] for item in json.loads(done.stdout)["jobs"]] == [job]


def test_one_job_with_its_gpus(tmp_path: Path, server: Prometheus) -> None:
    done = report(tmp_path, server, "--format", "json", "--job", "4711")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["jobs"]
    assert [(item["node"], item["gpu"]) for item in result["gpus"]] == [
        ("node7", "3"),
        ("node8", "0"),
    ]
    assert [item["observed_seconds"] for item in result["gpus"]] == pytest.approx([3 * 3600] * 2)
    assert [item["busy_seconds"] for item in result["gpus"]] == pytest.approx([6480, 3240])
    assert (result["start_seconds"], result["end_seconds"]) == (END - 3 * 3600, END)
    assert result["slowest"].startswith("GPU 0 on node8 was the slowest: worker_cpu 60 %")
    # Of the first, what the prediction leaves over; of the other, what it waited for workers.
    returned = f"{(3240 + 6480) / 3600:.3g}"
    gain = f"This would return about {returned} GPU-hours."
    assert result["do_first"] == f"Do first: Use 6 loader workers (now 2) on all ranks. {gain}"


@pytest.mark.parametrize(
    "arguments",
    [
        "--pod vision/train-0",
        "--gpu node9/0",
        "--gpu node9:10170/0",
        "--gpu GPU-node9:10170",
        "--owner research --pod vision/train-0",
        "--owner vision --gpu node9/0",
    ],
)
def test_other_ways_to_name_a_job(tmp_path: Path, server: Prometheus, arguments: str) -> None:
    done = report(tmp_path, server, *arguments.split())
    assert done.stdout.startswith("Pod vision/train-0 (research, 1 GPU, 3 h 0 min)"), done.stderr


def test_the_last_recommendation_counts(tmp_path: Path, server: Prometheus) -> None:
    done = report(tmp_path, server, "--format", "json", "--pod", "vision/train-0")
    ((gpu,),) = (job["gpus"] for job in json.loads(done.stdout)["jobs"])
    assert gpu["recommendation"]["knob"] == "cpu_limit"


def test_wrong_names_and_a_prometheus_without_our_rules(tmp_path: Path, server: Prometheus) -> None:
    for arguments, result in (
        ("--job 4712", "There is no job '4712'"),
        ('--owner "}', "There is no owner '\"}'"),
        ("--pod vision/x", "There is no pod 'vision/x'"),
        ("--url node7 --job 1", "omit --url and --nodes"),
    ):
        done = report(tmp_path, server, *arguments.split())
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert result in done.stderr
        assert len(done.stderr.splitlines()) == 1
    done = run(tmp_path, "report", "--prometheus", f"127.0.0.1:{server.port}", "--since", "1m")
    assert done.returncode == 1
    assert "has recorded no workload:busy_gpu_seconds:sum5m" in done.stderr


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply(b"<html>"), "is not the API of a Prometheus"),
        (Reply(b'{"status": "success", "data": {}}'), "is not the API of a Prometheus"),
        (
            Reply(b'{"status": "error", "error": "too\\u001b many"}', 422),
            "refuses a query: too? many",
        ),
        (Reply(status=404), "answers 404"),
    ],
)
def test_servers_that_are_no_prometheus(tmp_path: Path, reply: Reply, told: str) -> None:
    with answering(lambda _: reply) as port:
        done = run(tmp_path, "report", "--prometheus", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


ROW: dict[str, object] = {"metric": {"user": "ada", "uuid": "u"}, "value": [0, "600"]}


def rows(*results: object) -> bytes:
    return json.dumps({"status": "success", "data": {"result": results}}).encode()


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1e308", "-1e308", "1e400"])
def test_values_that_no_sum_can_have_are_none(tmp_path: Path, value: str) -> None:
    odd = {**ROW, "value": [0, value]}
    with answering(lambda _: Reply(rows(ROW, odd))) as port:
        done = run(tmp_path, "report", "--prometheus", f"127.0.0.1:{port}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "busy 100 %" in done.stdout


VALUES: list[object] = [[0, 10**400], [0], [0, None], {}, "ab"]
LABELS: list[object] = [{"user": 5}, {"user": ["x"]}, [], None]
ROWS = [*({**ROW, "value": value} for value in VALUES), *({**ROW, "metric": of} for of in LABELS)]


@pytest.mark.parametrize("row", [*ROWS, None, 5, "row", []])
def test_a_row_that_is_none_is_one_line(tmp_path: Path, row: object) -> None:
    with answering(lambda _: Reply(rows(ROW, row))) as port:
        done = run(tmp_path, "report", "--prometheus", f"127.0.0.1:{port}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not the API of a Prometheus" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_job_with_an_unknown_start_is_absent(tmp_path: Path) -> None:
    with answering(
        lambda request: Reply(rows() if "min+by" in request.path else rows(ROW))
    ) as port:
        done = run(tmp_path, "report", "--prometheus", f"127.0.0.1:{port}", "--job", "7")
    assert (done.returncode, done.stdout) == (2, "")
    assert "There is no job '7'" in done.stderr


@pytest.mark.parametrize("name", [BUSY, STALL])
def test_the_recorded_sums_are_those_of_five_minutes(server: Prometheus, name: str) -> None:
    (rule,) = (rule for rule in rules() if rule.name == name)
    result = server.query(rule.fields["expr"], END - 630)
    for labels, value in result:
        expected = server.value(
            f"{name}{{{','.join(f'{k}={json.dumps(v)}' for k, v in labels.items())}}}", END - 600
        )
        assert value == pytest.approx(expected)
    assert len(result) == (2 if name == BUSY else 4)
