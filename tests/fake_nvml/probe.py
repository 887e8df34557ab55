"""Runs a few lines of pynvml, on the stand-in and a board, as a fresh process would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpu_bottleneck_exporter

_PATHS = [f"{Path(file).parents[1]}" for file in (gpu_bottleneck_exporter.__file__, __file__)]
_PRELUDE = """
import ctypes, json, os, threading, time
from pathlib import Path
import pynvml
from pynvml import *
from gpu_bottleneck_exporter.demo.board.work import Work
from support.board import CALL, Board

def attempt(function, *arguments):
    try:
        return function(*arguments)
    except NVMLError as error:
        return f"error {error.value}"

def at_once(read):
    "When, and what `read` returned, without a pause in which others had the CPU."
    for _ in range(10_000):
        began = time.monotonic_ns()
        found = read()
        if time.monotonic_ns() - began < 5_000_000:
            return began, found
    raise AssertionError("it is never read at once")

def fields(gpu, *ids):
    values = nvmlDeviceGetFieldValues(gpu, list(ids))
    return [read(value) if value.nvmlReturn == 0 else f"error {value.nvmlReturn}"
            for value in values]

def read(value):
    return getattr(value.value, {1: "uiVal", 3: "ullVal", 5: "siVal"}[value.valueType])
"""
_OPENED = """
board = Board(Path(os.environ["FAKE_NVML_BOARD"]))
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
"""
_SERVE = """
import sys

for line in sys.stdin:
    path, code = json.loads(line)
    if os.fork() == 0:
        if path is not None:
            os.environ["FAKE_NVML_BOARD"] = path
        exec(code)
        print(json.dumps(answer), flush=True)
        os._exit(0)
    if os.wait()[1]:
        print('"failed"', flush=True)
"""


class Probe:
    """Forks for each question: what is on a board is read before it has grown old."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, board: Path | None, code: str, *, opened: bool = True) -> Any:  # noqa: ANN401
        """What `code` leaves in `answer`; `board` and `gpu` are open unless `opened` is False."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = [None if board is None else f"{board}", (_OPENED if opened else "") + code]
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer != "failed"
        return answer


@contextmanager
def probe(library: Path) -> Iterator[Probe]:
    """A process with pynvml that will use `library`."""
    environment = {key: value for key, value in os.environ.items() if key != "FAKE_NVML_BOARD"}
    environment |= {"LD_LIBRARY_PATH": f"{library.parent}", "PYTHONPATH": os.pathsep.join(_PATHS)}
    with subprocess.Popen(
        [sys.executable, "-c", _PRELUDE + _SERVE],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Probe(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
