"""Where Python keeps its stacks: offsets within its structures on 64-bit Linux, by minor version.

They are the same in all releases of a version. tests/stacktraces/offsets.c prints the row of a
version in layouts.csv from its headers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Layout(NamedTuple):
    """Offsets in bytes."""

    tid: int
    """In a thread: its number; before 3.11, the address of its `struct pthread`."""
    call: int
    """In a thread: its innermost call; in 3.11 and 3.12, of a structure that has it at `via`."""
    previous: int
    """In a call: the one around it, its code, its instruction."""
    code: int
    instruction: int
    filename: int
    """In a code object, this and the next three."""
    name: int
    first_line: int
    lines: int
    header: int
    """The size of the header of any object, of an ASCII string, and of another string."""
    ascii: int
    unicode: int
    lock: int
    """In a thread: flags; before 3.12, in _PyRuntime: the thread that holds Python's lock."""
    interpreters: int = 0
    """In _PyRuntime: the first interpreter. It has this and the next two itself since 3.13."""
    next_interpreter: int = 0
    threads: int = 0
    """In an interpreter: its first thread."""
    via: int | None = None
    owner: int | None = None
    """In a call: what made it, a byte."""
    instructions: int | None = None
    """In a code object."""
    copies: int | None = None
    """In a code object: each thread's own copy of its instructions."""
    copy: int | None = None
    """In a call: which one it runs."""


NEXT_THREAD = 8
"""In a thread."""
OWNED_BY_C = 3
"""From this owner on, a call stands for no function in Python."""


def _rows() -> Iterator[tuple[int, bool, Layout]]:
    text = Path(__file__).with_name("layouts.csv").read_text(encoding="ascii")
    for row in csv.DictReader(text.splitlines()):
        known = {name: int(offset) for name, offset in row.items() if offset}
        minor, free = known.pop("minor"), known.pop("free_threaded")
        yield minor, bool(free), Layout(**known)


LAYOUTS = {minor: layout for minor, free, layout in _rows() if not free}
"""By minor version of Python 3."""
FREE_THREADED = {minor: layout for minor, free, layout in _rows() if free}
"""The same of builds with `--disable-gil`."""
