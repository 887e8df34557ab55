"""The threads and stacks of another process's Python interpreter."""

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
from gpu_bottleneck_exporter.stacktraces.memory import (
    NoMemoryError,
    ProcessMemory,
    UnreadableError,
    word,
)

MAX_FRAMES = 64
"""Bound on the innermost calls read of a thread."""
MAX_PYTHON_THREADS = 64
_DEBUG_OFFSETS = struct.Struct("=8s9Q")
"""The start of _PyRuntime since 3.13: mark, version, free-threaded, a size,
`finalizing`, interpreters, a size, `id`, next interpreter, threads."""
_IS_X86 = platform.machine() == "x86_64"


class PythonThread(NamedTuple):
    """A thread of the interpreter."""

    address: int
    number: int
    """Thread id in its own PID namespace; 0 if unknown."""


class Interpreter:
    """The Python interpreter of one process."""

    def __init__(self, memory: ProcessMemory, maps: str) -> None:
        """`maps`: the text of /proc/PID/maps.

        Raises NoMemoryError, UnreadableError.
        """
        self.memory = memory
        image, self._runtime, path = _runtime(memory, maps)
        self.minor = _minor(memory, image, f"{path}\n{maps}")
        kind, layout = image.address("PyCode_Type"), self._select_layout()
        if layout is None or kind is None:
            most = f"3.{min(layouts.LAYOUTS)} to 3.{max(layouts.LAYOUTS)}"
            raise NoMemoryError(f"it runs Python 3.{self.minor}, but only {most} can be read")
        self._layout = layout
        self._codes = Codes(memory, self.minor, layout, kind)
        self._size = max(layout.tid, layout.call) + 8
        within_call = layout.previous, layout.code, layout.instruction, layout.owner or 0
        self._call_size = max(*within_call, layout.copy or 0) + 8

    def _select_layout(self) -> Layout | None:
        if self.minor < 13:  # noqa: PLR2004 _PyRuntime has no offsets
            return layouts.LAYOUTS.get(self.minor)
        raw = self.memory.read(self._runtime, _DEBUG_OFFSETS.size)
        mark, _, free, _, _, interpreters, _, _, after, threads = _DEBUG_OFFSETS.unpack(raw)
        if mark != b"xdebugpy":
            raise NoMemoryError(f"its Python 3.{self.minor} is an unknown build")
        layout = (layouts.FREE_THREADED if free else layouts.LAYOUTS).get(self.minor)
        places = {"interpreters": interpreters, "next_interpreter": after, "threads": threads}
        return layout and layout._replace(**places)

    def threads(self) -> list[PythonThread]:
        """The first `MAX_PYTHON_THREADS` threads. Raises UnreadableError, NoMemoryError."""
        layout, threads = self._layout, list[PythonThread]()
        interpreter = self.memory.pointer(self._runtime + layout.interpreters)
        for _ in range(16):
            if not interpreter:
                break
            address = self.memory.pointer(interpreter + layout.threads)
            while address and len(threads) < MAX_PYTHON_THREADS:
                raw = self.memory.read(address, self._size)
                threads.append(PythonThread(address, self._number(word(raw, layout.tid))))
                address = word(raw, 8)  # `next`, in all versions
            interpreter = self.memory.pointer(interpreter + layout.next_interpreter)
        return threads

    def _number(self, tid: int) -> int:
        """Thread id by the value at `Layout.tid`."""
        if self.minor >= 11:  # noqa: PLR2004 Python stores the number itself
            return tid
        # Its offset in the `struct pthread` of glibc.
        return word(self.memory.read(tid + (720 if _IS_X86 else 208), 4), 0)

    def holds_lock(self, thread: PythonThread) -> bool | None:
        """Whether the thread holds the GIL, or needs none; None if unknown.

        Before 3.12, the field follows locks of a size known on x86 only.
        """
        pointer, at = self.memory.pointer, self._layout.lock
        if self.minor >= 12:  # noqa: PLR2004 threads have an `active` flag
            return bool(pointer(thread.address + at) & 1 << 4)
        return pointer(self._runtime + at) == thread.address if _IS_X86 else None

    def place(self, thread: PythonThread) -> tuple[int, int]:
        """Addresses of the innermost call and its code, which change with each call."""
        call = self._innermost(thread)
        return call, self.memory.pointer(call + self._layout.code) if call else 0

    def _innermost(self, thread: PythonThread) -> int:
        call = self.memory.pointer(thread.address + self._layout.call)
        via = self._layout.via
        return call if via is None else self.memory.pointer(call + via)

    def stack(self, thread: PythonThread) -> Iterator[Frame]:
        """The calls of a thread, the innermost first. Raises UnreadableError, NoMemoryError."""
        layout, call = self._layout, self._innermost(thread)
        for _ in range(2 * MAX_FRAMES):  # some calls stand for no Python function
            if not call:
                break
            raw = self.memory.read(call, self._call_size)
            if layout.owner is None or raw[layout.owner] < layouts.MIN_C_OWNER:
                size = 4 if layout.owner is None else 8
                instruction = word(raw, layout.instruction, size)
                copy = word(raw, layout.copy, 4) if layout.copy else 0
                # Since 3.14 the lowest bits are flags.
                yield self._codes.frame(word(raw, layout.code) & ~7, instruction, copy)
            call = word(raw, layout.previous)


def _runtime(memory: ProcessMemory, maps: str) -> tuple[Image, int, str]:
    for base, path in mapped(maps):
        if not re.search(r"(?:^|/)(?:lib)?python[^/]*$", path):
            continue
        try:
            image = Image(memory, base)
            if address := image.address("_PyRuntime"):
                return image, address, path
        except UnreadableError:
            continue
    raise NoMemoryError("it does not run Python")


def _minor(memory: ProcessMemory, image: Image, paths: str) -> int:
    """The minor version of Python 3; before 3.11, from file names."""
    if address := image.address("Py_Version"):
        return memory.pointer(address) >> 16 & 255
    match = re.search(r"/(?:lib)?python3\.([0-9]{1,2})(?![0-9])", paths)
    return int(match[1]) if match else 0
