"""Prescriptions as the command line, `top` and the status page say them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_bottleneck_exporter.nodeview.build import _caused
from gpu_bottleneck_exporter.nodeview.model import GpuStatus
from gpu_bottleneck_exporter.nodeview.text import describe_prescription, outcome, recommendation
from gpu_bottleneck_exporter.prescription.model import REFUSALS, Outlook, Prescription, Refusal
from gpu_bottleneck_exporter.prescription.observed import Observed
from gpu_bottleneck_exporter.remedies import REMEDIES, REMEDIES_BY_REFUSAL
from support.nodes import node
from support.states import PRESCRIBED, SCORED, feeding, hopper, state

WORKERS = "loader workers: 6: 93 % busy (88–95); now 2"  # noqa: RUF001 - the dash of an interval
ABSENT = Observed(60.0, 0.4, {"network": 0.6})


def of(**changes: Any) -> Prescription:  # noqa: ANN401 - fields of any type
    return replace(PRESCRIBED, **{"job_busy_ratio": None, **changes})


def said(**changes: Any) -> str:  # noqa: ANN401 - fields of any type
    return describe_prescription(of(**changes))


def having(advice: Prescription | Refusal | None) -> str | None:
    """What is said of a GPU that idles."""
    outlook = Outlook(advice)
    idle = replace(hopper(), feeding=replace(feeding(), outlook=outlook))
    return recommendation(node(state(idle)).gpus[0])


def caused(cause: str, outlook: Outlook, busy: float) -> GpuStatus:
    """A GPU with that busy share and that cause."""
    return _caused(GpuStatus(gpu="0", uuid="", up=True, busy_ratio=busy), cause, outlook)


def test_all_that_is_known_in_one_line() -> None:
    assert (
        said()
        == f"{WORKERS}; uses 4 of 7 free cores, 2.1 of 40 GiB; after that, Python code is the limit"
    )


def test_a_main_that_waits_for_its_own_requests_need_not_be_loading() -> None:
    of_main = said(cause="network", current_value=0, value=3)
    assert of_main.startswith("3 threads or loader workers for its own requests: 93 % busy")
    assert said(cause="network").startswith(WORKERS), "it has workers"


def test_what_a_job_gains_and_whose_workers_are_counted() -> None:
    assert said(job_busy_ratio=0.62, job_gpus=4).startswith(
        f"{WORKERS}; if only this rank is changed, the job's 4 GPUs go from 40 % to 62 %; uses"
    )
    for pytorch in (False, True):
        found = said(processes=2, pytorch=pytorch)
        assert found.startswith("loader workers: 6 for 2 processes: 93 % busy")
    assert said(pytorch=True).startswith("DataLoader(num_workers=6): 93 % busy")


@pytest.mark.parametrize(
    ("changes", "uses"),
    [
        ({"needs_cores": 0.0}, "; uses 2.1 of 40 GiB"),
        ({"needs_memory_bytes": None}, "; uses 4 of 7 free cores"),
        ({"free_cores": None, "needs_memory_bytes": None}, "; uses 4 cores"),
        ({"needs_cores": 0.0, "free_memory_bytes": None}, "; uses 2.1 GiB"),
        ({"needs_cores": 0.0, "needs_bytes_per_second": 119.6e6}, "; uses 2.1 of 40 GiB, 120 MB/s"),
        ({"needs_cores": 0.0, "needs_memory_bytes": 0.0, "needs_bytes_per_second": 9e5}, ""),
    ],
)
def test_what_it_uses_as_far_as_it_is_known(changes: dict[str, Any], uses: str) -> None:
    assert said(**changes, then=None) == f"{WORKERS}{uses}"


@pytest.mark.parametrize(
    ("knob", "current", "value", "shown"),
    [
        ("num_workers", 0.0, 4.0, "loader workers: 4: up to 64 % busy; now 0"),
        (
            *("cpu_limit", 0.163, 2.0),
            (
                "CPU limit of 2 cores: up to 64 % busy; now 0.16 cores; "
                "set by resources.limits.cpu, --cpus or CPUQuota="
            ),
        ),
        (
            *("cpu_cores", 0.12, 0.74),
            (
                "0.74 CPU cores: up to 64 % busy; now 0.12 cores; "
                "from CPU sets, fewer neighbours, or fewer threads and workers"
            ),
        ),
        ("host_code", 0.314, 0.0, "less Python code: up to 64 % busy; now 31 % of the time"),
        ("later", 1.0, 2.0, "later: 2: up to 64 % busy; now 1"),
    ],
)
def test_a_setting_in_its_unit(knob: str, current: float, value: float, shown: str) -> None:
    change = of(knob=knob, current_value=current, value=value, at_most=True, busy_ratio=0.64)
    assert describe_prescription(change).startswith(f"{shown}; uses")


def test_what_came_of_the_last_change() -> None:
    last = replace(
        SCORED, value_before=2, value_after=6, busy_ratio=0.91, predicted_busy_ratio=0.93
    )
    interval = "(42–50)"  # noqa: RUF001 - the dash of an interval
    assert outcome(last) == f"loader workers from 2 to 6: predicted 93 % {interval}, measured 91 %"


@pytest.mark.parametrize(
    ("then", "limit"),
    [("asleep", "its own sleep is"), ("cpu_queue", "CPU cores are"), ("later", "later is")],
)
def test_what_limits_it_next(then: str, limit: str) -> None:
    assert said(then=then).endswith(f"; after that, {limit} the limit")


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
    seen = Observed(60.0, 0.4, {"network": 0.6}, main_network=0.5)
    own, workers = (caused("network", Outlook(seen=one), 0.4) for one in (seen, ABSENT))
    assert "in the background" in (own.remedy or "")
    assert "prefetching" in (workers.remedy or "")


def test_workers_that_restart_are_told_so_whatever_they_wait_for() -> None:
    found = caused("cpu_queue", Outlook(Refusal("churn")), 0.4)
    assert "persistent_workers=True" in (found.remedy or "")
    assert found.runbook == "GpuStarved-worker_churn"


def test_without_a_prediction_the_usual_remedy_is_all_there_is() -> None:
    remedy = REMEDIES["unknown"]
    assert having(Refusal("shared")) == f"{remedy} (no prediction: {REFUSALS['shared']})"
    assert having(Refusal("of a later version")) == f"{remedy} (no prediction: of a later version)"
    assert having(Refusal("no_work")) == having(None) == remedy
    pinned = having(Refusal("pinned")) or ""
    assert pinned.startswith(REMEDIES_BY_REFUSAL["pinned"])
    assert "more" not in pinned.split()
    assert having(of()) == said()
