from __future__ import annotations

import pytest

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.nodeview import text
from gpu_bottleneck_exporter.nodeview.model import DASH, Gpu
from gpu_bottleneck_exporter.palette import WAITING_ON
from gpu_bottleneck_exporter.remedies import (
    MEANINGS,
    OF_SIGNALS,
    REMEDIES,
    RUNBOOK_OF_DOWN,
    RUNBOOKS,
)
from gpu_bottleneck_exporter.rulepack import files
from gpu_bottleneck_exporter.settings import RUNBOOK_BASE


def test_what_is_not_known_is_a_dash() -> None:
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


def test_nobody_is_not_the_same_as_not_known() -> None:
    assert text.owners(Gpu(gpu="0", uuid="", up=True, processes=0)) == "nobody"
    assert text.owners(Gpu(gpu="0", uuid="", up=True)) == DASH


def test_every_wait_has_a_remedy_and_a_runbook_that_exists() -> None:
    alerts = files()["alerts.yml"]
    assert MEANINGS.keys() == REMEDIES.keys() == WAITING_ON.keys() == {*stall.WAITING_ON}
    assert all((*MEANINGS.values(), *REMEDIES.values()))
    assert REMEDIES.keys() - RUNBOOKS.keys() == {"unallocated"}
    for name in (*RUNBOOKS.values(), RUNBOOK_OF_DOWN):
        assert f"{RUNBOOK_BASE}/{name}.md" in alerts
    assert all(OF_SIGNALS.values())
