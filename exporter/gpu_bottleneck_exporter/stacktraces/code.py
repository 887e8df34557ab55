"""Code objects: function, file and line of an instruction, by version."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import NamedTuple

from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.stacktraces.frames import Frame
from gpu_bottleneck_exporter.stacktraces.layouts import Layout
from gpu_bottleneck_exporter.stacktraces.memory import ProcessMemory, UnreadableError, word

MAX_CACHED_CHARACTERS = 2**18
"""Bound on the cached frames of a process: at most 1 MiB."""
_CHARACTER_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
_BYTES_OFFSET = 16
"""Offset of a bytes object's content, and of a string's flags."""
_NO_LINE = -128


class _Code(NamedTuple):
    """A code object's identity: addresses are reused."""

    address: int
    filename: int
    name: int
    lines: int
    first_line: int


class Codes:
    """The code objects of one process that runs Python 3.`minor`."""

    def __init__(self, memory: ProcessMemory, minor: int, layout: Layout, kind: int) -> None:
        """`kind`: the address of PyCode_Type."""
        self._memory = memory
        self._layout = layout
        self._kind = kind
        self._code_size = max(layout.name, layout.lines) + 8
        self._has_columns = minor >= 11  # noqa: PLR2004 line tables got columns in 3.11
        self._frames: dict[tuple[_Code, int], Frame] = {}
        self._characters = 0

    def frame(self, address: int, instruction: int, copy: int = 0) -> Frame:
        """The frame at `instruction` in a copy of the code object at `address`.

        `instruction`: an address; an offset before 3.11. Raises UnreadableError.
        """
        code, layout = self._code(address), self._layout
        if copy and layout.copies:  # copy 0 is in the object itself
            copies = self._memory.pointer(address + layout.copies)
            instruction -= self._memory.pointer(copies + 8 * (1 + copy))
        elif layout.instructions is not None:
            instruction -= address + layout.instructions
        key = code, instruction
        if key not in self._frames:
            if self._characters > MAX_CACHED_CHARACTERS:
                self._frames.clear()
                self._characters = 0
            frame = self._frames[key] = self._read(code, instruction)
            self._characters += 64 + len(frame.function) + len(frame.file)
        return self._frames[key]

    def _code(self, address: int) -> _Code:
        raw, layout = self._memory.read(address, self._code_size), self._layout
        if word(raw, layout.header - 8) != self._kind:
            raise UnreadableError
        places = layout.filename, layout.name, layout.lines
        filename, name, lines = (word(raw, at) for at in places)
        first = raw[layout.first_line : layout.first_line + 4]
        return _Code(address, filename, name, lines, int.from_bytes(first, "little", signed=True))

    def _read(self, code: _Code, offset: int) -> Frame:
        lines = code.lines + self._layout.header
        length = self._memory.pointer(lines)
        table = self._memory.read(lines + _BYTES_OFFSET, length)
        try:
            timely = self._memory.timely
            if self._has_columns:
                entries = re.finditer(rb"[\x80-\xff][\x00-\x7f]*", table)
                line = _with_columns(timely(entries), code.first_line, offset)
            else:
                steps = struct.iter_unpack("=Bb", table)
                line = _with_ranges(timely(steps), code.first_line, offset)
        except (IndexError, struct.error):
            raise UnreadableError from None
        line = line or code.first_line
        if not 0 < line < 2**31:
            raise UnreadableError
        return Frame(self._text(code.name), self._text(code.filename), line)

    def _text(self, address: int) -> str:
        raw = self._memory.read(address + self._layout.header, _BYTES_OFFSET + 4)
        length, flags = word(raw, 0), word(raw, _BYTES_OFFSET, 4)
        width = flags >> 2 & 7
        is_compact, is_ascii = flags & 0x20, flags & 0x40
        if not is_compact or width not in _CHARACTER_ENCODINGS:
            raise UnreadableError
        header = self._layout.ascii if is_ascii else self._layout.unicode
        taken = min(length, 512)  # of a longer path, the end
        raw = self._memory.read(address + header + (length - taken) * width, taken * width)
        text = printable(raw.decode(_CHARACTER_ENCODINGS[width], errors="replace"))
        return text if taken == length else f"…{text}"


def _with_ranges(pairs: Iterable[tuple[int, int]], line: int, offset: int) -> int | None:
    """The line at instruction `offset` in 3.10: pairs of bytes and lines to advance."""
    end = 0
    for length, step in pairs:
        end += length
        line += step if step != _NO_LINE else 0
        if 2 * offset < end:
            return line if step != _NO_LINE else None
    return None


def _with_columns(entries: Iterable[re.Match[bytes]], line: int, offset: int) -> int | None:
    """The line at byte `offset` since 3.11: see CPython's Objects/locations.md."""
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
    """A signed varint: six-bit groups, the lowest first; the lowest bit is the sign.

    Raises IndexError for more than six groups.
    """
    groups, number, at = entry[:7], 0, 0
    while at == 0 or groups[at] & 64:
        number |= (groups[at + 1] & 63) << 6 * at
        at += 1
    return -(number >> 1) if number & 1 else number >> 1
