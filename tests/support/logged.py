"""Lines of the log."""

from __future__ import annotations

import logging

import pytest

from gpu_bottleneck_exporter.log import pairs


def logged(caplog: pytest.LogCaptureFixture, level: int = logging.DEBUG) -> list[str]:
    """Lines from `level` on: the message, and its pairs as they are, unquoted."""
    return [
        " ".join((record.getMessage(), *(f"{key}={value}" for key, value in pairs(record).items())))
        for record in caplog.records
        if record.levelno >= level
    ]
