"""The web configuration in force, reread when one of its files changes."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLongError
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.config import WebConfig, parse
from gpu_bottleneck_exporter.web.tls import Tls, build
from gpu_bottleneck_exporter.web.users import require_bcrypt

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""For reading the files, which takes milliseconds unless a file system hangs."""
CHECK_SECONDS = 1.0
"""Between two checks whether a file has changed; each costs one stat per file."""

Stamps = dict[Path, object]


@dataclass(frozen=True, slots=True)
class Active:
    """A configuration that works."""

    config: WebConfig
    tls: Tls | None


class WebConfigFile:
    """A web configuration file. Nobody waits for its file system but a thread of its own."""

    def __init__(self, path: Path, patience: float = PATIENCE_SECONDS) -> None:
        """Read the file and the certificates it names.

        Raises:
            SettingsError: With one sentence that begins with the flag and the file's name.
        """
        self._path = path
        self._patience = patience
        self._seen: Stamps = {}
        self._asked = threading.Event()
        self._closed = False
        self._reading_since: float | None = None
        self._hangs = False
        first: Future[Active] = Future()
        _start(lambda: _settle(first, self._read))
        try:
            self._active = first.result(patience)
        except WaitedTooLongError:
            raise self._fault(
                f"it, or a file that it names, was not read within {patience:g} s; is a file "
                "system hanging?"
            ) from None

    @property
    def active(self) -> Active:
        """The newest configuration that worked; returns at once."""
        since = self._reading_since
        if since is not None and not self._hangs and time.monotonic() - since > self._patience:
            self._hangs = True
            logger.error(
                "The last good web configuration stays in force: its files were not read within "
                "%g s; is their file system hanging?",
                self._patience,
            )
        return self._active

    def watch(self) -> None:
        """Reread the files whenever one has changed, until `close`.

        Notices files that were replaced, and a symbolic link that now leads to a folder of new
        ones. If the new ones do not work, the old ones stay in force, and the log gets one line.
        """
        _start(self._watch)

    def reload(self) -> None:
        """Reread everything now, changed or not; the log reports the outcome."""
        self._asked.set()

    def close(self) -> None:
        """End `watch` once its current check returns."""
        self._closed = True
        self._asked.set()

    def _watch(self) -> None:
        while not self._closed:
            self._reading_since = time.monotonic()
            try:
                self._refresh()
            except Exception:  # else no check would ever follow
                logger.exception("The web configuration could not be checked.")
            self._reading_since = None
            if self._hangs:
                self._hangs = False
                logger.info("The files of the web configuration can be read again.")
            self._asked.wait(CHECK_SECONDS)

    def _refresh(self) -> None:
        if not self._asked.is_set() and _stamps(self._seen) == self._seen:
            return
        self._asked.clear()
        try:
            active = self._read()
            if (active.tls is None) != (self._active.tls is None):
                raise self._fault("switching TLS on or off needs a restart")
        except SettingsError as error:
            if _stamps(self._seen) == self._seen:  # else it changed meanwhile: retried next time
                logger.error("The last good web configuration stays in force: %s", error)  # noqa: TRY400 - the sentence says it all
            return
        self._active = active
        logger.info("Reloaded the web configuration: %s.", active.config.summary)

    def _read(self) -> Active:
        # Stamped before reading: a file that changes meanwhile is reread next time.
        self._seen = _stamps([self._path])
        try:
            config = parse(self._path)
            if config.users:
                require_bcrypt()
            if config.tls is None:
                return Active(config, None)
            self._seen |= _stamps(config.tls.files)
            return Active(config, build(config.tls))
        except SettingsError as error:
            raise self._fault(f"{error}") from error

    def _fault(self, sentence: str) -> SettingsError:
        return SettingsError(f"--web.config.file {self._path}: {sentence}")


def _start(work: Callable[[], None]) -> None:
    """Run `work` in a thread that nobody waits for: if a mount hangs, it hangs."""
    threading.Thread(target=work, name="web-config", daemon=True).start()


def _settle(future: Future[Active], work: Callable[[], Active]) -> None:
    try:
        future.set_result(work())
    except Exception as error:  # noqa: BLE001 - raised again in the waiting thread
        future.set_exception(error)


def _stamps(paths: Iterable[Path]) -> Stamps:
    return {path: _stamp(path) for path in paths}


def _stamp(path: Path) -> object:
    """Values that change when the file does; None if there is no file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - half the cost
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
