"""Summaries of the epilog from ledgers, and from exporters that answer anything else."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slurm.script import EPILOG, GIB, START, decoded, epilog, gpu, job, ledger, summarized
from support.beside import HOST, Reply, Request, answering
from support.talking import LONG, SLOW, Line, talking
from support.waiting import PATIENCE_SECONDS, until

README = EPILOG.parents[1] / "README.md"
Json = dict[str, Any]
MOST = 5000
CPUS = {"cpus": 8, "total_time": 57.5, "used_memory": 3 * GIB, "total_memory": 64 * GIB}
BEFORE = {"nodes": {"n1": CPUS, "n2": CPUS}, "total_time": 3600, "gpus": 1}


def node(*gpus: Json, **changed: object) -> Json:
    """The summary of one node."""
    document = decoded(summarized(job(**changed), ledger(*gpus)))
    result: Json = document["nodes"]["n1"]
    return result


def test_it_has_the_keys_of_jobstats() -> None:
    document = decoded(summarized(job(gpus=2), ledger(gpu("0"), gpu("3"))))
    both = dict.fromkeys("03")
    assert document["total_time"] == 3600
    assert document["gpus"] == 2
    assert document["nodes"] == {
        "n1": {
            "gpu_utilization": {**both, "0": 25.0, "3": 25.0},
            "gpu_used_memory": pytest.approx({**both, "0": 20 * GIB, "3": 20 * GIB}, rel=0.001),
            "gpu_total_memory": pytest.approx({**both, "0": 80 * GIB, "3": 80 * GIB}, rel=0.001),
        }
    }


def test_causes_have_a_separate_key() -> None:
    change = {"knob": "num_workers", "current_value": 2.0, "value": 6.0, "text": "\x1b[31m"}
    gpus = (gpu("0"), gpu("1", busy_seconds=0.0, recommendation=change))
    result = decoded(summarized(job(gpus=4), ledger(*gpus)))["gpu_bottleneck"]
    assert result == {
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


def test_pauses_between_processes_are_not_used_either() -> None:
    """Half an hour of work, half an hour without a process, and another half hour of work."""
    row = gpu(
        end_seconds=START + 5400,
        pause_seconds=1800.0,
        observed_seconds=3600.0,
        busy_seconds=2700.0,
        stall_seconds={"asleep": 900.0},
    )
    document = decoded(summarized(job(seconds=5400.0, end=START + 5400), ledger(row)))
    assert document["nodes"]["n1"]["gpu_utilization"] == {"0": 50.0}
    assert document["gpu_bottleneck"]["causes"] == {"unallocated": 0.333, "asleep": 0.167}
    assert document["gpu_bottleneck"]["lost_gpu_hours"] == 0.75


def test_a_gpu_that_others_held_too_is_judged_by_its_part() -> None:
    half = gpu(observed_seconds=1800.0, busy_seconds=450.0, stall_seconds={"peer": 1350.0})
    assert node(half)["gpu_utilization"] == {"0": 25.0}


def test_cpu_figures_of_jobstats_are_kept() -> None:
    comment = summarized(job(comment=epilog.encoded(BEFORE)), ledger(gpu()))
    nodes = decoded(comment)["nodes"]
    assert nodes["n2"] == CPUS
    assert CPUS.items() <= nodes["n1"].items()
    assert nodes["n1"]["gpu_utilization"] == {"0": 25.0}


def test_without_a_ledger_it_keeps_the_comment_or_reports_so() -> None:
    comment = epilog.encoded(BEFORE)
    assert summarized(job(comment=comment)) == comment
    assert summarized(job(comment="JS1:Short")) == "JS1:None"
    assert summarized(job(), ledger()) == "JS1:None"
    assert summarized(job(seconds=59.0)) == "JS1:Short"
    # Where there are figures, they are told of a job of seconds too.
    assert decoded(summarized(job(seconds=5.0), ledger(gpu())))


def test_unknown_values_are_left_out() -> None:
    """Readers divide by the total, and take what is missing there for zero."""
    unknown = {name: row for name, row in gpu("1").items() if not name.startswith("memory_")}
    assert node(gpu("0"), unknown) == {
        "gpu_utilization": {"0": 25.0, "1": 25.0},
        "gpu_used_memory": pytest.approx({"0": 20 * GIB}, rel=0.001),
        "gpu_total_memory": pytest.approx({"0": 80 * GIB}, rel=0.001),
    }


def test_parts_of_a_gpu_are_distinct() -> None:
    uuids = [f"MIG-{part * 8}-aaaa-1111-1111-111111111111" for part in "12"]
    result = node(*(gpu("1", uuid=uuid, mig="1g.10gb") for uuid in uuids))
    assert set(result["gpu_utilization"]) == {"1:MIG-11111111", "1:MIG-22222222"}


NONSENSE: list[object] = [math.nan, math.inf, -1, True, "5", None, [], {}, 10**400]
FIELDS = (
    *("observed_seconds", "busy_seconds", "stall_seconds", "start_seconds"),
    *("gpu", "memory_peak_bytes", "memory_total_bytes", "pause_seconds"),
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
    """Evaluation by jobstats: the condition, then the likeness of an f-string."""
    snippets = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    (snippet,) = (text for text in snippets if "NOTES" in text)
    config = ModuleType("config")
    config.NOTES = []  # type: ignore[attr-defined]
    exec(snippet, vars(config))  # noqa: S102 - our own document
    ((condition, note, _),) = config.NOTES
    change = {"knob": "num_workers", "current_value": 2.0, "value": 6.0}
    comment = summarized(job(), ledger(gpu(recommendation=change)))
    values = []
    for data in (comment, "JS1:None", epilog.encoded(BEFORE), None):
        names = {"c": config, "self": Namespace(js=Namespace(data=data))}
        if eval(condition, names):  # noqa: S307 - as jobstats does
            values.append(eval(note, names))  # noqa: S307
    text = "Its GPUs lost 0.8 GPU-hours: worker_cpu 50%, host_code 17%, asleep 7%. "
    assert values == [text + "First change num_workers from 2 to 6."]


# --- Asking ----------------------------------------------------------------------------------
SETTLED = START + 3605
"""When `ledger` was asked."""
GOOD = Reply(json.dumps(ledger(gpu())).encode())
RUNNING = Reply(json.dumps(ledger(gpu(end_seconds=None), running=True)).encode())
FRESH = Reply(json.dumps({**ledger(gpu()), "time_seconds": START + 3601}).encode())
UNKNOWN = Reply(b"unknown job", 404)
OTHERS = {
    "broken": Reply(b"no", 500),
    "moved": Reply(b"", 302, {"Location": "/good/api/v1/jobs/slurm-4711"}),
    "huge": Reply(b" " * (2**20) + GOOD.body),
    "text": Reply(b"hello"),
    "deep": Reply(b"[" * 100_000),
    "digits": Reply(b"9" * 10_000),
    "list": Reply(b"[]"),
    "other": Reply(b'{"job": 5}'),
    "timeless": Reply(b'{"job": {"end_seconds": 5}}'),
    "late": Reply(json.dumps({**ledger(gpu()), "time_seconds": math.nan}).encode()),
    "rows": Reply(json.dumps({**ledger(), "job": {"end_seconds": START, "gpus": [None]}}).encode()),
}


def now(**changed: object) -> Any:  # noqa: ANN401 - see `job`
    """The job of `ledger`, by a controller's clock that is years ahead of the node's."""
    ahead = time.time() - SETTLED
    return job(**{"start": START + ahead, "end": START + 3600 + ahead, **changed})


def gathered(url: str, *nodes: str, seconds: float = PATIENCE_SECONDS, **changed: object) -> Json:
    """Summary of the epilog from the answers of nodes."""
    ask = partial(epilog.asked, url, "4711", now(**changed), None)
    summary = epilog.gathered(nodes, ask, time.monotonic() + seconds)
    return {node: gpus for node, gpus in summary.items() if gpus}


def asked(*replies: Reply, seconds: float = PATIENCE_SECONDS) -> tuple[Json, list[Request]]:
    """Summary of the epilog from a node's replies, the last one repeated, and its requests."""
    requests: list[Request] = []

    def answer(request: Request) -> Reply:
        requests.append(request)
        return replies[min(len(requests), len(replies)) - 1]

    with answering(answer) as port:
        url = f"http://ada:p%40ss@{HOST}:{port}/{{node}}"
        summary = gathered(url, "n1", seconds=seconds)
    return summary.get("n1", {}), requests


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Messages to syslog."""
    lines: list[str] = []
    monkeypatch.setattr(epilog.syslog, "syslog", lambda *said: lines.append(said[-1]))
    return lines


def test_a_node_is_asked_for_its_ledger() -> None:
    result, (request,) = asked(GOOD)
    assert result["0"].busy == 900
    assert request.path == "/n1/api/v1/jobs/slurm-4711"
    assert request.headers["Authorization"] == "Basic YWRhOnBAc3M="


def test_it_waits_until_the_job_has_ended_there_too() -> None:
    _, requests = asked(UNKNOWN, RUNNING, FRESH, GOOD)
    assert len(requests) == 4


def test_it_takes_the_present_replies_when_time_is_up() -> None:
    result, _ = asked(RUNNING, seconds=5)
    assert result["0"].lost["unallocated"] == 0
    result, _ = asked(RUNNING, OTHERS["broken"])
    assert result["0"].busy == 900


@pytest.mark.parametrize("reply", OTHERS.values(), ids=OTHERS)
def test_other_answers_are_none(reply: Reply, logged: list[str]) -> None:
    result, requests = asked(reply)
    assert result == {}
    assert len(requests) == 1
    (line,) = logged
    assert line.startswith("n1: ")
    assert line.isprintable()


def test_a_job_that_no_exporter_knows_has_no_figures() -> None:
    assert asked(UNKNOWN, seconds=2)[0] == {}


def test_no_exporter_responds() -> None:
    assert gathered(f"http://{HOST}:1", "n1") == {}
    assert gathered("http://nowhere.invalid", "n1") == {}


@pytest.mark.parametrize("talk", [*LONG.values(), SLOW["nothing"], SLOW["trailer"]])
def test_an_answer_that_never_ends_costs_its_node(
    talk: Callable[[Line], None], monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    monkeypatch.setattr(epilog, "_AT_ONCE", 1)  # the others have to wait for it
    with answering(lambda _: GOOD) as port, talking(talk) as (bad, lines):
        nodes = [f"{HOST}:{bad}", *(f"{HOST}:{port}/{number}" for number in range(3))]
        assert [*gathered("http://{node}", *nodes, seconds=6)] == nodes[1:]
        assert sum(line.sent_bytes for line in lines) < 2**25
        assert {line.partition(": ")[0] for line in logged} <= {nodes[0]}
    until(lambda: not any("(work)" in thread.name for thread in threading.enumerate()), "their end")


# --- Runs ------------------------------------------------------------------------------------
EARLIER = gpu(
    start_seconds=START - 4000,
    end_seconds=START - 300,
    observed_seconds=3700.0,
    busy_seconds=3700.0,
    stall_seconds={},
)


def reply(*gpus: Json, **fields: object) -> Reply:
    return Reply(json.dumps({**ledger(*gpus), **fields}).encode())


def test_a_gpu_of_an_earlier_run_does_not_count() -> None:
    result, _ = asked(reply({**EARLIER, "gpu": "1"}, gpu()))
    assert [*result] == ["0"]
    comment = epilog.summarized(job(gpus=2), {"n1": result})
    assert decoded(comment)["nodes"]["n1"]["gpu_utilization"] == {"0": 25.0}
    assert decoded(comment)["gpu_bottleneck"]["gpus_seen"] == 1


def test_a_gpu_of_a_later_run_does_not_count() -> None:
    later = gpu(start_seconds=START + 3604, end_seconds=None, observed_seconds=1.0)
    assert asked(reply(later), seconds=2)[0] == {}


@pytest.mark.parametrize(
    ("start", "end", "is_of_run"),
    [
        (-600, -1, False),
        # An earlier run ended as the accounting rounds, or a moment ago by the node's clock.
        (-600, 1, False),
        (-600, 3, None),
        (-600, None, None),
        (-1, 5, True),
        (0, None, True),
        (-1, 0, False),
        (3601, 3700, True),
        (3603, 3700, False),
    ],
)
def test_which_run_a_gpu_is_of(start: float, end: float | None, is_of_run: bool | None) -> None:  # noqa: FBT001
    ends = end if end is None else START + end
    row = gpu(start_seconds=START + start, end_seconds=ends)
    if is_of_run is None:
        with pytest.raises(ValueError, match="earlier run"):
            epilog.is_of_run(row, job(), 0.0)
    else:
        assert epilog.is_of_run(row, job(), 0.0) == is_of_run


def test_a_record_of_two_runs_costs_its_node(logged: list[str]) -> None:
    both = gpu(
        start_seconds=START - 4000, observed_seconds=7300.0, busy_seconds=4060.0, stall_seconds={}
    )
    pages = {"/n1": reply(both), "/n2": GOOD}
    with answering(lambda request: pages[request.path[:3]]) as port:
        summary = gathered(f"http://{HOST}:{port}/{{node}}", "n1", "n2")
    assert [*summary] == ["n2"]
    assert [line for line in logged if line.startswith("n1: ") and "earlier run" in line]


@pytest.mark.parametrize(
    ("seconds", "rows", "hours"),
    [
        (3600.0, [gpu()], 0.75),
        # Its processes lived on for a while after its end, or it was suspended.
        (3000.0, [gpu()], 0.75 * 3000 / 3600),
        # It held two GPUs, and was given one.
        (3600.0, [gpu("0"), gpu("1")], 0.75),
    ],
)
def test_lost_gpu_hours_are_bounded_by_the_allocation(
    seconds: float, rows: list[Json], hours: float
) -> None:
    document = decoded(summarized(job(seconds=seconds), ledger(*rows)))
    assert document["gpu_bottleneck"]["lost_gpu_hours"] == pytest.approx(hours, abs=0.001)
    assert document["gpu_bottleneck"]["busy"] == 0.25
    assert {*document["nodes"]["n1"]["gpu_utilization"].values()} == {25.0}
    assert sum(document["gpu_bottleneck"]["causes"].values()) < 1


def test_the_comment_of_an_earlier_run_is_not_kept_for_this_one() -> None:
    first = summarized(job(seconds=1000.0, start=START - 2000, end=START - 1000), ledger(gpu()))
    assert summarized(job(comment=first)) == "JS1:None"
    nodes = {"n2": dict([epilog.gpu_of(gpu(), 3600.0, SETTLED)])}
    assert [*decoded(epilog.summarized(job(comment=first), nodes))["nodes"]] == ["n2"]


# --- As Slurm runs it ------------------------------------------------------------------------
SLURM = {
    "sacct": """
