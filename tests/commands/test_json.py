"""`--json`: what programs read, from real processes, and that it is what people are told."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.demo.jobs import GPUS
from gpu_bottleneck_exporter.demo.run import running
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.remedies import (
    AT_WORK,
    MEANINGS,
    MIN_WORKING_RATIO,
    REMEDIES,
)
from support.board import Board
from support.command import run
from support.drivers import Libraries
from support.nodes import node, sharing
from support.states import mixed_state, state

Document = Mapping[str, Any]
REFERENCE = Path(__file__).parents[2] / "exporter/REFERENCE.md"


DEMO = {
    "told": ("diagnose", "8", "--stacks"),
    "diagnosed": ("diagnose", "8s", "--stacks", "--json"),
    "top": ("top", "--json", "--count", "4", "--interval", "3"),
}
"""Commands that watch the same demo at the same time, which burns CPU time as long as it runs."""


@pytest.fixture(scope="module")
def said(
    libraries: Libraries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, str]]:
    """Output of each command; the demo goes on."""
    folder = tmp_path_factory.mktemp("demo")
    with running() as demo, ThreadPoolExecutor() as pool:
        gpus = libraries.variables(demo)
        done = [*pool.map(lambda words: run(folder, *words, **gpus), DEMO.values())]
        assert {(item.returncode, item.stderr) for item in done} == {(0, "")}
        yield dict(zip(DEMO, (item.stdout for item in done), strict=True))


def documents(text: str) -> list[Document]:
    return [json.loads(line) for line in text.splitlines()]


def documented(table: str) -> set[str]:
    """The documented fields of a JSON document, in the line that starts with `table`."""
    in_brackets = re.compile(r"\([^)]*\)")
    section = REFERENCE.read_text().partition("\n## JSON output\n")[2].partition("\n## ")[0]
    (line,) = (line for line in section.splitlines() if line.startswith(f"- {table}: "))
    return set(re.findall(r"`(\w+)`", in_brackets.sub("", line.removeprefix(f"- {table}: "))))


def test_check_has_the_same_content_as_text(
    make_board: Callable[..., Board], libraries: Libraries, tmp_path: Path
) -> None:
    board = make_board(gpus=[H100, H100, H100])
    board.gpus[0].record.device_result = pynvml.NVML_ERROR_RESET_REQUIRED
    for gpu in (1, 2):
        board.gpus[gpu].fail("DeviceGetTotalEnergyConsumption", pynvml.NVML_ERROR_NOT_SUPPORTED)
        board.gpus[gpu].fail("DeviceGetPcieReplayCounter", pynvml.NVML_ERROR_TIMEOUT)
    gpus = libraries.variables(board)
    outcome = run(tmp_path, "check", "-v", **gpus)
    result = run(tmp_path, "check", "--json", **gpus)
    (document,) = documents(result.stdout)
    assert (outcome.returncode, result.returncode) == (1, 1)
    assert document["status"] == 1
    lines = [line for gap in document["gaps"] for line in _lines(gap)]
    gaps = outcome.stdout.splitlines()
    assert lines == [line for line in gaps if line.startswith(("gap ", "  remedy "))]
    where = {gap["subject"]: gap["where"] for gap in document["gaps"]}
    assert {"gpu 0": ["gpu 0"], "energy": ["gpu 1", "gpu 2"]}.items() <= where.items()
    assert "collector link" in where
    signals = re.findall(r"^  (yes|no ) +(\w+)$", outcome.stdout, re.MULTILINE)
    assert document["signals"] == {name: word == "yes" for word, name in signals}
    assert [(gpu["gpu"], gpu["up"]) for gpu in document["gpus"]] == [
        *(("0", False), ("1", True), ("2", True))
    ]
    assert all(gpu["uuid"] in outcome.stdout for gpu in document["gpus"])
    assert document["driver"]["version"] in outcome.stdout
    assert document.keys() == documented("`check`, also") | documented("the node")
    assert {key for gap in document["gaps"] for key in gap} == documented("each of `gaps`")


def _lines(gap: Document) -> tuple[str, str]:
    text = f"gap             {gap['subject']}: {gap['problem']}"
    return text, f"  remedy        {gap['remedy']}"


@pytest.mark.parametrize("arguments", ["check", "check --diagnose 1", "diagnose 1"])
def test_check_and_diagnose_without_a_driver(tmp_path: Path, arguments: str) -> None:
    result = run(tmp_path, *arguments.split(), "--json")
    assert (result.returncode, result.stderr) == (1, "")
    (document,) = documents(result.stdout)
    assert (document["status"], document["driver"], document["gpus"]) == (1, None, [])
    (gap,) = document["gaps"]
    assert gap["subject"] == "GPU metrics"
    assert "file too short" in gap["problem"]
    assert gap["remedy"] in run(tmp_path, "check").stdout


def test_the_web_config_is_part_of_the_document(tmp_path: Path) -> None:
    (tmp_path / "web.yml").write_text("http_server_config: {http2: false}\n")
    arguments = ("check", "--web.config.file", "web.yml")
    (document,) = documents(run(tmp_path, *arguments, "--json").stdout)
    assert f"web.yml: {document['web_config']}\n" in run(tmp_path, *arguments).stdout


def test_diagnose_names_cause_and_remedy_of_each_gpu(said: Mapping[str, str]) -> None:
    (document,) = documents(said["diagnosed"])
    assert (document["status"], document["gaps"]) == (0, [])
    assert len(document["gpus"]) == GPUS
    outcome = documented("`check`, also") | documented("the node")
    outcome |= documented("`diagnose`, also")
    assert document.keys() == outcome - {"driver", "process_use", "switched_off", "not_yet_seen"}
    assert document["watched_seconds"] == pytest.approx(8, abs=1)
    for gpu in document["gpus"]:
        more = documented("`diagnose`, also in each of `gpus`")
        assert gpu.keys() == documented("each of `gpus`") | more
        assert all(item.keys() == documented("each of `blamed`") for item in gpu["blamed"])
        assert len(gpu["blamed"]) in ((1, 2) if gpu["holder_pids"] and gpu["cause"] else (0,))
        assert len(gpu["holder_pids"]) == (gpu["cause"] != "unallocated")
        assert_shares(gpu)
        at_work = AT_WORK if (gpu["busy_ratio"] or 0.0) >= MIN_WORKING_RATIO else {}
        usual = MEANINGS.get(gpu["cause"]), REMEDIES.get(gpu["cause"])
        assert (gpu["meaning"], gpu["remedy"]) == at_work.get(gpu["cause"], usual)[:2]
        result = gpu["idle_lines"]
        assert result.keys() == documented("`idle_lines`")
        lines = result["lines"]
        assert all(line.keys() == documented("each of `lines` and `waits`") for line in lines)
        assert gpu["holder_pids"] or not lines
        if lines and gpu["cause"] in {"host_code", "worker_cpu"}:
            assert lines[0]["file"].endswith("demo/jobs.py")
    made_for = ("busy", "worker_cpu", "host_code", "asleep", "host_code", "peer", "busy")
    for gpu, verdict in zip(document["gpus"], (*made_for, "unallocated"), strict=True):
        # On a crowded machine all of them wait for a CPU.
        assert gpu["verdict"] in {verdict, "cpu_queue"}


def test_diagnose_names_the_processes_of_its_verdict(said: Mapping[str, str]) -> None:
    result = said["told"]
    blocks = result.split("\n\n")[:-1]
    assert len(blocks) == GPUS
    assert "\n  line " in result
    for heading, verdict, *rest in (block.splitlines() for block in blocks):
        holder, cause = (re.findall(r"\d+$", heading), re.findall(r" \((\w+)\)", verdict))
        values = (re.fullmatch(r"  (?:most to blame| {13}) (\d+) +(.+)", line) for line in rest)
        blamed = [item.groups() for item in values if item]
        if not (holder and cause):
            assert blamed == []
            continue
        assert 1 <= len(blamed) <= 2
        for pid, command in blamed:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            assert holder[0] in (pid, stat[1])
            assert pid == holder[0] or cause[0] not in {"host_code", "asleep", "peer"}
            assert pid != holder[0] or cause[0] != "worker_cpu"
            words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
            assert command == " ".join(words)[:100].rstrip()


def assert_shares(gpu: Document) -> None:
    """They are shares of the time that was observed."""
    assert 0 < gpu["observed_seconds"] < 60
    assert math.isclose(gpu["busy_ratio"] + sum(gpu["stall_ratios"].values()), 1, abs_tol=1e-6)
    assert gpu["stall_ratios"].keys() <= set(WAITING_ON)
    assert gpu["verdict"] == ("busy" if gpu["busy_ratio"] >= 0.9 else gpu["cause"])


def test_top_prints_a_document_at_each_interval(said: Mapping[str, str]) -> None:
    result = documents(said["top"])
    times = [document["time_seconds"] for document in result]
    assert len(times) == 4
    assert times == sorted(times)
    last = result[-1]
    assert last["source"] == "this machine"
    assert last.keys() == documented("`top`, also") | documented("the node")
    assert last["host"].keys() == documented("its `host`")
    assert last["host"]["cpus"] == os.cpu_count()
    assert all(
        collector.keys() == documented("each of `collectors`") for collector in last["collectors"]
    )
    assert 0 <= last["host"]["cpu_busy_ratio"] <= 1
    assert [gpu["gpu"] for gpu in last["gpus"]] == [*map(str, range(GPUS))]
    for gpu in last["gpus"]:
        assert gpu.keys() == documented("each of `gpus`")
        assert_shares(gpu)
        assert (gpu["memory_used_bytes"] > 0) == (gpu["processes"] > 0)
        assert gpu["memory_used_bytes"] < gpu["memory_total_bytes"]


def test_prescriptions_have_the_fields_that_are_documented() -> None:
    result = json.loads(dumps(document(node(mixed_state()))))
    prescribed, refused, _, without, _ = result["gpus"]
    names = ("prescription", "prescription_refused", "last_change")
    assert prescribed["prescription"].keys() == documented("`prescription`")
    assert prescribed["prescription"]["needs_bytes_per_second"] is None
    assert refused["prescription_refused"].keys() == documented("`prescription_refused`")
    assert prescribed["last_change"].keys() == documented("`last_change`")
    assert [without[name] for name in names] == [None] * 3


def test_tenants_have_the_fields_that_are_documented() -> None:
    (gpu,) = json.loads(dumps(document(node(state(sharing())))))["gpus"]
    assert all(part.keys() == documented("each of `tenants`") for part in gpu["tenants"])
    assert len(gpu["tenants"]) == 4
