"""Where Python keeps its stacks: offsets within its structures on 64-bit Linux, by minor version.

They are the same in all releases of a version. tests/stacktraces/offsets.c prints them from the
headers of a version.
"""

from __future__ import annotations

from typing import NamedTuple


class Layout(NamedTuple):
    """Offsets in bytes."""

    interpreters: int
    """In _PyRuntime: the first interpreter. It has this and the next two itself since 3.13."""
    next_interpreter: int
    threads: int
    """In an interpreter: its first thread."""
    tid: int
    """In a thread: its number; before 3.11, the address of its `struct pthread`."""
    call: int
    """In a thread: its innermost call; in 3.11 and 3.12, of a structure that has it at `via`."""
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
    header: int
    """The size of the header of any object, of an ASCII string, and of another string."""
    ascii: int
    unicode: int
    lock: int
    """In a thread: flags; before 3.12, in _PyRuntime: the thread that holds Python's lock."""
    copies: int | None = None
    """In a code object: each thread's own copy of its instructions."""
    copy: int | None = None
    """In a call: which one it runs."""
    via: int | None = None


NEXT_THREAD = 8
"""In a thread."""
OWNED_BY_C = 3
"""From this owner on, a call stands for no function in Python."""

LAYOUTS = {
    9: Layout(32, 0, 8, 176, 24, 24, 32, 104, None, 104, 112, 40, 120, None, 16, 48, 72, 568),
    10: Layout(32, 0, 8, 176, 24, 24, 32, 96, None, 104, 112, 40, 120, None, 16, 48, 72, 568),
    11: Layout(40, 0, 16, 160, 56, 48, 32, 56, 69, 112, 128, 72, 136, 184, 16, 48, 72, 576, via=8),
    12: Layout(40, 0, 72, 144, 56, 8, 0, 56, 70, 112, 128, 68, 136, 192, 16, 40, 56, 24, via=0),
    13: Layout(0, 0, 0, 160, 72, 8, 0, 56, 70, 112, 128, 68, 136, 200, 16, 40, 56, 32),
    14: Layout(0, 0, 0, 160, 72, 8, 0, 56, 74, 112, 128, 68, 136, 208, 16, 40, 56, 32),
    15: Layout(0, 0, 0, 184, 72, 8, 0, 56, 74, 112, 128, 68, 136, 208, 16, 40, 56, 32),
}
"""By minor version of Python 3."""
FREE_THREADED = {
    13: Layout(0, 0, 0, 160, 72, 8, 0, 56, 70, 128, 144, 84, 152, 216, 32, 56, 72, 32),
    14: Layout(0, 0, 0, 160, 72, 8, 0, 56, 78, 128, 144, 84, 152, 232, 32, 56, 72, 32, 224, 72),
    15: Layout(0, 0, 0, 184, 72, 8, 0, 56, 78, 128, 144, 84, 152, 232, 32, 56, 72, 32, 224, 72),
}
"""The same of builds with `--disable-gil`."""
