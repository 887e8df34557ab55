"""Log lines: logfmt as Prometheus writes it, or JSON."""

from __future__ import annotations

import json
import logging
import sys
import time

FORMATS = ("logfmt", "json")
LEVELS = ("debug", "info", "warning", "error")


def configure(level: str, layout: str) -> None:
    """Send all logs to stderr, from `level` on, in format `layout` (one of `FORMATS`)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(layout))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class _Formatter(logging.Formatter):
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.converter = time.gmtime
        self._json = layout == "json"

    def format(self, record: logging.LogRecord) -> str:
        entries = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "source": record.name.rpartition(".")[2],
            "msg": super().format(record),  # with the traceback, if there is one
        }
        if self._json:
            return json.dumps(entries)
        return " ".join(f"{key}={_quoted(value)}" for key, value in entries.items())


def _quoted(value: str) -> str:
    if value and value.isprintable() and not set(value) & set(' "='):
        return value
    # Non-printable text is escaped, as it could break or colour the line.
    return json.dumps(value, ensure_ascii=not value.isprintable())
