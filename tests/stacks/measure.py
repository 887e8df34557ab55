"""Stages cases: their servers, their loops, and the samplers that the exporter serves from.

Every process has its own session, and a mark in its environment by which it and all that it
started are found and killed afterwards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import gpu_bottleneck_exporter
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from scenarios.cases import CPU_QUEUE, NEED_CPU
from scenarios.cgroups import Unavailable, disk_of, limited
from scenarios.measure import ENOUGH, Looks, Span, Watched, accounted, explained, look, watched
from stacks import venvs
from stacks.cases import Case, Labels
from stacks.servers.table import SERVERS, Server
from stacks.venvs import VenvError
from support.leftovers import MARK
from support.rights import _after
from support.samplers import sampling
from support.tools import WITH_US
from support.waiting import until

BUSY = 0.9
"""Least busy share if the loop is well fed."""
TOO_BUSY = 0.75
"""Above this busy share, a starved case has too little idle time to judge."""
_LOOK_NS = 900_000_000
"""One tick."""
_FIRST_WORK_NS = 100_000_000
_PATIENCE_SECONDS = 120.0
_LOG_CHARACTERS = 1500
_KEPT = ("PATH", "LANG", "TZ", "CI", "LD_LIBRARY_PATH", MARK)


class Failed(Exception):  # noqa: N818 - reported like a result
    """The case did not run as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Watched):
    """What one GPU was found to wait for."""

    expected: Labels
    workers: int = 0
    """How many it was found to have."""

    def margins(self, span: Span) -> tuple[float, ...]:
        if not self.expected:
            return ((span.busy_ns - BUSY * span.observed_ns) / 1e9,)
        queue = {CPU_QUEUE} if span.crowded and self.expected & NEED_CPU else set()
        idle = sum(span.stall_ns.values())
        right = sum(span.stall_ns[label] for label in self.expected | queue)
        return (right - ENOUGH * idle) / 1e9, (idle - (1 - TOO_BUSY) * span.observed_ns) / 1e9


def measure(*cases: Case, hog: bool = False) -> list[list[Found]]:
    """Stage `cases` side by side, alone on the machine or next to a process that burns a core.

    Each has its own board and its own sampler, which starts when all of them run. Raises Failed if
    one did not run, Unavailable if the machine lacks what it takes.
    """
    with ExitStack() as ends:
        staged = [ends.enter_context(_staged(case)) for case in cases]
        if hog:
            staged[0][1].start_hog()
        samplers = [
            ends.enter_context(sampling(partial(VirtualDriver, board), Settings()))
            for board, _ in staged
        ]
        until(lambda: all(map(accounted, samplers)), "the samplers account for all GPUs")
        watched(samplers, int(max(case.warm_seconds for case in cases) * 1e9))
        began = time.monotonic_ns()
        results = iter(look(samplers, _LOOK_NS, partial(_found, cases)))
        for _, stage in staged:
            stage.check()
        return [
            [_told(next(results), sampler, gpu, began) for gpu in range(len(case.expected))]
            for case, sampler in zip(cases, samplers, strict=True)
        ]


def _found(cases: Sequence[Case], looks: Looks) -> list[Found]:
    """Of all GPUs of all cases."""
    return [
        Found(expected=expected, spans=[spans[at][gpu] for spans in looks])
        for at, case in enumerate(cases)
        for gpu, expected in enumerate(case.expected)
    ]


def measured(
    case: Case, first: list[Found] | None = None, *, hog: bool = False
) -> tuple[list[Found], list[Found] | None]:
    """The result; and what was found beside other cases, `first`, if that was not right."""
    if first and all(found.right for found in first):
        return first, None
    return measure(case, hog=hog)[0], first


def side_by_side(cases: Sequence[Case]) -> Sequence[list[Found] | None]:
    """What is found in each of `cases`; None if they are to run alone, or one did not run."""
    if len(cases) > 1:
        with contextlib.suppress(Failed, Unavailable, VenvError):
            return measure(*cases)
    return [None for _ in cases]


def stages(cases: Sequence[Case], most: int = 3) -> list[Sequence[Case]]:
    """Cases that run at the same time: `most` light ones; all others run alone."""
    light = [case for case in cases if case.light]
    alone = [(case,) for case in cases if not case.light]
    return [*(light[at : at + most] for at in range(0, len(light), most)), *alone]


