"""The active web configuration, reread when one of its files changes."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.config import WebConfig, parse
from gpu_bottleneck_exporter.web.tls import build

log = logging.getLogger(__name__)

CHECK_INTERVAL_SECONDS = 1.0
"""Interval of checks for changed files, each of one stat per file."""
_CONFIG_RETAINED = "the last good web configuration stays in force"


class WebConfigFile:
    """The active web configuration. A thread reads its files, as their file system may hang.

    It rereads changed or replaced files until `close`. A faulty configuration is logged once and
    does not replace the active one.
    """

    def __init__(self, path: Path, timeout_seconds: float = 10.0) -> None:
        """Read the file and its certificates.

        Raises SettingsError, which begins with the flag and the file's name.
        """
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._file_stamps: dict[Path, object] = {}
        self._reload_requested = threading.Event()
        self._closed = False
        self._reading_since: float | None = None
        first: SimpleQueue[WebConfig | Exception] = SimpleQueue()
        threading.Thread(target=self._watch, args=(first,), name="web-config", daemon=True).start()
        try:
            result = first.get(timeout=timeout_seconds)
        except Empty:
            raise self._fault(
                f"it, or a file that it names, was not read within {timeout_seconds:g} s; is a "
                "file system hanging?"
            ) from None
        if isinstance(result, Exception):
            raise result
        self._active = result

    @property
    def active(self) -> WebConfig:
        """The newest valid configuration; never blocks."""
        since, limit = self._reading_since, self._timeout_seconds
        if since is not None and time.monotonic() - since > limit:
            self._reading_since = None  # logged once
            reason = f"its files were not read within {limit:g} s; is their file system hanging?"
            log.error(_CONFIG_RETAINED, {"err": reason})
        return self._active

    def reload(self) -> None:
        """Request a reread of all files; the log reports the outcome."""
        self._reload_requested.set()

    def close(self) -> None:
        """End the thread after its current check."""
        self._closed = True
        self._reload_requested.set()

    def _watch(self, first: SimpleQueue[WebConfig | Exception]) -> None:
        try:
            first.put(self._read())
        except Exception as error:  # noqa: BLE001 - raised again in the waiting thread
            first.put(error)
            return
        while not self._closed:
            self._reload_requested.wait(CHECK_INTERVAL_SECONDS)
            self._reading_since = time.monotonic()
            self._refresh(forced=self._reload_requested.is_set())
            self._reading_since = None

    def _refresh(self, *, forced: bool) -> None:
        if not forced and _stamps(self._file_stamps) == self._file_stamps:
            return
        self._reload_requested.clear()
        try:
            active = self._read()
            if (active.tls is None) != (self._active.tls is None):
                raise self._fault("switching TLS on or off needs a restart")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001 - checks go on
            if _stamps(self._file_stamps) == self._file_stamps:  # else changed: retried next time
                log.error(_CONFIG_RETAINED, {"err": error})  # noqa: TRY400 - no traceback needed
            return
        self._active = active
        log.info("reloaded the web configuration", {"now": active.summary})

    def _read(self) -> WebConfig:
        # Before reading: a concurrent change is read next time.
        self._file_stamps = _stamps([self._path])
        try:
            config = parse(self._path)
            if config.tls is not None:
                self._file_stamps |= _stamps(config.tls.files)
                config = replace(config, context=build(config.tls))
        except SettingsError as error:
            raise self._fault(f"{error}") from error
        return config

    def _fault(self, sentence: str) -> SettingsError:
        return SettingsError(f"--web.config.file {self._path}: {sentence}")


def _stamps(paths: Iterable[Path]) -> dict[Path, object]:
    """Identity, size and times by file; None if missing."""
    return {path: _stamp(path) for path in paths}


def _stamp(path: Path) -> object:
    try:
        stat = os.stat(path)  # noqa: PTH116 - half the cost
    except (OSError, ValueError):
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
