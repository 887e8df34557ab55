"""The web configuration in force, reread when one of its files changes."""

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

PATIENCE_SECONDS = 10.0
"""For reading the files, which takes milliseconds unless a file system hangs."""
CHECK_SECONDS = 1.0
"""Between two checks whether a file has changed; each costs one stat per file."""
_STAYS = "the last good web configuration stays in force"


class WebConfigFile:
    """A web configuration file. Nobody waits for its file system but a thread of its own.

    It rereads the files whenever one has changed, until `close`: files that were replaced, and a
    symbolic link that now leads to a folder of new ones. If the new ones do not work, the old ones
    stay in force, and the log gets one line.
    """

    def __init__(self, path: Path, patience: float = PATIENCE_SECONDS) -> None:
        """Read the file and the certificates it names.

        Raises:
            SettingsError: With one sentence that begins with the flag and the file's name.
        """
        self._path = path
        self._patience = patience
        self._seen: dict[Path, object] = {}
        self._asked = threading.Event()
        self._closed = False
        self._reading_since: float | None = None
        first: SimpleQueue[WebConfig | Exception] = SimpleQueue()
        threading.Thread(target=self._watch, args=(first,), name="web-config", daemon=True).start()
        try:
            found = first.get(timeout=patience)
        except Empty:
            raise self._fault(
                f"it, or a file that it names, was not read within {patience:g} s; is a file "
                "system hanging?"
            ) from None
        if isinstance(found, Exception):
            raise found
        self._active = found

    @property
    def active(self) -> WebConfig:
        """The newest configuration that worked; returns at once."""
        since = self._reading_since
        if since is not None and time.monotonic() - since > self._patience:
            self._reading_since = None  # told once
            found = f"its files were not read within {self._patience:g} s; is their file system "
            log.error(_STAYS, {"err": f"{found}hanging?"})
        return self._active

    def reload(self) -> None:
        """Reread everything now, changed or not; the log reports the outcome."""
        self._asked.set()

    def close(self) -> None:
        """End the thread once its current check returns."""
        self._closed = True
        self._asked.set()

    def _watch(self, first: SimpleQueue[WebConfig | Exception]) -> None:
        try:
            first.put(self._read())
        except Exception as error:  # noqa: BLE001 - raised again in the waiting thread
            first.put(error)
            return
        while not self._closed:
            self._asked.wait(CHECK_SECONDS)
            self._reading_since = time.monotonic()
            self._refresh(asked=self._asked.is_set())
            self._reading_since = None

    def _refresh(self, *, asked: bool) -> None:
        if not asked and _stamps(self._seen) == self._seen:
            return
        self._asked.clear()
        try:
            active = self._read()
            if (active.tls is None) != (self._active.tls is None):
                raise self._fault("switching TLS on or off needs a restart")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001 - whatever it is, checks go on
            if _stamps(self._seen) == self._seen:  # else it changed meanwhile: retried next time
                log.error(_STAYS, {"err": error})  # noqa: TRY400 - the sentence says it all
            return
        self._active = active
        log.info("reloaded the web configuration", {"now": active.summary})

    def _read(self) -> WebConfig:
        # Stamped before reading: a file that changes meanwhile is reread next time.
        self._seen = _stamps([self._path])
        try:
            config = parse(self._path)
            if config.tls is not None:
                self._seen |= _stamps(config.tls.files)
                config = replace(config, context=build(config.tls))
        except SettingsError as error:
            raise self._fault(f"{error}") from error
        return config

    def _fault(self, sentence: str) -> SettingsError:
        return SettingsError(f"--web.config.file {self._path}: {sentence}")


def _stamps(paths: Iterable[Path]) -> dict[Path, object]:
    """Values that change when a file does; None if there is no file."""
    return {path: _stamp(path) for path in paths}


def _stamp(path: Path) -> object:
    try:
        found = os.stat(path)  # noqa: PTH116 - half the cost
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
