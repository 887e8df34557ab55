from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_bottleneck_exporter import remedies
from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.commands.files import runbooks
from gpu_bottleneck_exporter.feeders.serving import Serving
from gpu_bottleneck_exporter.nodeview import text
from gpu_bottleneck_exporter.nodeview.model import (
    DASH,
    KEPT_BUSY,
    MEASURING,
    GpuStatus,
    Node,
    ProcessEntry,
    TenantStatus,
)
from gpu_bottleneck_exporter.palette import WAIT_COLOURS
from gpu_bottleneck_exporter.remedies import MEANINGS, REMEDIES, RUNBOOKS
from gpu_bottleneck_exporter.rulepack import files
from gpu_bottleneck_exporter.settings import RUNBOOK_BASE
from support.rows import rows


def test_an_unknown_value_is_a_dash() -> None:
    assert text.percent(None) == text.number(None) == text.of(DASH, "1", " W") == DASH
    assert text.gibibytes(None) == text.memory(None, 2**30) == DASH


@pytest.mark.parametrize(
    ("share", "said"), [(0, "0 %"), (0.004, "under 1 %"), (0.126, "13 %"), (1, "100 %")]
)
def test_percent(share: float, said: str) -> None:
    assert text.percent(share) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (59, "59 s"), (61, "1 min"), (7300, "2 h"), (2e5, "2 d")]
)
def test_duration(seconds: float, said: str) -> None:
    assert text.duration(seconds) == said


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"workload_namespace": "ns", "workload_pod": "p", "workload_container": "c"}, "ns/p/c"),
        ({"pod_uid": "3b2f8a1c-5c01-4b6e", "user": "0"}, "pod 3b2f8a1c, user 0"),
        ({"container_id": "9bca8d63d5fa61078384"}, "container 9bca8d63d5fa"),
        ({"slurm_job_id": "12", "user": "alice"}, "Slurm job 12, user alice"),
        ({}, ""),
    ],
)
def test_owner(labels: dict[str, str], said: str) -> None:
    assert text.owner(labels) == said


def gpu(index: int, cause: str | None = None, busy: float | None = 0.5, **more: Any) -> GpuStatus:  # noqa: ANN401 - fields
    verdict = cause or (KEPT_BUSY if busy is not None else None)
    fields = {"up": True, "busy_ratio": busy, "verdict": verdict, "cause": cause, **more}
    return GpuStatus(gpu=f"{index}", uuid=f"u{index}", **fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature_celsius": 61, "slowdown_temperature_celsius": 87}, "61 of 87 °C"),
        ({"temperature_celsius": 61, "temperature_margin_celsius": 26.0}, "61 °C, margin 26"),
        ({"temperature_celsius": 88, "temperature_margin_celsius": -1}, "88 °C, margin -1"),
        ({"temperature_celsius": 61}, "61 °C"),
        ({"temperature_margin_celsius": 26}, DASH),
    ],
)
def test_a_temperature_has_its_limit_or_its_margin(fields: dict[str, Any], said: str) -> None:
    assert text.levels(gpu(0, **fields))[1] == said


@rows(
    "serving, said",
    {
        "unknown": (None, None),
        "asked by none": (Serving((8000,), 0, 0, 0, None, complete=True), "port 8000: no client"),
        "kept alive": (
            Serving((8000,), 1, 0, 0, None, complete=True),
            "port 8000: 1 client, no request in flight",
        ),
        "asked": (
            Serving((8000, 9000), 12, 0, 3, 4.21, complete=True),
            "ports 8000, 9000: 12 clients, 3 requests in flight, the longest for 4.2 s",
        ),
        "slow": (
            Serving((80,), 6, 5, 1, 61.0, complete=True),
            (
                "port 80: 6 clients, 5 of them not accepted yet, 1 request in flight, "
                "the longest for 1 min"
            ),
        ),
        "a part": (
            Serving((80,), 60, 0, 9, 12.3, complete=False),
            (
                "port 80: at least 60 clients, at least 9 requests in flight, "
                "the longest for at least 12 s"
            ),
        ),
        "a part without a request": (
            Serving((80,), 60, 0, 0, None, complete=False),
            "port 80: at least 60 clients",
        ),
        "of another version": (Serving((), 1, 0, 0, None, complete=True), None),
    },
)
def test_the_clients_of_a_server(serving: Serving | None, said: str | None) -> None:
    shown = gpu(0, serving=serving)
    assert text.serving(shown) == said
    assert dict(text.explained(shown)).get("serves") == said


STARVED, SLEEPING = gpu(0, "worker_cpu", 0.4), gpu(1, "asleep", 0.0)
ENCODES = gpu(7, "video_engine", 0.08, stall_ratios={"video_engine": 0.85, "asleep": 0.07})
ENCODES_SOME = gpu(8, "video_engine", 0.1, stall_ratios={"video_engine": 0.5, "asleep": 0.4})
BUSY, FREE = gpu(2, busy=0.98), gpu(3, "unallocated", 0.0)
EARLY = gpu(4, verdict=MEASURING)
DOWN = gpu(5, busy=None, up=False, down_reason="it fell off the bus")


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ((), "No GPU"),
        ((STARVED,), "1 of 1 GPU starved, 0.6 GPUs of capacity lost"),
        ((STARVED, SLEEPING, BUSY), "2 of 3 GPUs starved, 1.6 GPUs of capacity lost"),
        ((BUSY, FREE, DOWN), "No GPU starved (1 unallocated, 1 down)"),
        ((ENCODES,), "No GPU starved"),
        ((ENCODES_SOME,), "1 of 1 GPU starved, 0.4 GPUs of capacity lost"),
        ((EARLY, gpu(6, busy=None)), "No GPU starved (2 measuring)"),
        ((BUSY, replace(STARVED, mig_profile="3g.40gb")), "No GPU starved"),
    ],
)
def test_the_headline_counts_lost_capacity(gpus: tuple[GpuStatus, ...], said: str) -> None:
    assert text.summary(Node(time_seconds=0, window_seconds=60, version="9", gpus=gpus)) == said


