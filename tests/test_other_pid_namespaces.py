"""Where the exporter does not see the processes of other PID namespaces: none may be some."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.driver.board import H100, Board, create
from gpu_bottleneck_exporter.driver.virtual import VirtualDriver
from gpu_bottleneck_exporter.exposition import Exposition
from gpu_bottleneck_exporter.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings

PATIENCE_SECONDS = 20.0


class Driver(VirtualDriver):
    """One that leaves out processes of other PID namespaces, as NVIDIA's does."""

    name = "nvml"


@contextmanager
def exporter(board: Board, procfs: Path) -> Iterator[Sampler]:
    settings = Settings(interval_seconds=0.2, deadline_seconds=1.0, procfs=procfs)
    sampler = Sampler(lambda: Driver(board), ALL, settings, lambda _: None)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


def in_another_namespace(folder: Path) -> Path:
    """A procfs that says so."""
    (folder / "proc/self/ns").mkdir(parents=True)
    for name in ("self/ns/pid", "stat"):
        (folder / "proc" / name).touch()
    return folder / "proc"


def families(sampler: Sampler) -> set[str]:
    text = Exposition(sampler, ALL).render()[0].decode()
    return {line.split("{")[0] for line in text.splitlines() if not line.startswith("#")}


def after_a_tick(sampler: Sampler) -> set[str]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "gpu_stall_seconds_total" not in (found := families(sampler)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_no_process_that_is_seen_is_not_told_as_none(tmp_path: Path) -> None:
    with create(tmp_path / "board", gpus=[H100]) as board:
        with exporter(board, in_another_namespace(tmp_path)) as sampler:
            assert "gpu_processes" not in after_a_tick(sampler)
            stalls = sampler.state().gpus[0].totals.stall_ns or {}
            assert {name for name, spent in stalls.items() if spent} == {"unknown"}
        with exporter(board, Path("/proc")) as sampler:
            assert "gpu_processes" in after_a_tick(sampler)


def test_those_that_are_seen_are_told(tmp_path: Path) -> None:
    with create(tmp_path / "board", gpus=[H100]) as board:
        board.gpus[0].hold(1, 2**30)
        with exporter(board, in_another_namespace(tmp_path)) as sampler:
            assert "gpu_processes" in after_a_tick(sampler)
