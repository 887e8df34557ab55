"""All situations at the same time: boards, processes, exporters, a kubelet, one Prometheus."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from causes import holder, node
from causes.cases import BLIND_FOR_JOBS, DAY, JUDGED_SECONDS, Case, Expected, Gpu, Process
from causes.heard import FREE, HELD, LOOKED_AT, SCRAPED, Heard, Told, Whose
from gpu_bottleneck_exporter.driver.board import MAX_GPUS, Board, VirtualGpu, create
from support.board_exporter import Exporter, started
from support.kubelet import Kubelet, with_gpus
from support.prometheus import Prometheus, prometheus
from support.quickrules import MODEST, await_rules, quick_rules

_SCRAPED_EVERY_SECONDS = 0.5
_TICK_SECONDS = 0.5
_PATIENCE_SECONDS = 60.0
_FIRST_JOB = 1000
_GIVEN_ELSEWHERE = ("SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
"""What would make these processes those of a job that happens to run the tests."""


@dataclass(frozen=True, slots=True)
class Place:
    """A case and the first of its GPUs on the board of its node."""

    case: Case
    first: int
    job: int
    """The first of its Slurm jobs."""


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
    def target(self) -> str:
        """What Prometheus scrapes."""
        return self.exporter.target

    def models(self) -> Iterator[Gpu]:
        """Its GPUs in order."""
        for place in self.places:
            yield from place.case.gpus

    def gpus_of(self, place: Place) -> tuple[VirtualGpu, ...]:
        """The virtual GPUs of a case."""
        return self.board.gpus[place.first : place.first + len(place.case.gpus)]


def staged(cases: Sequence[Case], folder: Path) -> list[Heard]:
    """What Prometheus said of each GPU of `cases`, and of the nodes, in that order."""
    with ExitStack() as cleanup:
        nodes = _nodes(cases, folder)
        for each in nodes:
            _start(each, cleanup)
        rules = cleanup.enter_context(quick_rules(folder, DAY))
        jobs = [(f"node{each.number}", each.target, _SCRAPED_EVERY_SECONDS) for each in nodes]
        server = cleanup.enter_context(prometheus(folder, jobs, rules, MODEST))
        await_rules(server, len(nodes))
        crowd = cleanup.enter_context(_crowd())
        began = time.time()
        _play(nodes, crowd, cleanup)
        return _heard(nodes, server, began)


def _nodes(cases: Sequence[Case], folder: Path) -> list[Node]:
    """Cases side by side on as few boards as hold them; those that are alone on their own."""
    nodes: list[Node] = []
    shared: Node | None = None
    for number, case in enumerate(cases):
        if case.alone or shared is None or shared.gpus + len(case.gpus) > MAX_GPUS:
            home = Node(len(nodes), folder / f"node{len(nodes)}")
            home.folder.mkdir()
            nodes.append(home)
            shared = shared if case.alone else home
        else:
            home = shared
        home.places.append(Place(case, home.gpus, _FIRST_JOB + 10 * number))
        home.gpus += len(case.gpus)
    return nodes


def _start(one: Node, cleanup: ExitStack) -> None:
    one.board = create(one.folder / "board", gpus=[gpu.model for gpu in one.models()])
    cleanup.callback(one.board.close)
    pods = [
        with_gpus(f"pod-{gpu.index}", gpu.record.uuid.decode())
        for gpu, told in zip(one.board.gpus, one.models(), strict=True)
        if told.assigned
    ]
    if pods:
        cleanup.enter_context(Kubelet(one.folder / node.SOCKET, *pods))
    _change(one, 0.0)
    one.exporter = cleanup.enter_context(_exporter(one))


@contextmanager
def _exporter(one: Node, port: int = 0) -> Iterator[Exporter]:
    command = [sys.executable, node.__file__, f"{one.board.path}", f"{port}", f"{one.folder}"]
    with started(command, {}) as exporter:
        yield exporter


class Crowd:
    """The processes of all cases."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since all was there; negative before."""
        return time.monotonic() - self.began

    def start(self, one: Node, place: Place, process: Process) -> None:
        """Start a process of a case."""
        folder = one.folder / f"{place.job}"
        folder.mkdir(exist_ok=True)
        shares = [] if process.role == "asks" else _shares(place)
        job = holder.Job(f"{one.board.path}", self.began, f"{folder}", shares)
        command = [_program(process.role, folder), process.role, f"{os.getpid()}", job.dumped()]
        environment = {k: v for k, v in os.environ.items() if k not in _GIVEN_ELSEWHERE}
        if shares:
            environment["SLURM_JOB_ID"] = f"{place.job + process.tenant}"
        # A session of its own has no terminal, which would make it interactive.
        self.processes.append(
            subprocess.Popen([sys.executable, *command], env=environment, start_new_session=True)
        )

    def end(self) -> None:
        """Kill all, and see them gone."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def check(self) -> None:
        """None may have ended."""
        ended = [process.args for process in self.processes if process.poll() is not None]
        assert not ended, f"ended early: {ended}"


def _program(role: str, folder: Path) -> str:
    """The script, by the name that makes it a notebook's kernel where it is one."""
    if role != "notebook":
        return holder.__file__
    name = folder / "ipykernel_launcher.py"
    name.symlink_to(holder.__file__)
    return f"{name}"


