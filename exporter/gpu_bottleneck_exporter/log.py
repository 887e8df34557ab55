"""Log lines in Prometheus' logfmt, or JSON.

Messages are constant; values are separate pairs, and None is omitted:
`log.warning("GPU is down", {"gpu": 3, "err": error})`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping

LOG_FORMATS = ("logfmt", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
_MAX_JSON_NUMBER = 2**63
"""Bound on numbers in JSON; larger ones are text."""


def configure(level: str, layout: str) -> None:
    """Send logs from `level` on to stderr; `layout` is one of `LOG_FORMATS`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(layout))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def pairs(record: logging.LogRecord) -> dict[str, object]:
    """Values of `record` by name."""
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
        }
        # Another library's values do not replace these four.
        entries = {**entries, **pairs(record), **entries}
        if record.exc_info:
            entries["traceback"] = self.formatException(record.exc_info)
        if self._json:
            return json.dumps({key: _plain(value) for key, value in entries.items()})
        return " ".join(f"{key}={_quoted(_text(value))}" for key, value in entries.items())


def _plain(value: object) -> object:
    is_number = isinstance(value, int | float) and abs(value) < _MAX_JSON_NUMBER
    return value if is_number else _text(value)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - log the line regardless
        return f"{type(value).__name__} ({type(error).__name__})"


def _quoted(value: str) -> str:
    if value and value.isprintable() and not set(value) & set(' "='):
        return value
    # Non-printable characters could break or colour the line.
    quoted = json.dumps(value, ensure_ascii=not value.isprintable())
    return quoted.replace("\x7f", r"\u007f")
