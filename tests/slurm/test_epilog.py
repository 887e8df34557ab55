"""What the epilog makes of ledgers, and of exporters that answer anything else."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
import time
from argparse import Namespace
from types import ModuleType
from typing import Any

import pytest

from slurm.script import EPILOG, GIB, START, decoded, epilog, gpu, job, ledger, summarized
from support.beside import HOST, Reply, Request, answering

README = EPILOG.parents[1] / "README.md"
Json = dict[str, Any]
MOST = 5000
CPUS = {"cpus": 8, "total_time": 57.5, "used_memory": 3 * GIB, "total_memory": 64 * GIB}
BEFORE = {"nodes": {"n1": CPUS, "n2": CPUS}, "total_time": 3600, "gpus": 1}


def node(*gpus: Json, **changed: object) -> Json:
    """The summary of one node."""
    told = decoded(summarized(job(**changed), ledger(*gpus)))
    found: Json = told["nodes"]["n1"]
    return found


def test_it_has_the_keys_of_jobstats() -> None:
    told = decoded(summarized(job(gpus=2), ledger(gpu("0"), gpu("3"))))
    both = dict.fromkeys("03")
    assert told["total_time"] == 3600
    assert told["gpus"] == 2
    assert told["nodes"] == {
        "n1": {
            "gpu_utilization": {**both, "0": 25.0, "3": 25.0},
            "gpu_used_memory": pytest.approx({**both, "0": 20 * GIB, "3": 20 * GIB}, rel=0.001),
            "gpu_total_memory": pytest.approx({**both, "0": 80 * GIB, "3": 80 * GIB}, rel=0.001),
        }
    }


def test_it_says_why_in_keys_of_its_own() -> None:
    change = {"knob": "num_workers", "current_value": 2.0, "value": 6.0, "text": "\x1b[31m"}
    gpus = (gpu("0"), gpu("1", busy_seconds=0.0, recommendation=change))
    told = decoded(summarized(job(gpus=4), ledger(*gpus)))["gpu_bottleneck"]
    assert told == {
        "busy": 0.125,
        "lost_gpu_hours": 1.75,
        "causes": {"worker_cpu": 0.5, "host_code": 0.167, "asleep": 0.067},
        "gpus_seen": 2,
        "change": {"knob": "num_workers", "from": 2.0, "to": 6.0},
    }


def test_time_in_which_the_job_held_no_gpu_is_not_used_either() -> None:
    late = gpu(
        start_seconds=START + 1800, observed_seconds=1800.0, busy_seconds=1800.0, stall_seconds={}
    )
    comment = summarized(job(), ledger(late))
    assert decoded(comment)["nodes"]["n1"]["gpu_utilization"] == {"0": 50.0}
    assert decoded(comment)["gpu_bottleneck"]["causes"] == {"unallocated": 0.5}


def test_a_gpu_that_others_held_too_is_judged_by_its_part() -> None:
    half = gpu(observed_seconds=1800.0, busy_seconds=450.0, stall_seconds={"peer": 1350.0})
    assert node(half)["gpu_utilization"] == {"0": 25.0}


def test_what_jobstats_measured_of_the_cpus_is_kept() -> None:
    comment = summarized(job(comment=epilog.encoded(BEFORE)), ledger(gpu()))
    nodes = decoded(comment)["nodes"]
    assert nodes["n2"] == CPUS
    assert CPUS.items() <= nodes["n1"].items()
    assert nodes["n1"]["gpu_utilization"] == {"0": 25.0}


def test_without_a_ledger_it_leaves_what_there_is_or_says_so() -> None:
    comment = epilog.encoded(BEFORE)
    assert summarized(job(comment=comment)) == comment
    assert summarized(job(comment="JS1:Short")) == "JS1:None"
    assert summarized(job(), ledger()) == "JS1:None"
    assert summarized(job(seconds=59.0)) == "JS1:Short"
    # Where there are figures, they are told of a job of seconds too.
    assert decoded(summarized(job(seconds=5.0), ledger(gpu())))


def test_what_is_unknown_is_left_out() -> None:
    """Readers divide by the total, and take what is missing there for zero."""
    unknown = {name: row for name, row in gpu("1").items() if not name.startswith("memory_")}
    assert node(gpu("0"), unknown) == {
        "gpu_utilization": {"0": 25.0, "1": 25.0},
        "gpu_used_memory": pytest.approx({"0": 20 * GIB}, rel=0.001),
        "gpu_total_memory": pytest.approx({"0": 80 * GIB}, rel=0.001),
    }


def test_parts_of_a_gpu_are_told_apart() -> None:
    uuids = [f"MIG-{part * 8}-aaaa-1111-1111-111111111111" for part in "12"]
    told = node(*(gpu("1", uuid=uuid, mig="1g.10gb") for uuid in uuids))
    assert set(told["gpu_utilization"]) == {"1:MIG-11111111", "1:MIG-22222222"}


NONSENSE: list[object] = [math.nan, math.inf, -1, True, "5", None, [], {}, 10**400]
FIELDS = (
    *("observed_seconds", "busy_seconds", "stall_seconds", "start_seconds"),
    *("gpu", "memory_peak_bytes", "memory_total_bytes"),
)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: f"{value!r:.9}")
def test_a_row_of_nonsense_is_refused(field: str, value: object) -> None:
    if field == "stall_seconds" and value == {}:
        value = {"a" * 40: 1.0}
    if field == "gpu" and value == "5":
        value = "5; rm"
    with pytest.raises(epilog.NONSENSE):
        epilog.gpu_of({**gpu(), field: value}, 3600.0, START)


@pytest.mark.parametrize("change", [5, {"knob": 5}, {"knob": "\x1b", "value": 1}, {"knob": "a"}])
def test_a_recommendation_of_nonsense_is_refused(change: object) -> None:
    with pytest.raises(epilog.NONSENSE):
        epilog.gpu_of(gpu(recommendation=change), 3600.0, START)


@pytest.mark.parametrize(("nodes", "kept"), [(1, True), (32, True), (64, False)])
def test_a_comment_is_never_too_long(nodes: int, kept: bool) -> None:  # noqa: FBT001
    chance = random.Random(20)  # noqa: S311 - no secret

    def some(index: int) -> Json:
        busy, peak = chance.uniform(0, 3600), chance.randrange(80 * GIB)
        return gpu(f"{index}", busy_seconds=busy, memory_peak_bytes=peak)

    ledgers = [ledger(*map(some, range(8))) for _ in range(nodes)]
    comment = summarized(job(gpus=8 * nodes), *ledgers)
    assert len(comment) <= MOST
    assert len(decoded(comment)["nodes"]) == nodes
    assert ("gpu_bottleneck" in decoded(comment)) == kept


def test_a_job_that_fits_in_no_way_has_no_summary() -> None:
    many = [ledger(*(gpu(f"{i}", busy_seconds=7.0 * n + i) for i in range(8))) for n in range(500)]
    assert summarized(job(), *many) == "JS1:None"


def test_the_note_for_jobstats_prints_the_reason() -> None:
    """As jobstats evaluates it: the condition, then what looks like an f-string."""
    snippets = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    (snippet,) = (text for text in snippets if "NOTES" in text)
    config = ModuleType("config")
    config.NOTES = []  # type: ignore[attr-defined]
    exec(snippet, vars(config))  # noqa: S102 - our own document
    ((condition, note, _),) = config.NOTES
    change = {"knob": "num_workers", "current_value": 2.0, "value": 6.0}
    comment = summarized(job(), ledger(gpu(recommendation=change)))
    told = []
    for data in (comment, "JS1:None", epilog.encoded(BEFORE), None):
        names = {"c": config, "self": Namespace(js=Namespace(data=data))}
        if eval(condition, names):  # noqa: S307 - as jobstats does
            told.append(eval(note, names))  # noqa: S307
    text = "Its GPUs lost 0.8 GPU-hours: worker_cpu 50%, host_code 17%, asleep 7%. "
    assert told == [text + "First change num_workers from 2 to 6."]


# --- Asking ----------------------------------------------------------------------------------
GOOD = Reply(json.dumps(ledger(gpu())).encode())
RUNNING = Reply(json.dumps(ledger(gpu(end_seconds=None), running=True)).encode())
FRESH = Reply(json.dumps({**ledger(gpu()), "time_seconds": START + 3601}).encode())
OTHERS = {
    "none": Reply(b"unknown job", 404),
    "broken": Reply(b"no", 500),
    "moved": Reply(b"", 302, {"Location": "/good/api/v1/jobs/slurm-4711"}),
    "huge": Reply(b" " * (2**20) + GOOD.body),
    "text": Reply(b"hello"),
    "deep": Reply(b"[" * 100_000),
    "list": Reply(b"[]"),
    "other": Reply(b'{"job": 5}'),
    "timeless": Reply(b'{"job": {"end_seconds": 5}}'),
    "rows": Reply(json.dumps({**ledger(), "job": {"end_seconds": START, "gpus": [None]}}).encode()),
}


def asked(*replies: Reply, wait: float = 0.0) -> tuple[Json, list[Request]]:
    """What the epilog makes of a node's replies, the last of which it repeats, and its requests."""
    requests: list[Request] = []

    def answer(request: Request) -> Reply:
        requests.append(request)
        return replies[min(len(requests), len(replies)) - 1]

    with answering(answer) as port:
        url = f"http://ada:p%40ss@{HOST}:{port}/{{node}}"
        found: Json = epilog.asked(url, "4711", 3600.0, None, time.monotonic() + wait, "n1")
    return found, requests


