"""Nodes: which case runs where, with its virtual board, exporter and kubelet."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from causes import board, node
from causes.cases import Case, Gpu
from support.board import Board, VirtualGpu, create
from support.board_exporter import Exporter, started
from support.kubelet import Kubelet, with_gpus

_FIRST_JOB = 1000
_MAX_GPUS = 24


@dataclass(frozen=True, slots=True)
class Place:
    """A case and the first of its GPUs on the board of its node."""

    case: Case
    first: int
    job: int
    """The index of its first Slurm job."""


@dataclass(slots=True)
class Node:
    """A board, its exporter, and the cases on it."""

    number: int
    folder: Path
    places: list[Place] = field(default_factory=list)
    gpus: int = 0
    board: Board = field(init=False)
    exporter: Exporter = field(init=False)
    exporter_ended: bool = False

    @property
    def library(self) -> Path:
        """The folder of the stand-in for the driver's library, which all nodes share."""
        return self.folder.with_name("library")

    @property
    def target(self) -> str:
        """Address for Prometheus to scrape."""
        return self.exporter.target

    def models(self) -> Iterator[Gpu]:
        """Its GPUs, in order."""
        for place in self.places:
            yield from place.case.gpus

    def gpus_of(self, place: Place) -> tuple[VirtualGpu, ...]:
        """The virtual GPUs of a case."""
        return self.board.gpus[place.first : place.first + len(place.case.gpus)]


def nodes_of(cases: Sequence[Case], folder: Path) -> list[Node]:
    """Cases side by side on as few boards as possible; those marked alone get their own."""
    nodes: list[Node] = []
    shared: Node | None = None
    for number, case in enumerate(cases):
        if case.alone or shared is None or shared.gpus + len(case.gpus) > _MAX_GPUS:
            home = Node(len(nodes), folder / f"node{len(nodes)}")
            home.folder.mkdir()
            nodes.append(home)
            shared = shared if case.alone else home
        else:
            home = shared
        home.places.append(Place(case, home.gpus, _FIRST_JOB + 10 * number))
        home.gpus += len(case.gpus)
    return nodes


def prepare(one: Node, cleanup: ExitStack) -> None:
    """Create its board, and start its kubelet."""
    one.board = create(one.folder / "board", gpus=[gpu.model for gpu in one.models()])
    cleanup.callback(one.board.close)
    pods = [
        with_gpus(f"pod-{gpu.index}", gpu.record.uuid.decode())
        for gpu, model in zip(one.board.gpus, one.models(), strict=True)
        if model.assigned
    ]
    if pods:
        cleanup.enter_context(Kubelet(one.folder / node.SOCKET, *pods))
    change(one, 0.0)


@contextmanager
def exporter(one: Node, port: int = 0) -> Iterator[Exporter]:
    """An exporter of its board; port 0 lets the kernel choose."""
    command = [sys.executable, node.__file__, f"{port}", f"{one.folder}"]
    places = {"LD_LIBRARY_PATH": f"{one.library}", "FAKE_NVML_BOARD": f"{one.board.path}"}
    with started(command, places | {"PYTHONPATH": os.pathsep.join(sys.path)}) as exporter:
        yield exporter


def change(one: Node, elapsed: float) -> None:
    """Apply to its board what is due after this many seconds."""
    for place in one.places:
        for gpu, staged in zip(one.gpus_of(place), place.case.gpus, strict=True):
            board.change(one.board, gpu, staged.happens, elapsed)
