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

_PACKAGES = Path(gpu_bottleneck_exporter.__file__).parents[1]
_PRELUDE = """
import ctypes, json, os, threading, time
from pathlib import Path
import pynvml
from pynvml import *
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.work import Work

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

def samples(gpu, kind, last_seen=0):
    taken = nvmlDeviceGetSamples(gpu, kind, last_seen)[1]
    return [(sample.timeStamp, sample.sampleValue.uiVal) for sample in taken]

def gpm(first, second, *ids):
    request = c_nvmlGpmMetricsGet_t(version=1, numMetrics=len(ids), sample1=first, sample2=second)
    for position, metric in enumerate(ids):
        request.metrics[position].metricId = metric
    nvmlGpmMetricsGet(request)
    metrics = request.metrics[:len(ids)]
    return [m.value if m.nvmlReturn == 0 else f"error {m.nvmlReturn}" for m in metrics]
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
    environment |= {"LD_LIBRARY_PATH": f"{library.parent}", "PYTHONPATH": f"{_PACKAGES}"}
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
