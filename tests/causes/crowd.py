"""The processes that hold GPUs, and their clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from causes import holder
from causes.cases import Process
from causes.nodes import Node, Place

_GIVEN_ELSEWHERE = ("SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
"""Variables that would attribute these processes to a job that runs the tests."""


@dataclass(slots=True)
class Running:
    """A process of a case, and when to restart it."""

    of: tuple[Node, Place, Process]
    process: subprocess.Popen[bytes]
    ends: float


class Crowd:
    """The processes of all cases."""

    def __init__(self) -> None:
        self.running: list[Running] = []
        self.began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the first process was started."""
        return time.monotonic() - self.began

    def start(self, one: Node, place: Place, process: Process) -> None:
        """Start a process of a case."""
        started = self._started(one, place, process)
        self.running.append(Running((one, place, process), started, self.elapsed + process.life))

    def renew(self) -> None:
        """Restart those that are old enough."""
        for each in self.running:
            if each.ends <= self.elapsed:
                each.process.kill()
                each.process.wait()
                each.process = self._started(*each.of)
                each.ends += each.of[2].life

    def _started(self, one: Node, place: Place, process: Process) -> subprocess.Popen[bytes]:
        folder = one.folder / f"{place.job}"
        folder.mkdir(exist_ok=True)
        shares = [] if process.role == "asks" else _shares(place)
        board = f"{one.board.path}"
        job = {"board": board, "began": self.began, "folder": f"{folder}", "shares": shares}
        command = [_program(process.role, folder), process.role, f"{os.getpid()}", json.dumps(job)]
        environment = {k: v for k, v in os.environ.items() if k not in _GIVEN_ELSEWHERE}
        if shares:
            environment["SLURM_JOB_ID"] = f"{place.job + process.tenant}"
        # A new session has no terminal, which would make the process interactive.
        return subprocess.Popen([sys.executable, *command], env=environment, start_new_session=True)

    def end(self) -> None:
        """Kill all, and wait until they are gone."""
        for each in self.running:
            each.process.kill()
        for each in self.running:
            each.process.wait()

    def check(self) -> None:
        """None may have ended."""
        processes = [each.process for each in self.running]
        ended = [process.args for process in processes if process.poll() is not None]
        assert not ended, f"ended early: {ended}"


def _program(role: str, folder: Path) -> str:
    """The script, under the name of a notebook's kernel if it is one."""
    if role != "notebook":
        return holder.__file__
    name = folder / "ipykernel_launcher.py"
    name.symlink_to(holder.__file__)
    return f"{name}"


def _shares(place: Place) -> list[dict[str, Any]]:
    """Each working process does its part of the GPU's work."""
    workers = sum(process.role != "asks" for process in place.case.processes)
    shares = []
    for at, gpu in enumerate(place.case.gpus, start=place.first):
        parts = [(one, one.busy if one.busy >= 1 else one.busy / workers) for one in gpu.phases]
        phases = [(one.since, part, asdict(one.work)) for one, part in parts]
        held = gpu.held / workers
        shares.append({"index": at, "held": held, "growth": gpu.held_growth, "phases": phases})
    return shares
