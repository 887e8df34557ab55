"""Lines of the log."""

from __future__ import annotations

import logging

import pytest

from gpu_bottleneck_exporter.log import pairs


def logged(caplog: pytest.LogCaptureFixture, level: int = logging.DEBUG) -> list[str]:
    """Lines from `level` on: the message, and its pairs as they are, unquoted."""
    return [
        " ".join((one.getMessage(), *(f"{key}={value}" for key, value in pairs(one).items())))
        for one in caplog.records
        if one.levelno >= level
    ]