def test_the_worst_come_first_and_unallocated_time_is_not_lost() -> None:
    gpus = [BUSY, FREE, STARVED, EARLY, SLEEPING, DOWN]
    assert sorted(gpus, key=text.badness, reverse=True)[:3] == [DOWN, SLEEPING, STARVED]
    assert not any(map(text.badness, (BUSY, FREE, EARLY)))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (STARVED, "Waiting for loader workers (worker_cpu)"),
        (BUSY, "Kept busy"),
        (ENCODES, "Waiting for a video engine (video_engine)"),
        (gpu(6, busy=None), "Measuring"),
        (
            gpu(6, busy=None, counted_with="MIG-1"),
            "counted with MIG-1, as both share a GPU instance",
        ),
        (replace(BUSY, verdict=None), "Cause of the wait unknown"),
        (DOWN, "down: it fell off the bus"),
    ],
)
def test_the_verdict_in_a_sentence(found: GpuStatus, said: str) -> None:
    assert text.headline(found) == said


def test_activity_of_video_engines_is_shown() -> None:
    engines = {"encoder": 0.72, "decoder": 0.0}
    assert text.notices(replace(ENCODES, engine_ratios=engines)) == ["encoder 72 % busy"]


def test_holders_of_a_gpu() -> None:
    crew = (
        ProcessEntry(7, "main", "train.py"),
        ProcessEntry(9, "main"),
        ProcessEntry(8, "worker", "loader"),
    )
    assert text.holders(replace(BUSY, process_list=crew)) == f"train.py (pid 7), {DASH} (pid 9)"


def test_no_holder_differs_from_an_unknown_one() -> None:
    assert text.owners(GpuStatus(gpu="0", uuid="", up=True, processes=0)) == "no process"
    assert text.owners(GpuStatus(gpu="0", uuid="", up=True)) == DASH


def test_every_wait_has_a_remedy_and_a_runbook_that_exists() -> None:
    assert f"{RUNBOOK_BASE}/" in files()["alerts.yml"]
    assert MEANINGS.keys() == remedies.WAITS_FOR.keys() == REMEDIES.keys()
    assert MEANINGS.keys() == WAIT_COLOURS.keys() == {*stall.WAITING_ON}
    assert all((*MEANINGS.values(), *REMEDIES.values()))
    assert REMEDIES.keys() - RUNBOOKS.keys() == {"unallocated"}
    assert {*RUNBOOKS.values(), remedies.RUNBOOK_OF_DOWN} <= runbooks().keys()
    assert all(remedies.SIGNAL_REMEDIES.values())


def tenant(name: str, busy: float, whole: float, owner: str = "", **stalls: float) -> TenantStatus:
    return TenantStatus(
        tenant=name,
        owner={"user": owner} if owner else None,
        busy_seconds=busy,
        busy_share_ratio=busy / whole if whole else None,
        stall_seconds=stalls,
    )


@rows(
    "tenants, said",
    {
        "none": (None, []),
        "busy": (
            (tenant("a", 70, 100, "ada", storage=1), tenant("b", 30, 100, "bob", storage=1)),
            ["70 % of 100 s busy: user ada", "30 %: user bob"],
        ),
        "idle": (
            (
                tenant("user-ada", 6, 8, "ada", worker_cpu=90, storage=6),
                tenant("slurm-1", 2, 8, "", asleep=96),
            ),
            [
                "75 % of 8 s busy: user ada, waited for loader workers (worker_cpu)",
                "25 %: slurm-1, slept (asleep)",
            ],
        ),
        "without work": (
            (tenant("a", 0, 0, "ada", later=1), tenant("b", 0, 0, "bob")),
            [f"{DASH} of 0 s busy: user ada, waited for ? (later)", f"{DASH}: user bob"],
        ),
        "in part": (
            (
                *(tenant("a", 6, 10, "ada"), tenant("others", 3, 10)),
                tenant("unattributed", 1, 10),
            ),
            ["60 % of 10 s busy: user ada", "30 %: others", "10 %: not attributed"],
        ),
        "by an older driver": (
            (*(tenant(name, 0, 0, name) for name in "ab"), tenant("unattributed", 9, 9)),
            [
                f"{DASH} of 9 s busy: user a",
                f"{DASH}: user b",
                "100 %: not attributed, as the driver does not report use by process",
            ],
        ),
    },
)
def test_the_tenants_of_a_gpu(tenants: tuple[TenantStatus, ...] | None, said: list[str]) -> None:
    shown = gpu(0, tenants=tenants)
    assert text.tenants(shown) == said
    assert dict(text.explained(shown)).get("shared by", "") == "; ".join(said)
