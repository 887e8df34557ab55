"""Symbols of the ELF programs and libraries that a process has mapped.

Read from memory: the files may have been replaced.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum

from gpu_bottleneck_exporter.stacktraces.memory import ProcessMemory, UnreadableError, word

_ELF_HEADER = struct.Struct("=6s10xH14xQ16xH")
"""Fields: magic number, type, offset and number of the program headers."""
_PROGRAM_HEADER = struct.Struct("=I12xQ32x")
"""Fields: type, address."""


class _Tag(IntEnum):
    """Kinds of the entries of the dynamic section, DT_* of elf.h."""

    STRTAB = 5
    SYMTAB = 6
    GNU_HASH = 0x6FFFFEF5


def mapped(maps: str) -> list[tuple[int, str]]:
    """Address and path of each file mapped from its start, in /proc/PID/maps."""
    line = r"^([0-9a-f]+)-\S+ \S+ 0+ \S+ \d+ +(/\S.*)$"
    return [(int(address, 16), path) for address, path in re.findall(line, maps, re.MULTILINE)]


class Image:
    """The ELF image at `base`."""

    def __init__(self, memory: ProcessMemory, base: int) -> None:
        """Raises UnreadableError if that is no program or library with symbols."""
        self._memory = memory
        magic, _, first, count = _ELF_HEADER.unpack(memory.read(base, _ELF_HEADER.size))
        if magic != b"\x7fELF\x02\x01" or count > 64:  # noqa: PLR2004
            raise UnreadableError
        headers = memory.read(base + first, count * _PROGRAM_HEADER.size)
        segments = [*_PROGRAM_HEADER.iter_unpack(headers)]
        loaded = [address for kind, address in segments if kind == 1]  # PT_LOAD
        dynamic = [address for kind, address in segments if kind == 2]  # noqa: PLR2004 PT_DYNAMIC
        if not loaded or not dynamic:
            raise UnreadableError
        self._bias: int = base - loaded[0] // 4096 * 4096
        self._entries = self._dynamic(self._bias + dynamic[0])
        if not set(_Tag) <= self._entries.keys():
            raise UnreadableError

    def _dynamic(self, address: int) -> dict[int, int]:
        entries: dict[int, int] = {}
        for number in range(128):
            raw = self._memory.read(address + number * 16, 16)
            kind, value = word(raw, 0), word(raw, 8)
            if not kind:
                break
            # glibc relocates the addresses in this table, musl does not.
            entries[kind] = value if value >= self._bias else value + self._bias
        return entries

    def address(self, name: str) -> int | None:
        """The address of exported symbol `name`, or None."""
        table = self._entries[_Tag.GNU_HASH]
        raw = self._memory.read(table, 16)
        buckets, skipped, filters = (word(raw, at, 4) for at in (0, 4, 8))
        target = _gnu_hash(name)
        at = table + 16 + filters * 8
        number = self._hash_at(at, target % buckets) if buckets else 0
        at += buckets * 4
        for _ in range(256):
            if number < skipped or not number:
                break
            chained = self._hash_at(at, number - skipped)
            if chained | 1 == target | 1 and (address := self._symbol_address(number, name)):
                return address
            number = 0 if chained & 1 else number + 1
        return None

    def _hash_at(self, at: int, number: int) -> int:
        return word(self._memory.read(at + number * 4, 4), 0)

    def _symbol_address(self, number: int, name: str) -> int | None:
        raw = self._memory.read(self._entries[_Tag.SYMTAB] + number * 24, 24)
        text = name.encode() + b"\0"
        if self._memory.read(self._entries[_Tag.STRTAB] + word(raw, 0, 4), len(text)) != text:
            return None
        return self._bias + word(raw, 8)


def _gnu_hash(name: str) -> int:
    value = 5381
    for byte in name.encode():
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value