def test_a_node_is_asked_for_its_ledger() -> None:
    found, (request,) = asked(GOOD)
    assert found["0"].busy == 900
    assert request.path == "/n1/api/v1/jobs/slurm-4711"
    assert request.headers["Authorization"] == "Basic YWRhOnBAc3M="


def test_it_waits_until_the_job_has_ended_there_too() -> None:
    _, requests = asked(RUNNING, FRESH, GOOD, wait=30.0)
    assert len(requests) == 3


def test_it_takes_what_there_is_when_time_is_up() -> None:
    found, _ = asked(RUNNING)
    assert found["0"].lost["unallocated"] == 0


@pytest.mark.parametrize("reply", OTHERS.values(), ids=OTHERS)
def test_other_answers_are_none(reply: Reply) -> None:
    found, requests = asked(reply)
    assert found == {}
    assert len(requests) == 1


def test_nobody_at_home() -> None:
    for url in (f"http://{HOST}:1", "http://nowhere.invalid"):
        assert epilog.asked(url, "4711", 3600.0, None, time.monotonic(), "n1") == {}


def test_it_is_complete_in_itself() -> None:
    """As it is copied: no package beside it, no argument but what Slurm gives."""
    command = [sys.executable, "-I", "-S", f"{EPILOG}", "--job", "x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "epilog.py: error: --job: give the number of a job"
    done = subprocess.run(
        [*command[:-1], "5"], capture_output=True, text=True, check=False, env={"PATH": "/nowhere"}
    )
    assert done.returncode == 1
    assert done.stderr.startswith("sacct: ")
    assert done.stderr.count("\n") == 1
