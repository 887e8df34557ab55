"""Stall accounting with PyTorch's own DataLoader and ranks: `make test-torch`.

Two cores are assumed: six workers crowd them, one and two do not.
"""

from __future__ import annotations

import os

import pytest

from scenarios.measure import judge
from stacks.cases import Case
from stacks.measure import found_in

pytestmark = pytest.mark.alone
CROWD = 3 * (os.cpu_count() or 2)


def judged(expected: str, kind: str, workers: int, *how: str) -> None:
    """Its GPU waits for what is expected, and all workers are found."""
    words = ("loader", kind, f"{workers}", *how)
    labels = frozenset({expected}) - {"busy"}
    result = found_in(Case(" ".join(words), "DataLoader", words, (labels,), venv="torch"))
    if "respawned" not in how:
        assert result[0].feeding
        assert result[0].feeding.processes.get("worker", 0) == workers, result
    judge([(item, item.right) for item in result])


def test_loading_in_the_main_process_is_host_code() -> None:
    judged("host_code", "burn", 0)


# What the method decides is how workers are found; what they then do is the same.
@pytest.mark.parametrize(
    ("method", "workers"),
    [pytest.param("fork", 2, marks=pytest.mark.quick), ("spawn", 1), ("forkserver", 2)],
)
def test_few_busy_workers_are_worker_cpu(method: str, workers: int) -> None:
    judged("worker_cpu", "burn", workers, method)


def test_more_workers_than_cores_wait_for_a_cpu() -> None:
    judged("cpu_queue", "burn", CROWD, "spawn")


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_started_anew_each_epoch_are_found_anew(method: str) -> None:
    judged("worker_cpu", "burn", 1, method, "respawned")


@pytest.mark.quick
def test_a_loader_that_keeps_up_leaves_no_stall() -> None:
    judged("busy", "quick", 2, "fork")


def test_a_rank_waits_for_the_slower_one() -> None:
    words = ("collective", "main", "torchrun")
    labels = frozenset({"peer"}), frozenset({"host_code"})
    result = found_in(Case("a slow main", "torch.distributed", words, labels, venv="torch"))
    judge([(item, item.right) for item in result])
