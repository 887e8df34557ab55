"""Prescriptions as the command line, `top` and the status page say them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_bottleneck_exporter.nodeview.build import _caused
from gpu_bottleneck_exporter.nodeview.model import GpuStatus
from gpu_bottleneck_exporter.nodeview.text import (
    describe_prescription,
    outcome,
    recommendation,
    sentence,
)
from gpu_bottleneck_exporter.prescription.model import REFUSALS, Outlook, Prescription, Refusal
from gpu_bottleneck_exporter.prescription.observed import Observed
from gpu_bottleneck_exporter.remedies import REMEDIES, REMEDIES_BY_REFUSAL
from support.nodes import node
from support.states import PRESCRIBED, SCORED, feeding, hopper, state

WORKERS = "Use 6 loader workers (now 2): the GPU would be 93 % busy (88–95 %)."  # noqa: RUF001
USES = "This takes 4 of 7 free cores and 2.1 of 40 GiB of memory."
ABSENT = Observed(60.0, 0.4, {"network": 0.6})


def of(**changes: Any) -> Prescription:  # noqa: ANN401 - fields of any type
    return replace(PRESCRIBED, **{"job_busy_ratio": None, **changes})


def said(**changes: Any) -> str:  # noqa: ANN401 - fields of any type
    return describe_prescription(of(**changes))


def having(advice: Prescription | Refusal | None) -> str | None:
    """Sentences about a GPU that idles."""
    outlook = Outlook(advice)
    idle = replace(hopper(), feeding=replace(feeding(), outlook=outlook))
    return recommendation(node(state(idle)).gpus[0])


def caused(cause: str, outlook: Outlook, busy: float) -> GpuStatus:
    """A GPU with that busy share and that cause."""
    return _caused(GpuStatus(gpu="0", uuid="", up=True, busy_ratio=busy), cause, outlook)


def test_all_that_is_known_in_one_line() -> None:
    assert said() == f"{WORKERS} {USES} Then the limit is Python code."


def test_a_main_that_waits_for_its_own_requests_need_not_be_loading() -> None:
    of_main = said(cause="network", current_value=0, value=3)
    requests = "Let 3 threads or loader workers make the main process's requests (now 0): the GPU"
    assert of_main.startswith(requests)
    assert said(cause="network").startswith(WORKERS), "it has workers"


def test_gain_of_a_job_and_number_of_its_workers() -> None:
    assert said(job_busy_ratio=0.62, job_gpus=4).startswith(
        f"{WORKERS} If only this rank changes, the job's 4 GPUs go from 40 % busy to 62 %. This"
    )
    for pytorch in (False, True):
        result = said(processes=2, pytorch=pytorch)
        assert result.startswith("Use 6 loader workers across 2 processes (now 2): the GPU")
    assert said(pytorch=True).startswith("Set DataLoader(num_workers=6) (now 2): the GPU")


@pytest.mark.parametrize(
    ("changes", "uses"),
    [
        ({"needs_cores": 0.0}, "2.1 of 40 GiB of memory"),
        ({"needs_memory_bytes": None}, "4 of 7 free cores"),
        ({"free_cores": None, "needs_memory_bytes": None}, "4 cores"),
        ({"free_cores": None, "needs_memory_bytes": None, "needs_cores": 1.0}, "1 core"),
        ({"needs_cores": 0.0, "free_memory_bytes": None}, "2.1 GiB of memory"),
        (
            {"needs_bytes_per_second": 119.6e6},
            "4 of 7 free cores, 2.1 of 40 GiB of memory and 120 MB/s of input",
        ),
        ({"needs_cores": 0.0, "needs_memory_bytes": 0.0, "needs_bytes_per_second": 9e5}, ""),
    ],
)
def test_usage_as_far_as_it_is_known(changes: dict[str, Any], uses: str) -> None:
    takes = f" This takes {uses}." if uses else ""
    assert said(**changes, then=None) == f"{WORKERS}{takes}"


@pytest.mark.parametrize(
    ("knob", "current", "value", "shown"),
    [
        ("num_workers", 0.0, 4.0, "Use 4 loader workers (now 0)"),
        ("num_workers", 0.0, 1.0, "Use 1 loader worker (now 0)"),
        (
            *("cpu_limit", 0.163, 2.0),
            (
                "Raise the CPU limit to 2 cores "
                "(now 0.16; resources.limits.cpu, --cpus or CPUQuota=)"
            ),
        ),
        (
            *("cpu_cores", 0.12, 0.74),
            (
                "Give the job 0.74 CPU cores (now 0.12; --cpus-per-task, requests.cpu, "
                "or fewer neighbours, threads or workers)"
            ),
        ),
        ("host_code", 0.314, 0.0, "Cut the wait for Python code (now 31 % of the time)"),
        ("checkpoints", 0.314, 0.0, "Cut the wait for checkpoints (now 31 % of the time)"),
        ("later {0}", 1.0, 2.0, "Set later {0} to 2 (now 1)"),
    ],
)
def test_a_setting_in_its_unit(knob: str, current: float, value: float, shown: str) -> None:
    for pytorch in (False, knob != "num_workers"):
        change = of(knob=knob, current_value=current, value=value, pytorch=pytorch)
        change = replace(change, at_most=True, busy_ratio=0.64)
        expected = f"{shown}: the GPU would be up to 64 % busy. This takes"
        assert describe_prescription(change).startswith(expected)


def test_outcome_of_the_last_change() -> None:
    last = replace(
        SCORED, value_before=2, value_after=6, busy_ratio=0.91, predicted_busy_ratio=0.93
    )
    predicted = "the prediction was 93 % (42–50 %)"  # noqa: RUF001 - the dash of an interval
    changed = "Loader workers changed from 2 to 6."
    assert outcome(last) == f"{changed} The GPU is 91 % busy; {predicted}."


@pytest.mark.parametrize(
    ("then", "limit"),
    [("asleep", "its own sleep"), ("peer", "the wait for other GPUs"), ("later", "later")],
)
def test_next_limit_of_a_change(then: str, limit: str) -> None:
    assert said(then=then).endswith(f" Then the limit is {limit}.")


def test_a_loop_that_sleeps_between_its_steps_is_no_notebook() -> None:
    asleep, at_work = (caused("asleep", Outlook(), busy) for busy in (0.04, 0.4))
    assert (asleep.meaning or "").startswith("nothing runs: a notebook left open")
    assert at_work.meaning == "the loop sleeps between its steps"
    assert "ask the owner" not in (at_work.remedy or "")
    assert (asleep.runbook, at_work.runbook) == (
        "GpuIdle-allocated_idle",
        "GpuUnexplainedLowUtilization",
    )


def test_requests_of_the_main_itself_are_to_be_made_in_the_background() -> None:
    observation = Observed(60.0, 0.4, {"network": 0.6}, main_network=0.5)
    own, workers = (caused("network", Outlook(seen=item), 0.4) for item in (observation, ABSENT))
    assert "in the background" in (own.remedy or "")
    assert "prefetch" in (workers.remedy or "")


def test_restarting_workers_are_reported_for_any_wait() -> None:
    result = caused("cpu_queue", Outlook(Refusal("churn")), 0.4)
    assert "persistent_workers=True" in (result.remedy or "")
    assert result.runbook == "GpuStarved-worker_churn"


def test_without_a_prediction_the_usual_remedy_is_all_there_is() -> None:
    remedy = sentence(REMEDIES["unknown"])
    for reason, shown in {"shared": REFUSALS["shared"], "it is later": "it is later"}.items():
        no_prediction = f"{remedy} There is no prediction, because {shown}."
        assert having(Refusal(reason)) == no_prediction
    assert having(Refusal("no_work")) == having(None) == remedy
    pinned = having(Refusal("pinned")) or ""
    assert pinned.startswith(sentence(REMEDIES_BY_REFUSAL["pinned"]))
    assert "more" not in pinned.split()
    assert having(of()) == said()