def _shares(place: Place) -> list[holder.Share]:
    """Each process that works does its part of what the GPU is to do."""
    workers = sum(process.role != "asks" for process in place.case.processes)
    return [
        holder.Share(
            place.first + at,
            gpu.held / workers,
            gpu.held_growth,
            [
                (
                    phase.since,
                    phase.busy if phase.busy >= 1 else phase.busy / workers,
                    asdict(phase.work),
                )
                for phase in gpu.phases
            ],
        )
        for at, gpu in enumerate(place.case.gpus)
    ]


@contextmanager
def _crowd() -> Iterator[Crowd]:
    crowd = Crowd()
    try:
        yield crowd
    finally:
        crowd.end()


def _everybody(nodes: Iterable[Node]) -> Iterator[tuple[Node, Place, Process]]:
    for one in nodes:
        for place in one.places:
            for process in place.case.processes:
                yield one, place, process


def _play(nodes: Sequence[Node], crowd: Crowd, cleanup: ExitStack) -> None:
    """Let all happen in its time."""
    waiting = list(_everybody(nodes))
    while crowd.elapsed < JUDGED_SECONDS:
        for entry in [entry for entry in waiting if entry[2].starts <= crowd.elapsed]:
            crowd.start(*entry)
            waiting.remove(entry)
        for one in nodes:
            _change(one, crowd.elapsed)
            _end_exporter(one, crowd.elapsed, cleanup)
        crowd.check()
        time.sleep(_TICK_SECONDS)


def _end_exporter(one: Node, elapsed: float, cleanup: ExitStack) -> None:
    """Kill the exporter when it is time, and start another one if there is to be one."""
    case, process = one.places[0].case, one.exporter.process
    if case.exporter_ends is None or elapsed < case.exporter_ends or one.exporter_ended:
        return
    one.exporter_ended = True
    process.kill()
    process.wait()
    if case.exporter_returns:
        one.exporter = cleanup.enter_context(_exporter(one, one.exporter.port))


def _change(one: Node, elapsed: float) -> None:
    for place in one.places:
        for gpu, told in zip(one.gpus_of(place), place.case.gpus, strict=True):
            for condition in told.conditions:
                condition(one.board, gpu, elapsed)


def _heard(nodes: Sequence[Node], server: Prometheus, began: float) -> list[Heard]:
    end = time.time()
    alerts = server.query_range("ALERTS", began, end, 1.0)
    primary = server.query_range("gpu:bottleneck:primary", began, end, 1.0)
    looked_at = server.query_range(LOOKED_AT, began, end, 1.0)
    told = Told(began, alerts, primary, looked_at)
    return [heard for one in nodes for heard in _of_node(one, told)]


def _of_node(one: Node, told: Told) -> Iterator[Heard]:
    for place in one.places:
        case, looked_at = place.case, HELD if place.case.processes else FREE
        for at, (gpu, what) in enumerate(zip(one.gpus_of(place), case.gpus, strict=True)):
            title = f"{case.name}, GPU {at}" if len(case.gpus) > 1 else case.name
            uuid = gpu.record.uuid.decode()
            yield told.heard(Whose(title, case.name), what.expected, looked_at, uuid=uuid)
    yield told.heard(*_of_all(one), SCRAPED, instance=one.target, uuid="")


def _of_all(one: Node) -> tuple[Whose, Expected]:
    """What is expected of the node as a whole."""
    first = one.places[0].case
    if first.alone:
        return Whose(f"{first.name}, node", first.name), first.expected
    shared = any(place.case.of_several for place in one.places)
    besides = frozenset({BLIND_FOR_JOBS} if shared else set())
    return Whose(f"node {one.number}"), Expected(besides=besides)
