"""Offsets within CPython's structures on 64-bit Linux, by minor version.

tests/stacktraces/offsets.c prints a version's row of layouts.csv.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Layout(NamedTuple):
    """The offsets of one version, in bytes."""

    tid: int
    """Thread: its number; before 3.11, the address of its `struct pthread`."""
    call: int
    """Thread: its innermost call; in 3.11 and 3.12, a structure with it at `via`."""
    previous: int
    """Call: the calling call, followed by code and instruction."""
    code: int
    instruction: int
    filename: int
    """Code object: file name, name, first line and line table."""
    name: int
    first_line: int
    lines: int
    header: int
    """Object sizes: header, header of an ASCII string, header of another string."""
    ascii: int
    unicode: int
    lock: int
    """Thread: flags; before 3.12, _PyRuntime: the holder of the GIL."""
    interpreters: int = 0
    """_PyRuntime: the first interpreter. Since 3.13, _PyRuntime lists these three offsets."""
    next_interpreter: int = 0
    threads: int = 0
    """Interpreter: its first thread."""
    via: int | None = None
    owner: int | None = None
    """Call: its owner, a byte."""
    instructions: int | None = None
    """Code object: its instructions."""
    copies: int | None = None
    """Code object: the per-thread copies of its instructions."""
    copy: int | None = None
    """Call: the number of its copy."""


MIN_C_OWNER = 3
"""Minimum owner of calls without a Python function."""


def _rows() -> Iterator[tuple[int, bool, Layout]]:
    text = Path(__file__).with_name("layouts.csv").read_text(encoding="ascii")
    for row in csv.DictReader(text.splitlines()):
        offsets = {name: int(offset) for name, offset in row.items() if offset}
        minor, free = offsets.pop("minor"), offsets.pop("free_threaded")
        yield minor, bool(free), Layout(**offsets)


LAYOUTS = {minor: layout for minor, free, layout in _rows() if not free}
FREE_THREADED = {minor: layout for minor, free, layout in _rows() if free}
"""Layouts of builds with `--disable-gil`."""
