"""Code objects: function, file, and the line of an instruction, in each version's own table."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import NamedTuple

from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.stacktraces.frames import Frame
from gpu_bottleneck_exporter.stacktraces.layouts import Layout
from gpu_bottleneck_exporter.stacktraces.memory import Memory, UnreadableError, word

_MOST_CHARACTERS = 512
"""Of a name; of a longer path, the end."""
MOST_KEPT = 2**18
"""Characters of the places in code that are remembered, per process: at most 1 MiB."""
_PLACE = 64
"""Characters for what a place takes beside its names."""
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
_TYPE, _LENGTH, _FLAGS, _BYTES = -8, 0, 16, 16
"""From the end of an object's header; in strings and bytes; in strings; in bytes."""
_COMPACT, _ASCII = 0x20, 0x40
_WITH_COLUMNS = 11
"""The first minor version whose tables of lines have columns, too."""
_PAIR = struct.Struct("=Bb")
_ENTRY = re.compile(rb"[\x80-\xff][\x00-\x7f]*")
_NO_LINE = -128
_MAX_GROUPS = 6
"""Groups of six bits in a step between lines: a C int and its sign need no more."""
_MAX_LINE = 2**31 - 1
"""Line numbers are C ints in CPython."""


class _Code(NamedTuple):
    """What tells one code object from another at the same address."""

    address: int
    filename: int
    name: int
    lines: int
    first_line: int


class Codes:
    """Of one process, whose Python is 3.`minor`."""

    def __init__(self, memory: Memory, minor: int, layout: Layout, kind: int) -> None:
        """`kind`: the address of the type of code objects."""
        self._memory = memory
        self._layout = layout
        self._kind = kind
        self._code_size = max(layout.name, layout.lines) + 8
        self._has_columns = minor >= _WITH_COLUMNS
        self._kept: dict[tuple[_Code, int], Frame] = {}
        self._characters = 0

    def frame(self, address: int, instruction: int, copy: int = 0) -> Frame:
        """The call of code object `address` that is at `instruction` of a copy.

        `instruction`: an address; before 3.11 an offset. Raises UnreadableError.
        """
        code, layout = self._code(address), self._layout
        if copy and layout.copies:  # number 0 stands in the object itself
            copies = self._memory.pointer(address + layout.copies)
            instruction -= self._memory.pointer(copies + 8 * (1 + copy))
        elif layout.instructions is not None:
            instruction -= address + layout.instructions
        place = code, instruction
        if place not in self._kept:
            if self._characters > MOST_KEPT:
                self._kept.clear()
                self._characters = 0
            frame = self._kept[place] = self._read(code, instruction)
            self._characters += _PLACE + len(frame.function) + len(frame.file)
        return self._kept[place]

    def _code(self, address: int) -> _Code:
        raw, layout = self._memory.read(address, self._code_size), self._layout
        if word(raw, layout.header + _TYPE) != self._kind:
            raise UnreadableError
        places = layout.filename, layout.name, layout.lines
        filename, name, lines = (word(raw, at) for at in places)
        first = raw[layout.first_line : layout.first_line + 4]
        return _Code(address, filename, name, lines, int.from_bytes(first, "little", signed=True))

    def _read(self, code: _Code, offset: int) -> Frame:
        lines = code.lines + self._layout.header
        length = self._memory.pointer(lines + _LENGTH)
        table = self._memory.read(lines + _BYTES, length)
        try:
            timely = self._memory.timely
            if self._has_columns:
                line = _with_columns(timely(_ENTRY.finditer(table)), code.first_line, offset)
            else:
                line = _with_ranges(timely(_PAIR.iter_unpack(table)), code.first_line, offset)
        except (IndexError, struct.error):
            raise UnreadableError from None
        line = line or code.first_line
        if not 0 < line <= _MAX_LINE:
            raise UnreadableError
        return Frame(self._text(code.name), self._text(code.filename), line)

    def _text(self, address: int) -> str:
        raw = self._memory.read(address + self._layout.header, _FLAGS + 4)
        length, flags = word(raw, _LENGTH), word(raw, _FLAGS, 4)
        width = flags >> 2 & 7
        if not flags & _COMPACT or width not in _ENCODINGS:
            raise UnreadableError
        header = self._layout.ascii if flags & _ASCII else self._layout.unicode
        taken = min(length, _MOST_CHARACTERS)
        raw = self._memory.read(address + header + (length - taken) * width, taken * width)
        text = printable(raw.decode(_ENCODINGS[width], errors="replace"))
        return text if taken == length else f"…{text}"


def _with_ranges(pairs: Iterable[tuple[int, int]], line: int, offset: int) -> int | None:
    """3.10: pairs of a length in bytes and a step in lines. Offsets count instructions."""
    end = 0
    for length, step in pairs:
        end += length
        line += step if step != _NO_LINE else 0
        if 2 * offset < end:
            return line if step != _NO_LINE else None
    return None


def _with_columns(entries: Iterable[re.Match[bytes]], line: int, offset: int) -> int | None:
    """3.11 and later: entries of a length, a step in lines and columns; see locations.md there."""
    end = 0
    for match in entries:
        entry = match[0]
        kind = entry[0] >> 3 & 15
        end += (entry[0] & 7) * 2 + 2
        if kind in (13, 14):
            line += _step(entry)
        elif kind in (11, 12):
            line += kind - 10
        if offset < end:
            return None if kind == 15 else line  # noqa: PLR2004
    return None


def _step(entry: bytes) -> int:
    """A number in groups of six bits, the lowest first; its own lowest bit is the sign.

    Raises IndexError for a number that does not end within `_MAX_GROUPS`.
    """
    groups, number, at = entry[: 1 + _MAX_GROUPS], 0, 0
    while at == 0 or groups[at] & 64:
        number |= (groups[at + 1] & 63) << 6 * at
        at += 1
    return -(number >> 1) if number & 1 else number >> 1
