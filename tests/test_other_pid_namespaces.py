"""The exporter does not see the processes of other PID namespaces: none may be some."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.driver.nvml.remedies import NVIDIA
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from support.metrics import shown
from support.samplers import FAST, sampling
from support.waiting import until


class Driver(VirtualDriver):
    """One that leaves out processes of other PID namespaces, as NVIDIA's does."""

    about = replace(VirtualDriver.about, sees_all_namespaces=NVIDIA.sees_all_namespaces)


def exporter(board: Board, procfs: Path) -> AbstractContextManager[Sampler]:
    return sampling(lambda: Driver(board), replace(FAST, procfs=procfs))


def in_another_namespace(folder: Path) -> Path:
    """A procfs that says so."""
    (folder / "proc/self/ns").mkdir(parents=True)
    for name in ("self/ns/pid", "stat"):
        (folder / "proc" / name).touch()
    return folder / "proc"


def stalls(sampler: Sampler) -> set[str]:
    """Causes of idle time."""
    values = (gpu.totals.stall_ns or {} for gpu in sampler.state().gpus)
    return {name for stall in values for name, spent in stall.items() if spent}


def after_a_tick(sampler: Sampler) -> set[str]:
    until(lambda: stalls(sampler), lambda: shown(sampler).names)
    return shown(sampler).names


def test_a_hidden_process_is_not_reported_as_none(tmp_path: Path) -> None:
    with create(tmp_path / "board", gpus=[H100]) as board:
        with exporter(board, in_another_namespace(tmp_path)) as sampler:
            assert "gpu_processes" not in after_a_tick(sampler)
            assert stalls(sampler) == {"unknown"}
        with exporter(board, Path("/proc")) as sampler:
            assert "gpu_processes" in after_a_tick(sampler)


def test_visible_processes_are_reported(tmp_path: Path) -> None:
    with create(tmp_path / "board", gpus=[H100]) as board:
        board.gpus[0].hold(1, 2**30)
        with exporter(board, in_another_namespace(tmp_path)) as sampler:
            assert "gpu_processes" in after_a_tick(sampler)
