"""Ctrl-C: what was seen is reported, and no command leaves a traceback."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.demo.board.create import H100
from support.board import Board
from support.command import COMMAND, environment
from support.drivers import Libraries
from support.waiting import PATIENCE_SECONDS, until


class Terminal:
    """A command whose errors go to a terminal."""

    def __init__(self, process: subprocess.Popen[str], terminal: int) -> None:
        self.process = process
        self._terminal = terminal
        self.said = ""

    def hears(self, words: str) -> None:
        """Wait until it says so, or ends."""
        with suppress(OSError):  # it has ended
            while words not in self.said:
                self.said += os.read(self._terminal, 4096).decode()

    def interrupt(self) -> str:
        """Press Ctrl-C; what it prints then."""
        self.process.send_signal(signal.SIGINT)
        printed, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        self.hears("the end of what it says")
        return printed


@contextmanager
def watching(folder: Path, board: Board, libraries: Libraries, *words: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *words],
        env=environment(folder, **libraries.variables(board)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            os.close(ours)


def test_an_interrupted_diagnose_reports_its_samples(
    make_board: Callable[..., Board], libraries: Libraries, tmp_path: Path
) -> None:
    board = make_board(gpus=[H100])
    with watching(tmp_path, board, libraries, "diagnose", "600") as command:
        command.hears(" s left  GPU 0 ")
        first, heading, *_ = command.interrupt().splitlines()
    assert first.startswith("interrupted after ")
    assert first.endswith(" of 600 s")
    assert heading.startswith("GPU 0  NVIDIA H100")
    assert command.process.returncode == 0
    assert "Traceback" not in command.said


def test_an_interrupt_before_the_first_sample_reports_that_there_is_none(
    make_board: Callable[..., Board], libraries: Libraries, tmp_path: Path
) -> None:
    board = make_board(gpus=[H100])
    with watching(tmp_path, board, libraries, "diagnose", "600") as command:
        tasks = Path(f"/proc/{command.process.pid}/task")
        until(lambda: len([*tasks.iterdir()]) > 1, "it has begun")  # threads that watch
        assert command.interrupt() == ""
    assert "interrupted before anything was measured" in command.said


SLOW = """
import runpy, sys, time
class Slow:
    def find_spec(self, name, *_):
        if name == module:
            print("importing", flush=True)
            time.sleep(600)
module = sys.argv.pop(1)
sys.meta_path.insert(0, Slow())
runpy.run_module("gpu_bottleneck_exporter", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("module", "status"),
    [("click", -signal.SIGINT), ("gpu_bottleneck_exporter.commands.check", 0)],
)
def test_no_command_leaves_a_traceback_while_it_is_imported(
    tmp_path: Path, module: str, status: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, module, "check"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, result = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, result) == (status, "")
