"""Log lines: logfmt as Prometheus writes it, or JSON.

A message is a constant text; its values are pairs of their own, whatever is in them:
`log.warning("GPU is down", {"gpu": 3, "err": error})`. A pair of None is left out.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping

FORMATS = ("logfmt", "json")
LEVELS = ("debug", "info", "warning", "error")


def configure(level: str, layout: str) -> None:
    """Send all logs to stderr, from `level` on, in format `layout` (one of `FORMATS`)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(layout))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def pairs(record: logging.LogRecord) -> dict[str, object]:
    """The values of `record`, by name."""
    values = record.args if isinstance(record.args, Mapping) else {}
    return {key: value for key, value in values.items() if value is not None}


class _Formatter(logging.Formatter):
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.converter = time.gmtime
        self._json = layout == "json"

    def format(self, record: logging.LogRecord) -> str:
        entries: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "source": record.name.rpartition(".")[2],
            "msg": record.getMessage(),
            **pairs(record),
        }
        if record.exc_info:
            entries["traceback"] = self.formatException(record.exc_info)
        if self._json:
            return json.dumps(entries, default=str)
        return " ".join(f"{key}={_quoted(str(value))}" for key, value in entries.items())


def _quoted(value: str) -> str:
    if value and value.isprintable() and not set(value) & set(' "='):
        return value
    # Non-printable text is escaped, as it could break or colour the line.
    return json.dumps(value, ensure_ascii=not value.isprintable())
