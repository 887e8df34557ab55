"""The exporter with all its waits divided: hours pass in minutes.

    python tests/soak/hurried.py HURRY PORT WEB_CONFIG

Only time is shorter: what is read and kept, and how, is unchanged. Prints the GPUs' total number of
ticks ten times a second.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_bottleneck_exporter
from gpu_bottleneck_exporter import collectors
from gpu_bottleneck_exporter import settings as bounds
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.commands import serve
from gpu_bottleneck_exporter.driver.nvml.driver import NvmlDriver
from gpu_bottleneck_exporter.sampling import worker
from gpu_bottleneck_exporter.web.listen import bind
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from support.daemon import HOST

TELL_SECONDS = 0.1
DEADLINE_SECONDS = 0.5
_PARTS = re.compile(
    r"gpu_bottleneck_exporter\.(feeders|accounting\.bucket|host|workload|nodeview|logthrottle|schedule|web\.reload|sampling\.(discovery|gpureader|hostreader|peers|watching|worker))\b.*"
)
_TIMES = re.compile(r"_?[A-Z_]+_(SECONDS|NS)|SLOWLY")
_NO_WAITS = frozenset({"TICK_NS", "_STOP_SECONDS", "_PATIENCE_SECONDS"})


def hurry(by: float) -> None:
    """Divide all waits."""
    found = pkgutil.walk_packages(gpu_bottleneck_exporter.__path__, "gpu_bottleneck_exporter.")
    for module in [
        importlib.import_module(one.name) for one in found if _PARTS.fullmatch(one.name)
    ]:
        for name in [n for n in vars(module) if _TIMES.fullmatch(n) and n not in _NO_WAITS]:
            setattr(module, name, _divided(getattr(module, name), by))


def _divided(value: Any, by: float) -> object:  # noqa: ANN401 - a number, or several
    if isinstance(value, dict):
        return {key: _divided(one, by) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_divided(one, by) for one in value)
    return type(value)(value / by)


def main(by: float, port: int, web_config: str) -> None:
    """Serve until SIGTERM."""
    hurry(by)
    ticks = itertools.count()
    tick = worker.GpuWorker._tick

    def counted(self: worker.GpuWorker) -> None:
        tick(self)
        next(ticks)

    def tell() -> None:
        while True:
            sys.stdout.write(f"{ticks.__reduce__()[1][0]}\n")
            sys.stdout.flush()
            time.sleep(TELL_SECONDS)

    worker.GpuWorker._tick = counted  # type: ignore[method-assign]
    quick = tuple(replace(one, every_seconds=one.every_seconds / by) for one in ALL)
    collectors.enabled = lambda settings: quick  # noqa: ARG005 - called by its name
    bounds.MINIMUM_INTERVAL_SECONDS = 0.0
    chosen = bounds.Settings(
        interval_seconds=1 / by, deadline_seconds=DEADLINE_SECONDS, web_config_file=web_config
    )
    threading.Thread(target=tell, daemon=True).start()
    serve.serve(chosen, NvmlDriver, bind(f"{HOST}:{port}"), WebConfigFile(Path(web_config)))


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
