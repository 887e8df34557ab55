"""The public functions of the package."""

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

_lock = threading.Lock()
"""Serializes calls, as the state that separates tenants is global."""


def diagnose(seconds: float = 30.0, *, gpu: int | str | None = None) -> Node:
    """Sample this machine's GPUs for a while and report why they are idle.

    Does the same as the command `diagnose` with default settings. Thread-safe: concurrent calls
    run one after another. It raises the soft limit of open files to the hard one. Values of its
    log lines are in `args` of their records.

    Args:
        seconds: Duration, which ratios cover, in seconds. Recommendations need about 30. Start and
            warm-up take some additional seconds.
        gpu: Index or uuid of a GPU; a GPU's index also selects its MIG instances. All GPUs by
            default.

    Returns:
        The document of /api/v1/node: ratios from 0 to 1, base units, None for unknown values.

    Raises:
        SettingsError: If `seconds` is not positive and finite, or if, at the end, there is no such
            GPU.
        ExporterError: If there are no GPU metrics, for example without a driver.
    """
    if not 0 < seconds < math.inf:
        raise SettingsError(f"seconds: {seconds} is not a duration")
    settings = Settings()
    opening = partial(open_driver, settings.sysfs, wake_suspended=settings.wake_suspended)
    with _lock:
        node = watched(settings, opening, seconds).node
    if not node.gpus:
        raise ExporterError(f"no GPU metrics: {node.driver_status}")
    if gpu is None:
        return node
    selected = tuple(status for status in node.gpus if f"{gpu}" in status.key)
    if not selected:
        raise SettingsError(f"gpu: there is no GPU {gpu} in this machine")
    return replace(node, gpus=selected)
