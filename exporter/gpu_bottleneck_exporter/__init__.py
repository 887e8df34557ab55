"""Prometheus exporter that explains why a GPU is idle.

`__all__` is the public API, which follows the version.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_bottleneck_exporter.api import diagnose
    from gpu_bottleneck_exporter.errors import ExporterError, SettingsError
    from gpu_bottleneck_exporter.jobs.model import Job
    from gpu_bottleneck_exporter.nodeview.model import Node

__version__ = "0.1.0"
logging.getLogger(__name__).addHandler(logging.NullHandler())  # libraries do not print
__all__ = ["ExporterError", "Job", "Node", "SettingsError", "diagnose"]
_HOMES = {
    "ExporterError": "errors",
    "Job": "jobs.model",
    "Node": "nodeview.model",
    "SettingsError": "errors",
    "diagnose": "api",
}
"""Module by public name, imported on first use (PEP 562)."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