case " $* " in *" -o JobIDRaw,JobID,Cluster,ElapsedRaw,Start,End,AllocTRES,NodeList,AdminComment "*)
    cat "$HERE/rows" ;; *) exit 1 ;; esac""",
    "scontrol": """
[ "$1 $2" = "show hostnames" ] && echo "$3" | tr , "\\n" """,
    "sacctmgr": """
printf "%s\\n" "$@" > "$HERE/stored" """,
}


@dataclass
class Slurm:
    """Slurm's programs in a folder."""

    folder: Path

    def __post_init__(self) -> None:
        for name, script in SLURM.items():
            self.change(name, script)

    def change(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\nHERE='{self.folder}'\n{script}\n")
        (self.folder / name).chmod(0o755)

    def account(self, start: str, end: str, nodes: str, seconds: int = 3600, gpus: int = 1) -> None:
        text = f"cpu=4,gres/gpu={gpus},node=1"
        row = f"4711|4711|della|{seconds}|{start}|{end}|{text}|{nodes}|"
        (self.folder / "rows").write_text(f"4712|a row of another job\n\n{row}\n")

    def run(self, url: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-S", f"{EPILOG}", f"--url={url}", *options]
        variables = {"PATH": f"{self.folder}:/usr/bin:/bin", "SLURM_JOB_ID": "4711"}
        return subprocess.run(
            command,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    @property
    def stored(self) -> Json:
        """The summary that sacctmgr was to store."""
        (line,) = (self.folder / "stored").read_text().splitlines()[-1:]
        return decoded(line.removeprefix("AdminComment="))


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def moved(seconds: float, *gpus: Json) -> bytes:
    """A ledger as of now, with a clock that is `seconds` ahead."""
    ahead = time.time() - SETTLED + seconds
    times = ("start_seconds", "end_seconds")
    rows = [{**row, **{name: row[name] + ahead for name in times}} for row in gpus]
    whole = ledger(*rows)
    whole["job"]["end_seconds"] += ahead
    return json.dumps({**whole, "time_seconds": SETTLED + ahead}).encode()


@pytest.mark.parametrize("of_slurm", ["%s", "standard"])
def test_a_requeued_job_is_summed_up_over_its_last_run(slurm: Slurm, of_slurm: str) -> None:
    """The node's clock is five minutes ahead, and its ledger has an earlier run's GPU, too."""
    start = time.time() - SETTLED + START
    began, ended = (datetime.fromtimestamp(int(at)) for at in (start, start + 3600))  # noqa: DTZ006
    if of_slurm == "standard":
        slurm.account(began.isoformat(), ended.isoformat(), "n1,n2")
    else:
        slurm.account(began.strftime("%s"), ended.strftime("%s"), "n1,n2")
    last = gpu(busy_seconds=360.0, stall_seconds={"asleep": 3240.0})
    with answering(
        lambda request: Reply(
            moved(300, {**EARLIER, "gpu": "1"}, last)
            if request.path.startswith("/n1")
            else moved(-300, EARLIER)
        )
    ) as port:
        done = slurm.run(f"http://{HOST}:{port}/{{node}}")
    assert (done.returncode, done.stderr) == (0, "")
    assert slurm.stored["nodes"]["n1"]["gpu_utilization"] == {"0": pytest.approx(10, abs=0.1)}
    assert [*slurm.stored["nodes"]] == ["n1"]
    assert slurm.stored["gpu_bottleneck"]["lost_gpu_hours"] == pytest.approx(0.9, abs=0.01)
    assert slurm.stored["gpu_bottleneck"]["busy"] == pytest.approx(0.1, abs=0.01)


MAP = "slurmd-0 {host}\n\nslurmd-9 10.0.0.9\na line of words\n"


@pytest.mark.parametrize("command", [False, True])
def test_exporters_are_at_the_addresses_of_a_map(slurm: Slurm, command: bool) -> None:  # noqa: FBT001
    """Slurm's node has the pod's name where slurmd runs in a pod, and the exporter the host's."""
    start = time.time() - SETTLED + START
    slurm.account(f"{int(start)}", f"{int(start + 3600)}", "slurmd-0,n2", gpus=2)
    paths: list[str] = []

    def answer(request: Request) -> Reply:
        paths.append(request.path.partition("/api")[0])
        return Reply(moved(0, gpu()))

    with answering(answer) as port:
        text = MAP.format(host=f"{HOST}:{port}/first")
        if command:
            slurm.change("hosts", f'[ "$*" = "slurmd-0 n2" ] && printf %s "{text}"')
        else:
            (slurm.folder / "hosts").write_text(text)
        slurm.run("http://{node}", f"--exporters={slurm.folder}/hosts")
    assert set(paths) == {"/first"}
    assert [*slurm.stored["nodes"]] == ["slurmd-0"]


def test_a_map_that_is_missing_is_one_line(slurm: Slurm) -> None:
    slurm.account("1", "2", "n1")
    done = slurm.run("http://{node}", "--exporters=/none")
    assert done.returncode == 1
    assert done.stderr.startswith("--exporters: ")
    assert done.stderr.count("\n") == 1


def test_nodes_that_hang_cost_themselves_only(slurm: Slurm) -> None:
    """It ends, although none of them ever does, and stores what the others said."""
    start = time.time() - SETTLED + START
    slow = [*SLOW.values()]
    with ExitStack() as stack:
        good = stack.enter_context(answering(lambda _: Reply(moved(0, gpu()))))
        bad = [stack.enter_context(talking(talk))[0] for talk in slow * 3]
        names = [*(f"{HOST}:{port}" for port in bad), *(f"{HOST}:{good}/{n}" for n in range(200))]
        slurm.account(f"{int(start)}", f"{int(start + 3600)}", ",".join(names), gpus=200)
        slurm.change("sacctmgr", 'printf "%s\\n" "$@" > "$HERE/stored"')
        done = slurm.run("http://{node}", "--wait=30")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(slurm.stored["nodes"]) == 200


@pytest.mark.parametrize("name", SLURM)
def test_a_program_of_slurm_that_hangs_is_one_line(slurm: Slurm, name: str) -> None:
    start = time.time() - SETTLED + START
    slurm.account(f"{int(start)}", f"{int(start + 3600)}", "n1")
    slurm.change(name, "exec sleep 600")
    with answering(lambda _: Reply(moved(0, gpu()))) as port:
        done = slurm.run(f"http://{HOST}:{port}/{{node}}", "--wait=4")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{name}: ")
    assert done.stderr.count("\n") == 1


def test_a_job_that_has_not_ended_is_one_line(slurm: Slurm) -> None:
    slurm.account("Unknown", "Unknown", "None assigned")
    done = slurm.run(f"http://{HOST}:1", "--wait=1")
    assert (done.returncode, done.stderr) == (1, "its end is not in the accounting\n")


@pytest.mark.parametrize("wait", ["0", "-1", "nan", "inf"])
def test_it_takes_no_wait_that_is_none(slurm: Slurm, wait: str) -> None:
    done = slurm.run("http://{node}", f"--wait={wait}")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "epilog.py: error: --wait: give a number of seconds"


def test_it_is_complete_in_itself() -> None:
    """The epilog as copied: no package beside it, no arguments except Slurm's."""
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
