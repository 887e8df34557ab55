"""The Python within one process: its threads, and what each of them is in."""

from __future__ import annotations

import platform
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from gpu_bottleneck_exporter.stacktraces import layouts
from gpu_bottleneck_exporter.stacktraces.code import Codes
from gpu_bottleneck_exporter.stacktraces.frames import Frame
from gpu_bottleneck_exporter.stacktraces.images import Image, mapped
from gpu_bottleneck_exporter.stacktraces.layouts import Layout
from gpu_bottleneck_exporter.stacktraces.memory import Memory, NoMemoryError, UnreadableError, word

MOST_FRAMES = 64
"""Calls of a thread that are read: the innermost."""
MOST_THREADS = 64
"""Of a process."""
_MOST_CALLS = 2 * MOST_FRAMES
"""With those that stand for no function in Python."""
_MOST_INTERPRETERS = 16
_NAMED = re.compile(r"(?:^|/)(?:lib)?python[^/]*$")
_VERSION = re.compile(r"/(?:lib)?python3\.([0-9]{1,2})(?![0-9])")
_WITH_OFFSETS = 13
"""The first minor version that begins _PyRuntime with offsets in its structures."""
_OFFSETS = struct.Struct("=8s9Q")
"""Of which these are alike: a mark, version, free-threaded, a size, `finalizing`, interpreters, a
size, `id`, next interpreter, threads."""
_MARK = b"xdebugpy"
_WITH_NUMBERS, _WITH_STATES = 11, 12
"""From these minor versions on, threads know their numbers, and whether they may run Python."""
_ACTIVE = 1 << 4
"""The flag of one that may."""
_X86 = platform.machine() == "x86_64"
_NUMBER_AT = 720 if _X86 else 208
"""In glibc's `struct pthread`."""


class Running(NamedTuple):
    """A thread of Python's."""

    address: int
    number: int
    """In its own PID namespace; 0 if it is not known, nonsense with another C library."""


class Interpreter:
    """Python in a process."""

    def __init__(self, memory: Memory, maps: str) -> None:
        """`maps`: the text of /proc/PID/maps.

        Raises NoMemoryError, which says why there is nothing to read, and UnreadableError.
        """
        self.memory = memory
        image, self._runtime, path = _runtime(memory, maps)
        self.minor = _minor(memory, image, f"{path}\n{maps}")
        kind, layout = image.address("PyCode_Type"), self._found_layout()
        if layout is None or kind is None:
            most = f"3.{min(layouts.LAYOUTS)} to 3.{max(layouts.LAYOUTS)}"
            raise NoMemoryError(f"its Python is 3.{self.minor}, and {most} can be read")
        self._layout = layout
        self._codes = Codes(memory, self.minor, layout, kind)
        self._size = max(layout.tid, layout.call) + 8
        within_call = layout.previous, layout.code, layout.instruction, layout.owner or 0
        self._call_size = max(*within_call, layout.copy or 0) + 8

    def _found_layout(self) -> Layout | None:
        if self.minor < _WITH_OFFSETS:
            return layouts.LAYOUTS.get(self.minor)
        raw = self.memory.read(self._runtime, _OFFSETS.size)
        mark, _, free, _, _, interpreters, _, _, after, threads = _OFFSETS.unpack(raw)
        if mark != _MARK:
            raise NoMemoryError(f"its Python 3.{self.minor} is an unknown build")
        layout = (layouts.FREE_THREADED if free else layouts.LAYOUTS).get(self.minor)
        places = {"interpreters": interpreters, "next_interpreter": after, "threads": threads}
        return layout and layout._replace(**places)

    def threads(self) -> list[Running]:
        """At most `MOST_THREADS`. Raises UnreadableError, NoMemoryError."""
        layout, found = self._layout, list[Running]()
        interpreter = self.memory.pointer(self._runtime + layout.interpreters)
        for _ in range(_MOST_INTERPRETERS):
            if not interpreter:
                break
            address = self.memory.pointer(interpreter + layout.threads)
            while address and len(found) < MOST_THREADS:
                raw = self.memory.read(address, self._size)
                found.append(Running(address, self._number(word(raw, layout.tid))))
                address = word(raw, layouts.NEXT_THREAD)
            interpreter = self.memory.pointer(interpreter + layout.next_interpreter)
        return found

    def _number(self, known: int) -> int:
        """The number of a thread, by what Python knows of it."""
        if self.minor >= _WITH_NUMBERS:
            return known
        return word(self.memory.read(known + _NUMBER_AT, 4), 0)

    def holds_lock(self, thread: Running) -> bool | None:
        """Whether it holds Python's lock, the GIL, or needs none; None if that is not known.

        Before 3.12, locks of the C library precede what tells: their size differs elsewhere.
        """
        pointer, at = self.memory.pointer, self._layout.lock
        if self.minor >= _WITH_STATES:
            return bool(pointer(thread.address + at) & _ACTIVE)
        return pointer(self._runtime + at) == thread.address if _X86 else None

    def place(self, thread: Running) -> tuple[int, int]:
        """What changes as it calls and returns: where its innermost call is, and of what code."""
        call = self._innermost(thread)
        return call, self.memory.pointer(call + self._layout.code) if call else 0

    def _innermost(self, thread: Running) -> int:
        call = self.memory.pointer(thread.address + self._layout.call)
        via = self._layout.via
        return call if via is None else self.memory.pointer(call + via)

    def stack(self, thread: Running) -> Iterator[Frame]:
        """Its calls, the innermost first. Raises UnreadableError, NoMemoryError."""
        layout, call = self._layout, self._innermost(thread)
        for _ in range(_MOST_CALLS):
            if not call:
                break
            raw = self.memory.read(call, self._call_size)
            if layout.owner is None or raw[layout.owner] < layouts.OWNED_BY_C:
                size = 4 if layout.owner is None else 8
                instruction = word(raw, layout.instruction, size)
                copy = word(raw, layout.copy, 4) if layout.copy else 0
                # Since 3.14 the lowest bits are flags.
                yield self._codes.frame(word(raw, layout.code) & ~7, instruction, copy)
            call = word(raw, layout.previous)


def _runtime(memory: Memory, maps: str) -> tuple[Image, int, str]:
    """The program or library that has Python in it, where its state is, and its path."""
    for base, path in mapped(maps):
        if not _NAMED.search(path):
            continue
        try:
            image = Image(memory, base)
            if address := image.address("_PyRuntime"):
                return image, address, path
        except UnreadableError:
            continue
    raise NoMemoryError("there is no Python in it")


def _minor(memory: Memory, image: Image, paths: str) -> int:
    """Its minor version; before 3.11, only file names tell."""
    if address := image.address("Py_Version"):
        return memory.pointer(address) >> 16 & 255
    found = _VERSION.search(paths)
    return int(found[1]) if found else 0