class Stage:
    """The processes of one case."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case = case
        self._folder = folder
        self._mark = uuid.uuid4().hex
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._port = free_port()
        _make_library(folder / "lib")
        (folder / "home").mkdir()

    def start_server(self, name: str, server: Server) -> None:
        """Start it, and wait until it listens."""
        _require(server.programs)
        module = ("-m", "stacks.servers", server.module, name, *server.arguments)
        self._start(name, [f"{venvs.python(server.venv)}", *module])
        announced = self._folder / f"{name}.port"
        self._until(announced.exists, f"{name} listens")

    def start_loop(self, cgroups: tuple[Path, ...], board: Board) -> None:
        """Start the case's command, and wait for its first work or its message."""
        module, *arguments = self._case.loop
        words = ["-m", "stacks.loops", module, *arguments]
        self._start("loop", [f"{venvs.python(self._case.venv)}", *words], cgroups)
        self._until(lambda: self._is_ready(board), "it is ready")

    def start_hog(self) -> None:
        """Start what burns a core."""
        self._start("hog", [sys.executable, "-c", "while True: pass"])

    def check(self) -> None:
        """Raise Failed if a process has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise Failed(f"{name} ended with {process.returncode}: {self._log(name)}")

    def end(self) -> None:
        """Kill all processes and their descendants, and wait until they are gone."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while left := _started(self._mark, self._folder):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._processes.values():
                process.poll()
            assert time.monotonic() < deadline, f"{left} cannot be killed"
            time.sleep(0.05)
        for process in self._processes.values():
            process.wait()

    def _start(self, name: str, words: list[str], cgroups: tuple[Path, ...] = ()) -> None:
        enter = [f"echo $$ >'{group}/cgroup.procs'" for group in cgroups]
        with open(self._folder / f"{name}.log", "wb") as log:
            self._processes[name] = subprocess.Popen(
                [*WITH_US, *_after(*enter), *words],
                cwd=self._folder,
                env=self._environment(),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _environment(self) -> dict[str, str]:
        return {
            **{name: os.environ[name] for name in _KEPT if name in os.environ},
            "HOME": f"{self._folder / 'home'}",
            "PYTHONPATH": f"{self._folder / 'lib'}",
            "PYTHONUNBUFFERED": "1",
            "STACKS_BOARD": f"{self._folder / 'board'}",
            "STACKS_FOLDER": f"{self._folder}",
            "STACKS_MARK": self._mark,
            "STACKS_PORT": f"{self._port}",
        }

    def _is_ready(self, board: Board) -> bool:
        gpus = board.gpus[: len(self._case.expected)]
        working = all(gpu.record.submitted[1] >= _FIRST_WORK_NS for gpu in gpus)
        return working or (self._folder / "ready").exists()

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise Failed(f"never came: {what}: {self._log('loop')}")
            time.sleep(0.05)

    def _log(self, name: str) -> str:
        path = self._folder / f"{name}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return " / ".join(text[-_LOG_CHARACTERS:].split("\n"))


def _require(programs: Iterable[str]) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise Unavailable(f"no {program} on this machine")


@contextmanager
def _staged(case: Case) -> Iterator[tuple[Board, Stage]]:
    _require(case.programs)
    with ExitStack() as cleanup:
        folder = Path(
            cleanup.enter_context(tempfile.TemporaryDirectory(prefix="stacks-", dir="/var/tmp"))
        )
        if case.limits:
            disk_of(folder)
        board = cleanup.enter_context(create(folder / "board", gpus=[H100] * len(case.expected)))
        cgroups: tuple[Path, ...] = ()
        if case.limits:
            cgroups = cleanup.enter_context(limited(case.limits, folder))
        stage = Stage(case, folder)
        cleanup.callback(unmount, folder / "mount")
        cleanup.callback(stage.end)
        for name in case.servers:
            stage.start_server(name, SERVERS[name])
        stage.start_loop(cgroups, board)
        yield board, stage


def _told(found: Found, sampler: Sampler, gpu: int, began_ns: int) -> Found:
    """It, with what the accounting saw of the feeders."""
    assert sampler._watch is not None
    feed = sampler._watch.feed(sampler.state().gpus[gpu].identity.uuid)
    workers = len(feed.workers) if feed else 0
    return replace(found, workers=workers, feeders=explained(sampler, gpu, began_ns))


def _make_library(folder: Path) -> None:
    """What loops may import apart from their library: only the package and this suite."""
    folder.mkdir()
    (folder / "gpu_bottleneck_exporter").symlink_to(Path(gpu_bottleneck_exporter.__file__).parent)
    (folder / "stacks").symlink_to(Path(__file__).parent)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _started(mark: str, home: Path) -> list[int]:
    """The living processes that have the mark in their environment, or work in the folder.

    Processes that set their title, such as redis-server and Ray's, overwrite their environment.
    """
    wanted = f"STACKS_MARK={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            at_home = (folder / "cwd").readlink() == home
            if at_home or wanted in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def unmount(folder: Path) -> None:
    """Unmount what a killed FUSE server leaves behind."""
    if any(f" {folder} " in line for line in Path("/proc/mounts").read_text().splitlines()):
        subprocess.run(["umount", "-l", f"{folder}"], check=False)
