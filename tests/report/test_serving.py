"""`report` of jobs that serve, from a real Prometheus: tokens, demand and replicas."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.report.bill import Served
from gpu_bottleneck_exporter.report.prometheus import (
    BUSY_SERIES,
    SERVED_SERIES,
    STALL_SERIES,
    TOKENS_SERIES,
)
from report.documents import document, gpu, job, nodes
from support.command import run
from support.prometheus import Prometheus, on_data, write_past

HOURS = 2
CHAT = "pod llm/chat-7c9d8f6b5-x2x90"
SHARES = {CHAT: 0.75, "pod llm/embed-0": 0.0, "pod llm/triton-0": 0.5}
"""Engines, and the share of their time without a request."""
TOKENS = {CHAT: {"prefill": 3e9, "decode": 6e5}, "pod llm/embed-0": {"prefill": 1200.0}}
"""Tokens of ten minutes; Triton counts none."""
REPLICAS = {"chat": (6, 2), "embed": (1, 1), "gone": (0, 0)}
"""Replicas, and those that the week needed; of none there is nothing to report."""


@cache
def now() -> int:
    """The minute at which the first test of this module begins."""
    return int(time.time()) // 60 * 60


def series(name: str, labels: dict[str, str], value: float, every: int) -> Iterator[str]:
    """A constant series up to the present."""
    of = ",".join(f"{label}={json.dumps(text)}" for label, text in labels.items())
    for at in range(now() - HOURS * 3600 + every, now() + 1, every):
        yield f"{name}{{{of}}} {value} {at}\n"


def past() -> Iterator[str]:
    """Engines on a GPU each, and a job that trains on one."""
    for name in (*SHARES, "pod llm/train-0"):
        namespace, _, pod = name.removeprefix("pod ").partition("/")
        owner = {"workload_namespace": namespace, "workload_pod": pod, "user": "root"}
        of_owner = {**owner, "workload_owner": "llm"}
        billed = {**of_owner, "workload": name}
        place = {"job": "gpu", "instance": f"{pod}:10170", "gpu": "0", "uuid": f"GPU-{pod}"}
        yield from series("helper:job_owner:info", of_owner, 1, 60)
        yield from series("gpu:owner:info", {**place, **owner, "workload": name}, 1, 60)
        yield from series("gpu:busy:ratio_rate5m", place, 0.5, 60)
        yield from series("gpu:stall:ratio_rate5m", {**place, "waiting_on": "requests"}, 0.5, 60)
        yield from series(BUSY_SERIES, billed, 150, 300)
        yield from series(STALL_SERIES, {**billed, "waiting_on": "requests"}, 150, 300)
        # What is sent under another phase is no token.
        for phase, tokens in (TOKENS.get(name, {}) | {"evil": 1e9}).items():
            yield from series(TOKENS_SERIES, {**billed, "phase": phase}, tokens, 600)
        if name in SHARES:
            for demand, share in (("none", SHARES[name]), ("some", 1 - SHARES[name])):
                yield from series(SERVED_SERIES, {**billed, "demand": demand}, 600 * share, 600)
    for name, values in REPLICAS.items():
        of = {"namespace": "llm", "deployment": name}
        for kind, value in zip(("count", "needed"), values, strict=True):
            # Recorded every ten minutes, and not just now.
            kept = [*series(f"serving:replicas:{kind}", of, value, 60)]
            yield from kept[: -8 if kind == "needed" else None]
    for name, pod in (("chat", CHAT.partition("/")[2]), ("embed", "embed-0"), ("gone", "triton-0")):
        of = {"namespace": "llm", "deployment": name, "pod": pod}
        yield from series("helper:serving_replica:requests", of, 0, 60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    write_past(folder, past())
    with on_data(folder, {}) as found:
        yield found


def report(folder: Path, server: Prometheus, *arguments: str) -> subprocess.CompletedProcess[str]:
    url = f"127.0.0.1:{server.port}"
    done = run(folder, "report", "--prometheus", url, "--since", "3h", *arguments)
    assert done.returncode == 0, done.stderr
    return done


def test_engines_of_an_owner_with_their_tokens_and_demand(
    tmp_path: Path, server: Prometheus
) -> None:
    found = json.loads(report(tmp_path, server, "--owner", "llm", "--format", "json").stdout)
    served = {row["id"]: row["served"] for row in found["jobs"]}
    assert served.pop("pod llm/train-0") is None
    assert {name: row["prompt_tokens"] for name, row in served.items()} == {
        CHAT: pytest.approx(36e9),
        "pod llm/embed-0": pytest.approx(14400),
        "pod llm/triton-0": None,
    }
    assert served["pod llm/embed-0"]["generated_tokens"] is None
    assert served["pod llm/triton-0"]["tokens_per_gpu_hour"] is None
    for name, share in SHARES.items():
        assert served[name]["gpu_hours"] == pytest.approx(HOURS)
        assert served[name]["gpu_hours_without_demand"] == pytest.approx(HOURS * share)
    (owner,) = found["owners"]
    assert owner["served"] == found["total"]["served"]
    assert owner["served"]["gpu_hours"] == pytest.approx(3 * HOURS)
    # Two of the three engines count tokens.
    tokens = 12 * (3e9 + 6e5 + 1200)
    assert owner["served"]["tokens_per_gpu_hour"] == pytest.approx(tokens / (2 * HOURS))
    deployments = [
        (of["name"], of["replicas"], of["replicas_needed"]) for of in found["deployments"]
    ]
    assert deployments == [("llm/chat", 6, 2), ("llm/embed", 1, 1)]


CHAT_LINES = (
    "Served 36 billion prompt and 7.2 million generated tokens, 18 billion per GPU-hour",
    "GPU-hours without demand: 1.5 of 2 (75 %)",
    "Deployment llm/chat: 2 of 6 replicas would do",
)
WORDS = "Served", "tokens", "demand", "replica"


@pytest.mark.parametrize("layout", ["text", "html", "markdown"])
def test_one_engine_in_words(tmp_path: Path, server: Prometheus, layout: str) -> None:
    done = report(tmp_path, server, "--pod", CHAT[4:], "--format", layout)
    plain = done.stdout.replace("\\", "")
    assert [line for line in CHAT_LINES if line not in plain] == []
    other = report(tmp_path, server, "--pod", "llm/train-0", "--format", layout).stdout
    assert "llm/train" in other
    assert [word for word in WORDS if word in other] == []


def test_an_engine_without_counters_has_only_its_time(tmp_path: Path, server: Prometheus) -> None:
    told = report(tmp_path, server, "--pod", "llm/triton-0").stdout
    assert "GPU-hours without demand: 1 of 2 (50 %)" in told
    assert not re.search("Served|token|replica", told)


def test_one_gpu_has_no_tokens_of_its_own(tmp_path: Path, server: Prometheus) -> None:
    told = report(tmp_path, server, "--gpu", f"{CHAT.partition('/')[2]}/0").stdout
    assert told.startswith("Pod llm/chat")
    assert not re.search("Served|demand", told)


def test_several_engines_in_columns(tmp_path: Path, server: Prometheus) -> None:
    jobs, owners, deployments = (
        part.splitlines() for part in report(tmp_path, server).stdout.split("\n\n")[1:]
    )
    columns = "Prompt tokens  +Generated tokens  +Tokens per GPU-hour  +GPU-hours without demand"
    assert re.search(columns, jobs[0])
    assert re.search(columns, owners[0])
    (trains,) = (line for line in jobs if "train-0" in line)
    assert re.split("  +", trains) == ["llm/train-0", "50 %", "1", "requests 50 %", "llm"]
    assert [re.split("  +", line) for line in deployments] == [
        ["Deployment", "Replicas"],
        ["llm/chat", "2 of 6 replicas would do"],
        ["llm/embed", "the last week needed its only replica"],
    ]


def test_a_rate_over_less_than_a_second_is_none() -> None:
    """As it may be infinite, which JSON lacks."""
    assert Served({"decode": 1.0}, 1e-320, 1e-320).tokens_per_gpu_hour is None


def test_a_ledger_knows_nothing_of_tokens(tmp_path: Path) -> None:
    with nodes({"a": document("node7", job("slurm-1", gpu(0, requests=0.5)))}) as urls:
        done = run(tmp_path, "report", "--url", urls["a"], "--format", "json")
    found = json.loads(done.stdout)
    assert (found["jobs"][0]["served"], found["total"]["served"]) == (None, None)
    assert found["deployments"] == []
