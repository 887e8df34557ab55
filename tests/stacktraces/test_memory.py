"""Code, strings and calls as they are in memory, also where that is damaged: our own process's."""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
import typing
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import CodeType, ModuleType
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.stacktraces.code import Codes
from gpu_bottleneck_exporter.stacktraces.interpreter import Interpreter
from gpu_bottleneck_exporter.stacktraces.layouts import LAYOUTS
from gpu_bottleneck_exporter.stacktraces.memory import NoMemoryError, ProcessMemory, UnreadableError

MINOR = sys.version_info[1]
LAYOUT = LAYOUTS[MINOR]
MAPS = Path("/proc/self/maps").read_text()
M = TypeVar("M", bound=ProcessMemory)


def patient(kind: type[M]) -> M:
    """Our own."""
    return kind("/proc/self", time.monotonic() + 240)


def codes() -> Codes:
    return Codes(patient(ProcessMemory), MINOR, LAYOUT, id(CodeType))


def all_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from all_code(item)


def instruction(code: CodeType, offset: int) -> int:
    at = LAYOUT.instructions
    return offset // 2 if at is None else id(code) + at + offset


@pytest.mark.parametrize("module", [argparse, typing])
def test_each_instruction_has_its_line(module: ModuleType) -> None:
    assert module.__file__ is not None
    whole = compile(Path(module.__file__).read_text(encoding="utf-8"), "a file", "exec")
    reading = codes()
    for code in all_code(whole):
        for start, _, line in code.co_lines():
            frame = reading.frame(id(code), instruction(code, start))
            assert frame.line == (line or code.co_firstlineno)
            assert frame.file == "a file"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("train.py", "train.py"),
        ("größe.py", "größe.py"),
        ("数.py", "数.py"),
        ("🐍.py", "🐍.py"),
        ("\x1b[2J.py", "?[2J.py"),
        ("/a" * 1000, "…" + "/a" * 256),
        ("", ""),
    ],
)
def test_a_path_is_printable_and_cut(path: str, told: str) -> None:
    code = compile("1", path, "exec")
    assert codes().frame(id(code), instruction(code, 0)).file == told


class Copied(ProcessMemory):
    """Our own, with a list of copies of some code's instructions, of which the third is at 7."""

    def read(self, address: int, size: int) -> bytes:
        fields = {id(_LISTED) + 1000: 1 << 40, (1 << 40) + 8 + 3 * 8: 7}
        return (
            fields[address].to_bytes(8, "little")
            if address in fields
            else super().read(address, size)
        )


_LISTED = test_each_instruction_has_its_line.__code__


@pytest.mark.skipif(LAYOUT.instructions is None, reason="no copies before Python 3.11")
def test_a_free_threaded_build_has_copies_of_instructions_by_thread() -> None:
    layout = LAYOUT._replace(copies=1000)
    reading = Codes(patient(Copied), MINOR, layout, id(CodeType))
    for start, _, line in _LISTED.co_lines():
        for result in (
            reading.frame(id(_LISTED), instruction(_LISTED, start)),
            reading.frame(id(_LISTED), 7 + start, 3),
        ):
            assert result.line == (line or _LISTED.co_firstlineno)


def test_memory_without_code_is_none() -> None:
    with pytest.raises(UnreadableError):
        codes().frame(id("text"), 0)


@given(st.integers(-1, 1 << 65), st.integers(-1, 1 << 20))
def test_any_address_can_be_asked_for(address: int, size: int) -> None:
    with contextlib.suppress(UnreadableError):
        assert len(patient(ProcessMemory).read(address, size)) == size


class Damaged(ProcessMemory):
    """Our own, with a word that is another one at some reads."""

    def __init__(self, seed: int) -> None:
        super().__init__("/proc/self", time.monotonic() + 240)
        self._random = random.Random(seed)  # noqa: S311 - not for secrets
        self.reads = 0

    def read(self, address: int, size: int) -> bytes:
        raw = bytearray(super().read(address, size))
        self.reads += 1
        if size >= 8 and self._random.random() < 0.05:
            at = self._random.randrange(0, size - 7, 8)
            others = (0, 1, address, self._random.getrandbits(47), self._random.getrandbits(64))
            raw[at : at + 8] = self._random.choice(others).to_bytes(8, "little")
        return bytes(raw)


@given(st.integers())
def test_damaged_memory_costs_a_bounded_number_of_reads(seed: int) -> None:
    memory = Damaged(seed)
    try:
        interpreter = Interpreter(memory, MAPS)
        for thread in interpreter.threads():
            interpreter.holds_lock(thread)
            for frame in interpreter.stack(thread):
                assert len(frame.function) < 600
    except (UnreadableError, NoMemoryError):
        pass
    assert memory.reads < 100_000


class Circular(ProcessMemory):
    """Each call was made by itself, and each thread follows itself."""

    def read(self, address: int, size: int) -> bytes:
        raw = bytearray(super().read(address, size))
        if size == self.size:
            raw[self.at : self.at + 8] = address.to_bytes(8, "little")
        return bytes(raw)

    size = at = 0


@pytest.mark.parametrize("what", ["threads", "calls"])
def test_circles_end(what: str) -> None:
    memory = patient(Circular)
    interpreter = Interpreter(memory, MAPS)
    threads = interpreter.threads()
    if what == "threads":
        memory.size, memory.at = interpreter._size, 8
        assert len(interpreter.threads()) <= 16 * 64
    else:
        memory.size, memory.at = interpreter._call_size, LAYOUT.previous
        assert len([*islice(interpreter.stack(threads[0]), 10_000)]) < 10_000


def test_reading_stops_once_time_is_up() -> None:
    memory = ProcessMemory("/proc/self", time.monotonic() - 1)
    with pytest.raises(UnreadableError):
        memory.read(id(memory), 8)
