"""The processes that hold GPUs, and their clients."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from causes import holder
from causes.cases import Process
from causes.nodes import Node, Place

_GIVEN_ELSEWHERE = ("SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
"""Variables that would attribute these processes to a job that runs the tests."""


Member = tuple[Node, Place, Process]


@dataclass(slots=True)
class Running:
    """A process of a case, and when to restart it."""

    of: Member
    process: subprocess.Popen[bytes]
    ends: float


class Crowd:
    """The processes of all cases."""

    def __init__(self, first: Sequence[Member]) -> None:
        """Start `first`, which takes seconds; they wait for `begin`."""
        self.running = [Running(member, self._started(member), member[2].life) for member in first]
        for each in self.running:
            _await(each.process)
        self.began = math.inf

    def begin(self) -> None:
        """Let the first processes hold their GPUs."""
        self.began = time.monotonic()
        for each in self.running:
            self._let(each.process)

    @property
    def elapsed(self) -> float:
        """Seconds since the first processes began."""
        return time.monotonic() - self.began

    def start(self, member: Member) -> None:
        """Start a process of a case."""
        self.running.append(Running(member, self._one(member), self.elapsed + member[2].life))

    def renew(self) -> None:
        """Restart those that are old enough."""
        for each in self.running:
            if each.ends <= self.elapsed:
                _end(each.process)
                each.process = self._one(each.of)
                each.ends += each.of[2].life

    def _one(self, member: Member) -> subprocess.Popen[bytes]:
        process = self._started(member)
        _await(process)
        self._let(process)
        return process

    def _let(self, process: subprocess.Popen[bytes]) -> None:
        """Let it begin, and tell it when all did."""
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            process.stdin.write(f"{self.began}\n".encode())

    @staticmethod
    def _started(member: Member) -> subprocess.Popen[bytes]:
        node, place, process = member
        folder = node.folder / f"{place.job}"
        folder.mkdir(exist_ok=True)
        shares = [] if process.role == "asks" else _shares(place)
        board = f"{node.board.path}"
        job = {"board": board, "folder": f"{folder}", "shares": shares}
        command = [_program(process.role, folder), process.role, f"{os.getpid()}", json.dumps(job)]
        environment = {k: v for k, v in os.environ.items() if k not in _GIVEN_ELSEWHERE}
        if shares:
            environment["SLURM_JOB_ID"] = f"{place.job + process.tenant}"
        # A new session has no terminal, which would make the process interactive.
        return subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )

    def end(self) -> None:
        """Kill all, and wait until they are gone."""
        for each in self.running:
            _end(each.process)

    def check(self) -> None:
        """None may have ended."""
        processes = [each.process for each in self.running]
        ended = [process.args for process in processes if process.poll() is not None]
        assert not ended, f"ended early: {ended}"


def _await(process: subprocess.Popen[bytes]) -> None:
    """Wait until it is ready."""
    assert process.stdout is not None
    process.stdout.read(1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it with the child that holds the GPUs, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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
        parts = [
            (phase, phase.busy if phase.busy >= 1 else phase.busy / workers) for phase in gpu.phases
        ]
        phases = [(phase.since, part, asdict(phase.work)) for phase, part in parts]
        held = gpu.held / workers
        shares.append({"index": at, "held": held, "growth": gpu.held_growth, "phases": phases})
    return shares
