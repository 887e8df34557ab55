"""Runs a few lines of pynvml in a fresh process, on the stand-in and a board."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu_bottleneck_exporter

_PACKAGES = Path(gpu_bottleneck_exporter.__file__).parents[1]
_PRELUDE = """
import ctypes, json, os, threading, time
from pathlib import Path
import pynvml
from pynvml import *
from gpu_bottleneck_exporter.driver.board import Board, Work

def attempt(function, *arguments):
    try:
        return function(*arguments)
    except NVMLError as error:
        return f"error {error.value}"

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


def probe(library: Path, path: Path | None, code: str, *, opened: bool = True) -> Any:  # noqa: ANN401
    """What `code` leaves in `answer`; `board` and `gpu` are open unless `opened` is False."""
    environment = {key: value for key, value in os.environ.items() if key != "FAKE_NVML_BOARD"}
    environment |= {"LD_LIBRARY_PATH": str(library.parent), "PYTHONPATH": str(_PACKAGES)}
    if path is not None:
        environment["FAKE_NVML_BOARD"] = str(path)
    script = _PRELUDE + (_OPENED if opened else "") + code + "\nprint(json.dumps(answer))"
    command = [sys.executable, "-c", script]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)
