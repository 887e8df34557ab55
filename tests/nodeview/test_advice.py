"""Prescriptions as the command line, `top` and the status page say them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_bottleneck_exporter.nodeview.text import in_brief, in_full, outcome, prescription
from gpu_bottleneck_exporter.prescription.model import REFUSALS, Outlook, Prescription, Refusal
from support.nodes import node
from support.states import PRESCRIBED, SCORED, feeding, hopper, state

WORKERS = "num_workers 2 → 6: busy 44 % → 93 % (88–95)"  # noqa: RUF001 - the dash of an interval
GIB = 2**30


def of(**changes: Any) -> Prescription:  # noqa: ANN401 - fields of any type
    return replace(PRESCRIBED, **{"job_busy_ratio": None, **changes})


def said(**changes: Any) -> str:  # noqa: ANN401 - fields of any type
    return in_full(of(**changes))


def having(advice: Prescription | Refusal | None) -> str | None:
    """What is said of a GPU that idles."""
    outlook = Outlook(advice)
    idle = replace(hopper(), feeding=replace(feeding(), outlook=outlook))
    return prescription(node(state(idle)).gpus[0])


def test_all_that_is_known_in_one_line() -> None:
    assert said() == f"{WORKERS}; uses 4 of 7 free cores, 2.1 of 40 GiB; then host_code limits"


def test_what_a_job_gains_and_whose_workers_are_counted() -> None:
    assert said(job_busy_ratio=0.62, job_gpus=4).startswith(
        f"{WORKERS}; alone: its job's 4 GPUs 40 % → 62 %; uses"
    )
    assert said(processes=2).startswith("num_workers 2 → 6 (of 2 processes together): busy 44 %")


@pytest.mark.parametrize(
    ("changes", "uses"),
    [
        ({"needs_cores": 0.0}, "; uses 2.1 of 40 GiB"),
        ({"needs_memory_bytes": None}, "; uses 4 of 7 free cores"),
        ({"needs_cores": 0.01, "needs_memory_bytes": None}, ""),
        (
            {"needs_cores": 2.5, "free_cores": 2.75, "needs_memory_bytes": None},
            "; uses 2.5 of 2.8 free cores",
        ),
        ({"free_cores": None, "needs_memory_bytes": None}, "; uses 4 cores"),
        ({"needs_cores": 1.0, "free_cores": None, "needs_memory_bytes": None}, "; uses 1 core"),
        ({"needs_cores": 0.0, "free_memory_bytes": None}, "; uses 2.1 GiB"),
        ({"needs_cores": 0.0, "needs_memory_bytes": 30 * 2**20}, ""),
        (
            {"needs_cores": 0.0, "needs_memory_bytes": 12 * GIB, "free_memory_bytes": 9.5 * GIB},
            "; uses 12 of 9.5 GiB",
        ),
        ({"needs_cores": 0.0, "needs_memory_bytes": 0.0}, ""),
        ({"needs_cores": 0.0, "needs_bytes_per_second": 119.6e6}, "; uses 2.1 of 40 GiB, 120 MB/s"),
        ({"needs_cores": 0.0, "needs_memory_bytes": 0.0, "needs_bytes_per_second": 9e5}, ""),
    ],
)
def test_what_it_uses_as_far_as_it_is_known(changes: dict[str, Any], uses: str) -> None:
    assert said(**changes, then=None) == f"{WORKERS}{uses}"


@pytest.mark.parametrize(
    ("knob", "current", "value", "shown"),
    [
        ("num_workers", 0.0, 4.0, "num_workers 0 → 4"),
        ("cpu_limit", 0.5, 2.0, "cpu_limit 0.5 → 2"),
        ("cpu_cores", 1.2345, 3.96, "cpu_cores 1.2 → 4"),
        ("host_code", 0.314, 0.0, "host_code 31 % → 0"),
        ("checkpoints", 0.06, 0.0, "checkpoints 6 % → 0"),
    ],
)
def test_a_knob_in_its_unit(knob: str, current: float, value: float, shown: str) -> None:
    change = of(knob=knob, current_value=current, value=value, at_most=True, busy_ratio=0.64)
    assert in_full(change).startswith(f"{shown}: busy 44 % → up to 64 %; uses")
    assert in_brief(change) == f"{shown}: up to 64 %"


def test_in_brief_it_is_the_change_and_what_it_brings() -> None:
    assert in_brief(of()) == "num_workers 2 → 6: 93 %"


def test_what_came_of_the_last_change() -> None:
    last = replace(
        SCORED, value_before=2, value_after=6, busy_ratio=0.91, predicted_busy_ratio=0.93
    )
    interval = "(42–50)"  # noqa: RUF001 - the dash of an interval
    assert outcome(last) == f"num_workers 2 → 6: predicted 93 % {interval}, now 91 %"
    removed = replace(last, knob="host_code", value_before=0.31, value_after=0.02)
    assert outcome(removed).startswith("host_code 31 % → 2 %: predicted")


def test_a_refusal_says_why() -> None:
    assert having(Refusal("shared")) == f"none: {REFUSALS['shared']}"
    assert having(Refusal("of a later version")) == "none: of a later version"


def test_nothing_known_is_nothing_said() -> None:
    assert having(None) is None
    assert having(of()) == said()
