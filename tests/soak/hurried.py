"""The exporter with all its waits divided: hours pass in minutes.

    python tests/soak/hurried.py HURRY PORT WEB_CONFIG JOBS_FILE

Only time is shorter: what is read and kept, and how, is unchanged. Prints the GPUs' total number of
ticks every so often.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import gpu_bottleneck_exporter
from gpu_bottleneck_exporter import settings as bounds
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.commands import serve
from gpu_bottleneck_exporter.driver.nvml.driver import NvmlDriver
from gpu_bottleneck_exporter.driver.protocol import Device
from gpu_bottleneck_exporter.driver.readings import Reading
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.web.listen import bind
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from support.daemon import HOST

TOLD_EVERY = 20
DEADLINE_SECONDS = 0.5
KEPT_JOBS = 100
_PARTS = re.compile(
    r"gpu_bottleneck_exporter\.(feeders|accounting\.bucket|host|workload|nodeview|logthrottle|schedule|web\.reload|sampling\.(discovery|gpureader|hostreader|linewatch|peers|watching|worker))\b.*"
)
_TIMES = re.compile(r"_?[A-Z_]+_(SECONDS|NS)|CADENCE|JUDGED|STALLS")
_NO_WAITS = frozenset({"TICK_NS", "_STOP_SECONDS", "_PATIENCE_SECONDS"})


def hurry(by: float) -> None:
    """Divide all waits."""
    result = pkgutil.walk_packages(gpu_bottleneck_exporter.__path__, "gpu_bottleneck_exporter.")
    for module in [
        importlib.import_module(item.name) for item in result if _PARTS.fullmatch(item.name)
    ]:
        for name in [n for n in vars(module) if _TIMES.fullmatch(n) and n not in _NO_WAITS]:
            setattr(module, name, _divided(getattr(module, name), by))


def _divided(value: Any, by: float) -> object:  # noqa: ANN401 - a number, or several
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.name.endswith(("_ns", "_seconds"))]
        return replace(value, **{name: _divided(getattr(value, name), by) for name in names})
    if isinstance(value, dict):
        return {key: _divided(item, by) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_divided(item, by) for item in value)
    return type(value)(value / by)


def counted(one: Collector) -> Collector:
    """It, telling every so often how often it has read a GPU."""
    ticks, read = itertools.count(1), one.read

    def reading(device: Device) -> Reading | None:
        number = next(ticks)
        if number % TOLD_EVERY == 0:
            sys.stdout.write(f"{number}\n")  # in one go: there are several threads
            sys.stdout.flush()
        return read(device) if read else None

    return replace(one, read=reading)


def main(by: float, port: int, web_config: str, jobs_file: str) -> None:
    """Serve until SIGTERM."""
    hurry(by)
    quick = [replace(item, every_ns=int(item.every_ns / by)) for item in ALL]
    quick = [counted(item) if item.name == "utilization" else item for item in quick]
    vars(serve)["enabled"] = lambda _: (*quick,)
    bounds.MIN_SAMPLING_INTERVAL_SECONDS = 0.0
    chosen = bounds.Settings(
        interval_seconds=1 / by,
        deadline_seconds=DEADLINE_SECONDS,
        web_config_file=web_config,
        jobs_state_file=jobs_file,
        jobs_keep=KEPT_JOBS,
    )
    serve.serve(chosen, NvmlDriver, bind(f"{HOST}:{port}"), WebConfigFile(Path(web_config)))


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5])
