"""The web configuration in force, reread when one of its files changes."""

from __future__ import annotations

import concurrent.futures
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
"""For reading the files at start-up, when no earlier configuration can stay in force."""

Stamps = dict[Path, object]


@dataclass(frozen=True, slots=True)
class Active:
    """A configuration that works."""

    config: WebConfig
    tls: Tls | None


class WebConfigFile:
    """A web configuration file; only one thread may call `refresh`."""

    active: Active
    """The newest configuration that worked."""

    def __init__(self, path: Path, patience: float = PATIENCE_SECONDS) -> None:
        """Read the file and the certificates it names.

        Raises:
            SettingsError: With one sentence that begins with the flag and the file's name.
        """
        self._path = path
        self._seen: Stamps = {}
        self._forgotten = False
        try:
            self.active = in_time(patience, self._read)
        except concurrent.futures.TimeoutError:
            raise self._fault(
                f"it, or a file that it names, was not read within {patience:g} s; is a file "
                "system hanging?"
            ) from None

    def refresh(self) -> None:
        """Reread the files if one has changed; takes as long as the file system does.

        Costs one stat per file. This also notices files that were replaced, or a symbolic link
        that now leads to a folder of new ones. If the new ones do not work, the old ones stay
        in force, and the log gets one line.
        """
        if self._forgotten or _stamps(self._seen) != self._seen:
            self._forgotten = False
            self._read_again()

    def forget(self) -> None:
        """Make the next `refresh` read everything; callable from any thread."""
        self._forgotten = True

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

    def _read_again(self) -> None:
        try:
            active = self._read()
            if (active.tls is None) != (self.active.tls is None):
                raise self._fault("switching TLS on or off needs a restart")
        except SettingsError as error:
            if _stamps(self._seen) == self._seen:  # else it changed meanwhile: retried next time
                logger.error("The last good web configuration stays in force: %s", error)  # noqa: TRY400 - the sentence says it all
            return
        self.active = active
        logger.info("Reloaded the web configuration: %s.", active.config.summary)

    def _fault(self, sentence: str) -> SettingsError:
        return SettingsError(f"--web.config.file {self._path}: {sentence}")


def _stamps(paths: Iterable[Path]) -> Stamps:
    return {path: _stamp(path) for path in paths}


def _stamp(path: Path) -> object:
    """Values that change when the file does; None if there is no file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - half the cost, at each request
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
