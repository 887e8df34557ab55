"""Children that outlive a main keep its memory: found by what they have open, and not free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDevice, VirtualDriver
from gpu_bottleneck_exporter.driver import protocol
from gpu_bottleneck_exporter.driver.nvml.remedies import NVIDIA
from gpu_bottleneck_exporter.driver.readings import Identity, Memory, Processes, Reading
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.unlisted import (
    MIN_HELD_BYTES,
    UnlistedProcesses,
    has_unlisted_holder,
)
from support.metrics import shown
from support.programs import program
from support.rows import rows
from support.samplers import EVERY_TICK, sampling
from support.states import HOPPER, MIG_INSTANCE, MIG_PARENT, by_type, hopper
from support.waiting import until

PROC = Path("/proc")
MakeBoard = Callable[..., Board]
KEPT = (Memory(80 * 2**30, MIN_HELD_BYTES), Processes())
ORPHANS = """
kept = [open(path) for path in sys.argv[1:]]
main = os.fork()
if main == 0:
    worker = os.fork()
    if worker == 0:
        locked()
    ready(worker)
    os._exit(0)
os.waitpid(main, 0)
kept.clear()
told()
"""
"""A main forks a worker and ends; the program only starts it, and has closed what it had open."""


def gpu(identity: Identity, *readings: Reading) -> GpuSnapshot:
    return replace(hopper(identity), readings=by_type(*readings))


@rows(
    "readings, kept",
    {
        "memory without a process": (KEPT, True),
        "less than a context takes": ((Memory(80 * 2**30, MIN_HELD_BYTES - 1), Processes()), False),
        "others may be hidden": ((KEPT[0], Processes(others_hidden=True)), False),
        "a desktop": ((KEPT[0], Processes(bystanders=1)), False),
        "memory of the machine": ((replace(KEPT[0], of_machine=True), Processes()), False),
        "unknown memory": ((KEPT[1],), False),
        "unknown processes": ((KEPT[0],), False),
    },
)
def test_memory_without_a_listed_holder(*, readings: tuple[Reading, ...], kept: bool) -> None:
    assert has_unlisted_holder(gpu(HOPPER, *readings)) is kept


@contextmanager
def orphan(*nodes: Path) -> Iterator[int]:
    for node in nodes:
        node.touch()
    with program(ORPHANS, *nodes) as starter:
        yield int(starter.words[0])


def test_a_worker_that_outlived_its_main_is_found_by_its_open_devices(tmp_path: Path) -> None:
    nodes = tmp_path / "gpu0", tmp_path / "all"
    search = UnlistedProcesses(PROC, lambda: [gpu(HOPPER, *KEPT)], lambda _: [*map(str, nodes)])
    with orphan(*nodes) as worker, orphan(nodes[1]):
        search._update()
        assert search.pids == {HOPPER.uuid: (worker,)}

    def none_left() -> bool:
        search._update()
        return search.pids == {HOPPER.uuid: ()}

    until(none_left, "its end")


def test_nothing_is_searched_for_under_mig() -> None:
    both = [gpu(replace(item, minor=1), *KEPT) for item in (MIG_PARENT, MIG_INSTANCE)]
    search = UnlistedProcesses(PROC, lambda: both, NVIDIA.device_nodes)
    search._update()
    assert not search.pids


def test_the_device_nodes_of_a_context() -> None:
    assert {*NVIDIA.device_nodes(replace(HOPPER, minor=3))} == {"/dev/nvidia3", "/dev/nvidia-uvm"}
    assert not NVIDIA.device_nodes(replace(HOPPER, minor=None))


class Device(VirtualDevice):
    """A GPU whose memory is in use whether or not a process is listed."""

    def memory(self) -> Memory:
        return Memory(self._record.memory_total, MIN_HELD_BYTES)


class Driver(VirtualDriver):
    """A driver whose device node is a file of the test's."""

    def __init__(self, board: Board, node: Path) -> None:
        super().__init__(board)
        self.about = replace(self.about, device_nodes=lambda _: [f"{node}"])

    def open(self, index: int) -> list[protocol.Device]:
        return [Device(self.board, index)]


def test_they_are_counted_until_a_process_is_listed(make_board: MakeBoard, tmp_path: Path) -> None:
    board = make_board()
    with (
        orphan(tmp_path / "gpu0"),
        program("ready(); told()") as holder,
        sampling(lambda: Driver(board, tmp_path / "gpu0"), collectors=EVERY_TICK) as sampler,
    ):
        assert sampler._unlisted is not None
        sampler._unlisted._pause_seconds = 0.02
        until(lambda: shown(sampler).total("gpu_unlisted_processes") == 1, "the worker")
        board.gpus[0].hold(holder.pid, 2**30)
        until(lambda: shown(sampler).total("gpu_unlisted_processes") is None, "the holder")
