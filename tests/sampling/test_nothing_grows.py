"""Removed objects leave nothing behind: MIG instances that were destroyed."""

from __future__ import annotations

import gc
import logging
import os
import time
import types
from collections.abc import Callable
from uuid import uuid4

import pynvml
import pytest

from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.sampling.worker import GpuWorker
from support.board import Board
from support.drivers import Libraries
from support.samplers import EVERY_TICK, FAST
from support.ticks import note_split

MakeBoard = Callable[..., Board]
TIMES = 50
_ELSEWHERE = (types.ModuleType, types.FunctionType, types.FrameType, type, logging.Logger)
"""Through these everything can be reached."""


def kept(root: object) -> set[str]:
    """All text that can be reached from `root`."""
    outcome, result, left = set[int](), set[str](), [root]
    while left:
        item = left.pop()
        if isinstance(item, str):
            result.add(item)
        elif id(item) not in outcome and not isinstance(item, _ELSEWHERE):
            outcome.add(id(item))
            left += gc.get_referents(item)
            left += item if isinstance(item, dict) else ()  # keys that are text are no referents
    return result


def opened(what: str) -> int:
    return int(pynvml.nvmlLib[f"fake_nvml_open_{what}"]())


def remains(root: object, destroyed: set[str]) -> set[str]:
    return {text for text in kept(root) if any(uuid in text for uuid in destroyed)}


def test_a_destroyed_mig_instance_leaves_nothing_behind(
    make_board: MakeBoard, libraries: Libraries
) -> None:
    board = make_board(mig=[(0, 3)])
    instance, destroyed = board.gpus[1], set[str]()
    instance.hold(os.getpid(), 2**30)
    driver = libraries.open(board)
    sampler = Sampler(lambda: driver, EVERY_TICK, FAST, pytest.fail)
    watch = sampler._watch
    assert watch is not None
    # What its threads do, one after the other.
    worker = GpuWorker(0, driver, EVERY_TICK, FAST, watch, own_cpu=sampler._own_cpu)
    sampler._driver, sampler._workers = driver, (worker,)
    for _ in range(TIMES):
        instance.record.uuid = f"MIG-{uuid4()}".encode()
        uuid = instance.record.uuid.decode()
        destroyed.add(uuid)
        worker.reader.follow_layout()
        worker._tick()
        watch._discover()
        note_split(watch, uuid, 10**8, {"asleep": 10**8})
        instance.fail("DeviceGetMemoryInfo", pynvml.NVML_ERROR_TIMEOUT)
        worker._tick()
        instance.fail("DeviceGetMemoryInfo", pynvml.NVML_SUCCESS)
        with watch._isolated(f"watching the feeders of {uuid}"):
            raise ValueError(uuid)
        assert [gpu.feeding is not None for gpu in sampler.state().gpus] == [True, True]
    destroyed.remove(uuid)
    assert remains(sampler, destroyed) == set()
    assert remains(sampler, {uuid})
    assert opened("samples") == 2 * len(worker.snapshots(time.monotonic_ns()))
    assert opened("sets") == 1
