"""`report` as a user runs it, against real servers that answer, hang, refuse and send half."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from report.documents import HOSTILE, Fields, document, example, gpu, job, nodes
from support.beside import Reply
from support.command import ANY_PORT, Server, run, serving
from support.daemon import free_port
from support.waiting import until


def report(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "report", *arguments)


@contextmanager
def hanging(said: bytes = b"") -> Iterator[str]:
    """A server that says this, then keeps the connection open; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        values = []

        def work() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                client.recv(65536)
                client.sendall(said)
                values.append(client)

        threading.Thread(target=work, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for client in values:
            client.close()


def test_a_job_on_two_nodes(tmp_path: Path) -> None:
    seven, eight = example()
    with nodes({"a": seven, "b": eight}) as urls:
        (tmp_path / "nodes").write_text(f"# ours\n{urls['a']}\n{urls['b']}/metrics  # theirs\n\n")
        cost = ("--cost-per-gpu-hour", "2.5")
        done = report(tmp_path, "--job", "4711", "--nodes", "nodes", *cost)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, third, *rest = done.stdout.splitlines()
    assert first.startswith("Job 4711 (ada, 8 GPUs on 2 nodes, 3 h 12 min)")
    assert first.endswith("busy 41 %")
    assert second.split() == ["█" * 15, "lost", "15.1", "GPU-hours", "=", "37.8", "€"]
    assert " ".join(third.split()) == "worker_cpu 38 %, asleep 14 %, host_code 5 %, unknown 2 %"
    text = "\n".join(rest)
    assert "GPU 3 on node7 was the slowest: worker_cpu 52 % (the others 36 %)" in text
    assert (
        "Do first: Use 6 loader workers (now 2) on all ranks. "
        "This would return about 9.73 GPU-hours." in text
    )


def test_each_missing_ledger_is_a_line_and_the_rest_is_reported(tmp_path: Path) -> None:
    good, _ = example()
    half = b"HTTP/1.0 200 OK\r\nContent-Length: 999\r\n\r\n{"
    fields: dict[str, Fields | Reply] = {
        "good": good,
        "newer": document("newer", version=2),
        "old": Reply(status=404),
        "html": Reply(b"<!DOCTYPE html>"),
        "cut": Reply(half[-1:], headers={"Content-Length": "999", "Connection": "close"}),
    }
    nobody = f"http://127.0.0.1:{free_port()}"
    with nodes(fields) as urls, hanging() as silent, hanging(half) as slow:
        addresses = [*urls.values(), nobody, silent, slow]
        values = [word for url in addresses for word in ("--url", url)]
        done = report(tmp_path, "--deadline", "2", "--format", "json", *values)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    for word in (
        "its version is 2, not 1",
        "answers 404",
        "/html/api/v1/jobs serves no ledger",
        "the answer ends too early",
        "connection refused",
    ):
        assert sum(word in line for line in lines) == 1, (word, lines)
    assert sum("no answer within 2 s" in line for line in lines) == 2
    assert len(lines) == 7
    result = json.loads(done.stdout)
    assert [item["id"] for item in result["jobs"]] == ["slurm-4711"]
    first = result["jobs"][0]["gpus"][0]
    assert (first["energy_joules"], first["memory_peak_bytes"]) == (3.6e6, 52 * 2**30)
    assert first["score"]["busy_ratio"] == 0.71
    assert sorted(result["missing"]) == sorted(lines)


@pytest.mark.parametrize("layout", ["text", "markdown", "json"])
def test_hostile_names_are_inert(tmp_path: Path, layout: str) -> None:
    fields = {"user": HOSTILE, "namespace": HOSTILE, "pod": HOSTILE, "\x1b[0m<b>": HOSTILE}
    rank = gpu(0, storage=0.5, **{"<script>_": 0.1})
    rank["model"] = rank["gpu"] = rank["mig"] = HOSTILE
    bad = job(HOSTILE, rank, **fields)
    with nodes({"a": document(HOSTILE, bad, job("slurm-1", gpu(1, storage=0.5)))}) as urls:
        done = report(tmp_path, "--url", urls["a"], "--format", layout)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "\u202e" not in done.stdout
    if layout != "json":
        assert max(map(len, done.stdout.splitlines())) < 1500
        assert len(done.stdout.splitlines()) < 40
    if layout == "markdown":
        assert "\\<script\\>" in done.stdout
        assert "<script" not in done.stdout.replace("\\<script", "")


def test_several_jobs_and_an_owner(tmp_path: Path) -> None:
    values = [
        job("slurm-1", gpu(0, hours=1, storage=0.5)),
        job("slurm-2", gpu(1, hours=10, worker_cpu=0.5)),
        job("slurm-3", gpu(2, hours=100, asleep=1.0), user="bob"),
    ]
    with nodes({"a": document("node7", *values)}) as urls:
        every = report(tmp_path, "--url", urls["a"], "--limit", "2")
        hers = report(tmp_path, "--url", urls["a"], "--owner", "ada", "--format", "json")
        wrong = report(tmp_path, "--url", urls["a"], "--owner", "adda", "--since", "2d")
    summary = "3 jobs, busy 5 %, lost 106 GPU-hours: asleep 90 %, worker_cpu 5 %"
    assert every.stdout.splitlines()[0] == summary
    assert every.stdout.index("slurm-3") < every.stdout.index("\n2 ")
    assert "and 1 more" in every.stdout
    assert [item["id"] for item in json.loads(hers.stdout)["jobs"]] == ["slurm-2", "slurm-1"]
    assert wrong.returncode == 2
    result = re.sub(r"127\.0\.0\.1:\d+", "node7", wrong.stderr)
    assert re.sub("since .* UTC", "since then", result) == (
        "gpu-bottleneck-exporter: There is no owner 'adda' in the ledger of node7 since then "
        "(see --since). Did you mean 'ada'?\n"
    )


def test_lines_that_are_no_address_cost_no_other_line(tmp_path: Path) -> None:
    with nodes({"a": document("node7", job("slurm-1", gpu(0)))}) as urls:
        (tmp_path / "nodes").write_text(f"\ufeff# ours\na b\n{urls['a']}\nhttp://\n")
        done = report(tmp_path, "--nodes", "nodes", "--job", "1")
    assert done.returncode == 1
    assert done.stdout.startswith("Job 1 ")
    assert done.stderr.splitlines() == [
        "nodes:2: 'a b' is not like http://node7:10170.",
        "nodes:4: 'http://' is not like http://node7:10170.",
    ]


def test_a_job_without_a_name_is_known_by_its_program_and_claims(tmp_path: Path) -> None:
    of = {"command": "train.py", "claims": {"WANDB_RUN_ID": "3k2j"}}
    mine, other = (job(f"user-ada-{n}-1", gpu(n), user="ada") | of for n in (1, 2))
    with nodes({"a": document("node7", mine, other), "b": document("node7", mine)}) as urls:
        every = report(tmp_path, "--url", urls["a"])
        single = report(tmp_path, "--url", urls["b"])
        page = report(tmp_path, "--url", urls["b"], "--format", "html")
    for row in every.stdout.splitlines()[3:5]:
        assert re.search(r"user-ada-\d-1 .* train\.py  WANDB_RUN_ID=3k2j", row)
    assert single.stdout.startswith("Job user-ada-1-1 (ada, train.py, 1 GPU,")
    assert "\n  Claims: WANDB_RUN_ID=3k2j\n" in single.stdout
    assert "Claims: WANDB_RUN_ID=3k2j" in page.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--since 7x", "'7x' is not a valid"),
        ("--nodes empty", "There is no address"),
        ("--nodes wrong", "wrong:2: 'a b' is not like"),
        ("--nodes none", "No such file"),
        ("--url http://", "is not like"),
        ("--format pdf", "'pdf' is not one of"),
        ("--cost-per-gpu-hour much", "'much' is not a valid"),
        ("--jobs 1", "--job"),
    ],
)
def test_wrong_input_is_one_line(tmp_path: Path, arguments: str, told: str) -> None:
    (tmp_path / "empty").write_text("# nothing\n")
    (tmp_path / "wrong").write_text("# ours\na b\n")
    done = report(tmp_path, *arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_ledger_of_a_real_exporter(tmp_path: Path) -> None:
    with serving(tmp_path, "demo", *ANY_PORT) as server:
        until(lambda: len(asked(tmp_path, server)["jobs"]) > 1, "jobs in its ledger")
        result = asked(tmp_path, server)
    assert result["missing"] == []
    for item in result["jobs"]:
        shares = [item["busy_ratio"], *item["stall_ratios"].values()]
        assert sum(shares) == pytest.approx(1)
        assert item["end_seconds"] is None
        assert all(gpu["timeline"]["spent_seconds"]["busy"] for gpu in item["gpus"])


def asked(folder: Path, server: Server) -> dict[str, Any]:
    done = report(folder, "--url", server.url, "--format", "json")
    assert done.returncode == 0, done.stderr
    fields: dict[str, Any] = json.loads(done.stdout)
    return fields
