"""Code objects: function, file, and the line of an instruction, in each version's own table."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.stacktraces.frames import Frame
from gpu_bottleneck_exporter.stacktraces.layouts import Layout
from gpu_bottleneck_exporter.stacktraces.memory import Memory, UnreadableError, word

_MOST_CHARACTERS = 512
"""Of a name; of a longer path, the end."""
_MOST_KEPT = 4096
"""Places in code that are remembered, per process."""
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
_TYPE, _LENGTH, _FLAGS, _BYTES = -8, 0, 16, 16
"""From the end of an object's header; in strings and bytes; in strings; in bytes."""
_COMPACT, _ASCII = 0x20, 0x40
_PAIR = struct.Struct("=Bb")
_NO_LINE = -128


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
        self._line = _TABLES.get(minor, _with_columns)
        self._kept: dict[tuple[_Code, int], Frame] = {}

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
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[place] = self._read(code, instruction)
        return self._kept[place]

    def _code(self, address: int) -> _Code:
        raw, layout = self._memory.read(address, self._code_size), self._layout
        if word(raw, layout.header + _TYPE) != self._kind:
            raise UnreadableError
        places = layout.filename, layout.name, layout.lines
        filename, name, lines = (word(raw, at) for at in places)
        return _Code(address, filename, name, lines, word(raw, layout.first_line, 4))

    def _read(self, code: _Code, offset: int) -> Frame:
        lines = code.lines + self._layout.header
        length = self._memory.pointer(lines + _LENGTH)
        table = self._memory.read(lines + _BYTES, length)
        line = code.first_line
        try:
            line = self._line(table, code.first_line, offset) or line
        except (IndexError, struct.error):
            raise UnreadableError from None
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


def _with_starts(table: bytes, line: int, offset: int) -> int:
    """3.9: pairs of steps, in bytes and lines."""
    start = 0
    for bytes_on, lines_on in _PAIR.iter_unpack(table):
        start += bytes_on
        if start > offset:
            break
        line += lines_on
    return line


def _with_ranges(table: bytes, line: int, offset: int) -> int | None:
    """3.10: pairs of a length in bytes and a step in lines. Offsets count instructions."""
    end = 0
    for length, step in _PAIR.iter_unpack(table):
        end += length
        line += step if step != _NO_LINE else 0
        if 2 * offset < end:
            return line if step != _NO_LINE else None
    return None


def _with_columns(table: bytes, line: int, offset: int) -> int | None:
    """3.11 and later: entries of a length, a step in lines and columns; see locations.md there."""
    end, at = 0, 0
    while at < len(table):
        kind = table[at] >> 3 & 15
        end += (table[at] & 7) * 2 + 2
        if kind in (13, 14):
            line += _step(table, at + 1)
        elif kind in (11, 12):
            line += kind - 10
        if offset < end:
            return None if kind == 15 else line  # noqa: PLR2004
        at += 1
        while at < len(table) and table[at] < 0x80:  # noqa: PLR2004
            at += 1
    return None


def _step(table: bytes, at: int) -> int:
    """A number in groups of six bits, the lowest first; its own lowest bit is the sign."""
    number, shift = table[at] & 63, 6
    while table[at] & 64:
        at += 1
        number |= (table[at] & 63) << shift
        shift += 6
    return -(number >> 1) if number & 1 else number >> 1


_TABLES: dict[int, Callable[[bytes, int, int], int | None]] = {9: _with_starts, 10: _with_ranges}
"""The line of the instruction at an offset, by table and first line; None if it has none."""
