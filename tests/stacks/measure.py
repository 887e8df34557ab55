"""Stages cases: their servers, their loops, and the sampler that the exporter serves from.

Every process has its own session, and a mark in its environment by which it and all that it
started are found and killed afterwards.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import gpu_bottleneck_exporter
from gpu_bottleneck_exporter.demo.board.board import VirtualGpu
from gpu_bottleneck_exporter.demo.board.create import H100, create
from scenarios.cgroups import Unavailable, disk_of, limited
from scenarios.measure import Watched, look, watched, watching
from stacks import venvs
from stacks.cases import Case
from stacks.servers.table import SERVERS, Server
from stacks.venvs import VenvError
from support.daemon import get
from support.judging import LONGEST_SECONDS
from support.leftovers import MARK
from support.rights import _after
from support.tools import WITH_US, missing
from support.waiting import PATIENCE_SECONDS, eventually, until

_LOOK_NS = 900_000_000
"""One tick."""
_FIRST_WORK_NS = 100_000_000
_LOG_CHARACTERS = 1500
_KEPT = ("PATH", "LANG", "TZ", "CI", "LD_LIBRARY_PATH", MARK)


def measure(
    *cases: Case, hog: bool = False, longest_seconds: float = LONGEST_SECONDS
) -> list[list[Watched]]:
    """Stage `cases` side by side, alone on the machine or next to a process that burns a core.

    Fails if one does not run; raises Unavailable if the machine lacks what it takes.
    """
    with ExitStack() as ends:
        home = tempfile.TemporaryDirectory(prefix="stacks-", dir="/var/tmp")
        folder = Path(ends.enter_context(home))
        gpus = sum(len(case.expected) for case in cases)
        board = ends.enter_context(create(folder / "board", gpus=[H100] * gpus))
        left = iter(board.gpus)
        held = {case: [next(left) for _ in case.expected] for case in cases}
        stages = [ends.enter_context(staged(*one, folder)) for one in held.items()]
        if hog:
            stages[0].start_hog()
        sampler = ends.enter_context(watching(board))
        watched(sampler, int(max(case.warm_seconds for case in cases) * 1e9))
        expected = [labels for case in cases for labels in case.expected]
        wanted = [Watched(waiting_on=labels, gpu=gpu) for gpu, labels in enumerate(expected)]
        found = look(sampler, _LOOK_NS, wanted, longest_seconds)
        for stage in stages:
            stage.check()
    return [[found[gpu.index] for gpu in gpus] for gpus in held.values()]


def found_in(case: Case, first: list[Watched] | None = None) -> list[Watched]:
    """Measured alone, if it was not right at `first`, beside others; skips if it cannot be."""
    if first and all(found.right for found in first):
        return first
    try:
        return measure(case)[0]
    except (Unavailable, VenvError) as reason:
        missing(f"{reason}")


def side_by_side(cases: Sequence[Case]) -> Sequence[list[Watched] | None]:
    """What is found in each of `cases`; None if they are to run alone, or one did not run."""
    if len(cases) > 1:
        with contextlib.suppress(AssertionError, Unavailable, VenvError):
            return measure(*cases)
    return [None for _ in cases]


def stages(cases: Sequence[Case], most: int = 3) -> list[Sequence[Case]]:
    """Cases that run at the same time: `most` light ones; all others run alone."""
    light = [case for case in cases if case.light]
    alone = [(case,) for case in cases if not case.light]
    return [*(light[at : at + most] for at in range(0, len(light), most)), *alone]


class Stage:
    """The processes of one case."""

    def __init__(self, case: Case, folder: Path, gpus: Sequence[VirtualGpu]) -> None:
        self._case = case
        self._folder = folder
        self._gpus = gpus
        self._mark = uuid.uuid4().hex
        self.port = free_port()
        """Where the loop may listen."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **{name: os.environ[name] for name in _KEPT if name in os.environ},
            "HOME": f"{folder / 'home'}",
            "PYTHONPATH": f"{folder / 'lib'}",
            "PYTHONFAULTHANDLER": "1",
            "PYTHONUNBUFFERED": "1",
            "STACKS_BOARD": f"{folder.with_name('board')}",
            "STACKS_GPU": f"{gpus[0].index}",
            "STACKS_FOLDER": f"{folder}",
            "STACKS_MARK": self._mark,
            "STACKS_PORT": f"{self.port}",
        }
        (folder / "home").mkdir()
        # Loops may import only the package and this suite apart from their library.
        (folder / "lib").mkdir()
        for package in (Path(gpu_bottleneck_exporter.__file__).parent, Path(__file__).parent):
            (folder / "lib" / package.name).symlink_to(package)

    def start_server(self, name: str, server: Server) -> None:
        """Start it, and wait until it listens."""
        _require(server.programs)
        module = ("-m", "stacks.servers", server.module, name, *server.arguments)
        self._start(name, [f"{venvs.python(server.venv)}", *module])
        self._until((self._folder / f"{name}.port").exists, f"{name} listens")

    def stop_last(self) -> None:
        """Have what was started last end by itself: killed, it may leave shared memory behind."""
        process = self._processes.pop()
        process.terminate()
        process.wait(PATIENCE_SECONDS)

    def start_loop(self, cgroups: tuple[Path, ...]) -> None:
        """Start the case's command, and wait for its first work or its message."""
        words = ["-m", "stacks.loops", *self._case.loop]
        self._start("loop", [f"{venvs.python(self._case.venv)}", *words], cgroups)
        self._until(self._is_ready, "it is ready")

    def await_port(self, path: str) -> None:
        """Wait until the loop serves `path`."""
        self._until(lambda: get(self.port, path)[0] == http.client.OK, f"{path} is served")

    def start_hog(self) -> None:
        """Start what burns a core."""
        self._start("hog", [sys.executable, "-c", "while True: pass"])

    def check(self) -> None:
        """Fail if a process has ended."""
        assert not self._has_ended(), f"ended early: {self._logs()}"

    def end(self) -> None:
        """Kill all processes and their descendants, and wait until they are gone."""

        def gone() -> bool:
            left = _started(self._mark, self._folder)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return self._has_ended(all) and not left

        eventually(gone)

    def _start(self, name: str, words: list[str], cgroups: tuple[Path, ...] = ()) -> None:
        enter = [f"echo $$ >'{group}/cgroup.procs'" for group in cgroups]
        with open(self._folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                [*WITH_US, *_after(*enter), *words],
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)

    def _is_ready(self) -> bool:
        working = all(gpu.record.submitted[1] >= _FIRST_WORK_NS for gpu in self._gpus)
        return working or (self._folder / "ready").exists()

    def _has_ended(self, which: Callable[[Iterable[bool]], bool] = any) -> bool:
        return which([process.poll() is not None for process in self._processes])

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        until(condition, lambda: f"{what}: {self._logs()}", unless=self._has_ended)

    def _logs(self) -> str:
        logs = {log.stem: log.read_text(errors="replace") for log in self._folder.glob("*.log")}
        return "".join(f"\n{name}: {excerpt(log)}" for name, log in sorted(logs.items()))


def excerpt(log: str) -> str:
    """The first error in `log`, which is the root of those that follow; else its end."""
    error = re.search(r"Traceback \(most recent call last\)|Fatal Python error", log)
    return log[error.start() :][:_LOG_CHARACTERS] if error else log[-_LOG_CHARACTERS:]


def _require(programs: Iterable[str]) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise Unavailable(f"no {program} on this machine")


@contextmanager
def staged(case: Case, gpus: Sequence[VirtualGpu], home: Path) -> Iterator[Stage]:
    """The processes of `case`, in a folder of their own in `home`, until the block ends."""
    _require(case.programs)
    folder = home / f"{gpus[0].index}"
    folder.mkdir()
    with ExitStack() as cleanup:
        cgroups: tuple[Path, ...] = ()
        if case.limits:
            disk_of(folder)
            cgroups = cleanup.enter_context(limited(case.limits, folder))
        stage = Stage(case, folder, gpus)
        cleanup.callback(unmount, folder / "mount")
        cleanup.callback(stage.end)
        for name in case.servers:
            stage.start_server(name, SERVERS[name])
        stage.start_loop(cgroups)
        yield stage


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
