"""The web configuration in force: read again when a file of it changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.config import WebConfig, parse
from gpu_bottleneck_exporter.web.files import in_time
from gpu_bottleneck_exporter.web.tls import Tls, build
from gpu_bottleneck_exporter.web.users import require_bcrypt

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""For the files at the start: then there is nothing yet that could stay in force."""

Stamps = dict[Path, object]


@dataclass(frozen=True, slots=True)
class Active:
    """A configuration that works."""

    config: WebConfig
    tls: Tls | None


class WebConfigFile:
    """A web configuration file; `refresh` is for one thread."""

    active: Active
    """The newest configuration that worked."""

    def __init__(self, path: Path, patience: float = PATIENCE_SECONDS) -> None:
        """Reads the file and the certificates that it names.

        Raises:
            SettingsError: With one sentence that begins with the file's name.
        """
        self._path = path
        self._seen: Stamps = {}
        self._forgotten = False
        try:
            self.active = in_time(patience, self._read)
        except TimeoutError:
            raise self._fault(
                f"it, or a file that it names, could not be read within {patience:g} s; "
                "does a file system hang?"
            ) from None

    def refresh(self) -> None:
        """Reads what changed since the last time; takes as long as the file system does.

        Costs one stat a file. Files that were replaced, by a symbolic link to a
        folder of new ones too, are read again at once. New ones that do not work leave
        the old ones in force, and one line in the log.
        """
        if self._forgotten or _stamps(self._seen) != self._seen:
            self._forgotten = False
            self._read_again()

    def forget(self) -> None:
        """Lets the next `refresh` read everything; callable from any thread."""
        self._forgotten = True

    def _read(self) -> Active:
        # Stamped before it is read: what changes meanwhile is read again.
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

    def _read_again(self) -> None:
        try:
            active = self._read()
            if (active.tls is None) != (self.active.tls is None):
                raise self._fault("switching TLS on or off needs a restart")
        except SettingsError as error:
            if _stamps(self._seen) == self._seen:  # else half of it was new: next time all is
                logger.error("The last good web configuration stays in force: %s", error)  # noqa: TRY400 - the sentence says it all
            return
        self.active = active
        logger.info("The web configuration was read again: %s.", active.config.summary)

    def _fault(self, sentence: str) -> SettingsError:
        return SettingsError(f"--web.config.file {self._path}: {sentence}")


def _stamps(paths: Iterable[Path]) -> Stamps:
    return {path: _stamp(path) for path in paths}


def _stamp(path: Path) -> object:
    """What changes with a file; None while there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - half the cost, at each request
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
