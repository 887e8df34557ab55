"""Where Python keeps its stacks: offsets within its structures on 64-bit Linux, by minor version.

They are the same in all releases of a version, but not in builds with `--with-pydebug` or
`--disable-gil`. tests/stacktraces/offsets.c prints them from the headers of a version.
"""

from __future__ import annotations

from typing import NamedTuple


class Layout(NamedTuple):
    """Offsets in bytes."""

    interpreters: int
    """In _PyRuntime: the first interpreter."""
    next_interpreter: int
    threads: int
    """In an interpreter: its first thread."""
    tid: int
    """In a thread: its number; before 3.11, the address of its `struct pthread`."""
    call: int
    """In a thread: its innermost call; in 3.11 and 3.12, of a structure that has it at `within`."""
    within: int | None
    previous: int
    """In a call: the one around it, its code, its instruction."""
    code: int
    instruction: int
    owner: int | None
    """In a call: what made it, a byte."""
    filename: int
    """In a code object, this and the next four."""
    name: int
    first_line: int
    lines: int
    instructions: int | None
    ascii: int
    """The size of the header of an ASCII string, and of another one."""
    unicode: int
    lock: int
    """In an interpreter: its lock; before 3.12, in _PyRuntime: the thread that holds it."""


NEXT_THREAD = 8
"""In a thread."""
CODE_SIZE = 144
"""Bytes that have all of a code object but its instructions."""
OWNED_BY_C = 3
"""From this owner on, a call stands for no function in Python."""
HOLDER, LOCKED = 8, 16
"""In a lock."""

LAYOUTS = {
    9: Layout(32, 0, 8, 176, 24, None, 24, 32, 104, None, 104, 112, 40, 120, None, 48, 72, 568),
    10: Layout(32, 0, 8, 176, 24, None, 24, 32, 96, None, 104, 112, 40, 120, None, 48, 72, 568),
    11: Layout(40, 0, 16, 160, 56, 8, 48, 32, 56, 69, 112, 128, 72, 136, 184, 48, 72, 576),
    12: Layout(40, 0, 72, 144, 56, 0, 8, 0, 56, 70, 112, 128, 68, 136, 192, 40, 56, 384),
    13: Layout(632, 7264, 7344, 160, 72, None, 8, 0, 56, 70, 112, 128, 68, 136, 200, 40, 56, 16),
    14: Layout(808, 7272, 7344, 160, 72, None, 8, 0, 56, 74, 112, 128, 68, 136, 208, 40, 56, 16),
    15: Layout(936, 7264, 7336, 184, 72, None, 8, 0, 56, 74, 112, 128, 68, 136, 208, 40, 56, 16),
}
"""By minor version of Python 3."""
