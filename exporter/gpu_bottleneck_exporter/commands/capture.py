"""`capture`: records the driver's results for bug reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import click

from gpu_bottleneck_exporter.driver.protocol import DriverError, Recording
from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.jsontext import Document, dumps

MAX_CAPTURE_BYTES = 5 * 1024 * 1024
"""Size limit: attachments of issues may have 25 MB, and people read them."""


def capture(open_recording: Callable[[], Recording], seconds: float, path: Path) -> None:
    """Capture for `seconds` into a new file. Raises ExporterError."""
    if path.exists():
        raise ExporterError(f"--output: {path} exists; name another file")
    try:
        recording = open_recording()
    except DriverError as error:
        raise ExporterError(f"no GPU to capture: {error}") from error
    click.echo(f"capturing for {seconds:g} s into {path}, which is sent nowhere", err=True)
    click.echo(f"holds: {recording.holds}", err=True)
    click.echo(recording.identities, err=True)
    try:
        with path.open("x", encoding="ascii") as stream:
            file = _BoundedFile(stream)
            recording.write(file.write, seconds)
    except OSError as error:
        raise ExporterError(f"--output: cannot write {path}: {error.strerror}") from error
    cut = ", ended early: the file is full" if file.full else ""
    click.echo(f"wrote {path}: {file.size / 1e6:.1f} MB{cut}", err=True)


class _BoundedFile:
    """JSON lines of at most `MAX_CAPTURE_BYTES`."""

    def __init__(self, stream: TextIO) -> None:
        self.size = 0
        self.full = False
        self._stream = stream

    def write(self, document: Document) -> bool:
        """Write a line unless the file is full. Returns whether it was written."""
        line = f"{dumps(document)}\n"
        reserved = 0 if "end" in document else 128 * 1024  # for the end: the times of all calls
        if self.size + len(line) > MAX_CAPTURE_BYTES - reserved:
            self.full = True
            return False
        self._stream.write(line)
        self._stream.flush()
        self.size += len(line)
        return True
