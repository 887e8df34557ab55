"""Stall accounting with PyTorch's own DataLoader: `make test-torch`.

Two cores are assumed: six workers crowd them, one and two do not.
"""

from __future__ import annotations

import os

import pytest

from stacks.cases import Case
from stacks.test_stacks import found_in

WRONG = 0.15
"""States are sampled some 90 times: a share of a tenth is 3 % uncertain by that alone."""
METHODS = ("fork", "spawn", "forkserver")
CROWD = 3 * (os.cpu_count() or 2)


def judge(expected: str, kind: str, workers: int, *how: str) -> None:
    """Fails if its GPU does not wait for what is expected, or if not all workers are found."""
    words = ("loader", kind, f"{workers}", *how)
    labels = frozenset({expected}) - {"busy"}
    (found,) = found_in(Case(" ".join(words), "DataLoader", words, (labels,), venv="torch"))
    print(words, found)  # noqa: T201 - for the log
    assert not found.wrong, found
    if labels:
        others = [share for label, share in found.shares.items() if label not in labels]
        assert max(others, default=0.0) <= WRONG, found
    if "respawned" not in how:
        assert found.workers == workers, found


def test_loading_in_the_main_process_is_host_code() -> None:
    judge("host_code", "burn", 0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workers", [1, 2])
def test_few_busy_workers_are_worker_cpu(workers: int, method: str) -> None:
    judge("worker_cpu", "burn", workers, method)


@pytest.mark.parametrize("method", METHODS)
def test_more_workers_than_cores_wait_for_a_cpu(method: str) -> None:
    judge("cpu_queue", "burn", CROWD, method)


@pytest.mark.parametrize("method", METHODS)
def test_workers_started_anew_each_epoch_are_found_anew(method: str) -> None:
    judge("worker_cpu", "burn", 1, method, "respawned")


@pytest.mark.parametrize("method", METHODS)
def test_a_loader_that_keeps_up_leaves_no_stall(method: str) -> None:
    judge("busy", "quick", 2, method)
