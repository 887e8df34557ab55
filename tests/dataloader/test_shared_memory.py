"""What the rules say of a /dev/shm of 64 MiB, with PyTorch's loader in one: `make test-torch`."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from dataloader.shared_memory import Found, Load, measure
from stacks.venvs import VenvError, python
from support.tools import _missing

if os.geteuid() != 0:
    pytest.skip("a mount of one's own takes root", allow_module_level=True)

THRESHOLDS = Path(__file__).parents[2] / "rules/thresholds.yml"
HARMLESS = (Load(2, 4), Load(2, 4, starved=True))
DEADLY = (Load(8, 4), Load(10, 4, starved=True))
HANGING = Load(8, 4, own_collate=True)


@cache
def results() -> dict[Load, Found]:
    """Of all, side by side: each has a mount of its own, and mostly waits."""
    loads = (*HARMLESS, *DEADLY, HANGING)
    try:
        python("torch")
        with ThreadPoolExecutor() as threads:
            return dict(zip(loads, threads.map(measure, loads), strict=True))
    except VenvError as reason:
        _missing(f"{reason}")


def found(load: Load) -> Found:
    return results()[load]


def threshold(name: str) -> float:
    text = THRESHOLDS.read_text(encoding="utf-8")
    (value,) = re.findall(rf"record: gpu:threshold:{name}\n +expr: vector\((.+)\)", text)
    return float(value)


@pytest.mark.parametrize("load", HARMLESS, ids=str)
def test_who_never_fills_half_of_it_lives(load: Load) -> None:
    assert found(load).error == ""
    assert found(load).most < threshold("shm_small_used")


@pytest.mark.parametrize("load", DEADLY, ids=str)
def test_who_dies_has_filled_half_of_it_before(load: Load) -> None:
    assert "shared memory" in found(load).error or "No space" in found(load).error
    assert found(load).most >= threshold("shm_small_used")


def test_with_a_collating_function_of_ones_own_it_hangs() -> None:
    """The worker's thread that hands over fails, and nobody is told."""
    assert "timed out" in found(HANGING).error
