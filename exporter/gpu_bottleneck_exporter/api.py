"""The functions for Python programs, which `gpu_bottleneck_exporter` exports."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from functools import partial

from gpu_bottleneck_exporter.commands.watch import watched
from gpu_bottleneck_exporter.driver.open import open_driver
from gpu_bottleneck_exporter.errors import ExporterError, SettingsError
from gpu_bottleneck_exporter.nodeview.model import Node
from gpu_bottleneck_exporter.settings import Settings

_one_at_a_time = threading.Lock()
"""What tells tenants apart is shared by all that watch in a process."""


def diagnose(seconds: float = 30.0, *, gpu: int | str | None = None) -> Node:
    """Why the GPUs of this machine idle; blocks while it watches them.

    The same as the command `diagnose`, with default settings. It may run in any thread; a second
    call waits for the first one. It raises the soft limit of open files to the hard one. Values of
    its log lines are in `args` of their records.

    Args:
        seconds: How long to watch, in seconds; ratios cover this time. From about 30 on,
            recommendations are possible. A start and a warm-up of some seconds come before it.
        gpu: The index or the uuid of a GPU; a board's index also selects its MIG instances. All
            GPUs by default.

    Returns:
        What /api/v1/node serves: ratios from 0 to 1, base units, None for what is unknown.

    Raises:
        SettingsError: If `seconds` is no length of time, or, after that time, there is no such GPU.
        ExporterError: If there are no GPU metrics, for example without a driver.
    """
    if not 0 < seconds < math.inf:
        raise SettingsError(f"seconds: {seconds} is no length of time")
    settings = Settings()
    opening = partial(open_driver, settings.sysfs, wake_suspended=settings.wake_suspended)
    with _one_at_a_time:
        node = watched(settings, opening, seconds).node
    if not node.gpus:
        raise ExporterError(f"no GPU metrics: {node.driver_status}")
    if gpu is None:
        return node
    found = tuple(one for one in node.gpus if f"{gpu}" in one.key)
    if not found:
        raise SettingsError(f"gpu: there is no GPU {gpu} in this machine")
    return replace(node, gpus=found)
