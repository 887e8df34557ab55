"""Programs and libraries as a process has them in its memory, and where their symbols are.

No file is opened: what is mapped counts, not what is at its path by now.
"""

from __future__ import annotations

import re
import struct

from gpu_bottleneck_exporter.stacktraces.memory import Memory, UnreadableError, word

_MAPPED = re.compile(r"^([0-9a-f]+)-\S+ \S+ 0+ \S+ \d+ +(/\S.*)$", re.MULTILINE)
_HEADER = struct.Struct("=6s10xH14xQ16xH")
"""Magic number, type, where the segments are, how many."""
_SEGMENT = struct.Struct("=I12xQ32x")
"""Type, address."""
_ENTRY_SIZE, _HASHES_SIZE, _HASH_SIZE, _SYMBOL_SIZE = 16, 16, 4, 24
_MAGIC = b"\x7fELF\x02\x01"
_LOADED, _DYNAMIC = 1, 2
_STRINGS, _SYMBOLS, _GNU_HASHES = 5, 6, 0x6FFFFEF5
_MOST_SEGMENTS, _MOST_ENTRIES, _MOST_CHAINED = 64, 128, 256
_PAGE = 4096


def mapped(maps: str) -> list[tuple[int, str]]:
    """Where each file is mapped whose beginning is. `maps`: the text of /proc/PID/maps."""
    return [(int(address, 16), path) for address, path in _MAPPED.findall(maps)]


class Image:
    """What is mapped at `base`."""

    def __init__(self, memory: Memory, base: int) -> None:
        """Raises UnreadableError if that is no program or library with symbols."""
        self._memory = memory
        magic, _, first, count = _HEADER.unpack(memory.read(base, _HEADER.size))
        if magic != _MAGIC or count > _MOST_SEGMENTS:
            raise UnreadableError
        segments = [*_SEGMENT.iter_unpack(memory.read(base + first, count * _SEGMENT.size))]
        loaded = [address for kind, address in segments if kind == _LOADED]
        dynamic = [address for kind, address in segments if kind == _DYNAMIC]
        if not loaded or not dynamic:
            raise UnreadableError
        self._bias: int = base - loaded[0] // _PAGE * _PAGE
        self._entries = self._dynamic(self._bias + dynamic[0])
        if not {_STRINGS, _SYMBOLS, _GNU_HASHES} <= self._entries.keys():
            raise UnreadableError

    def _dynamic(self, address: int) -> dict[int, int]:
        found: dict[int, int] = {}
        for number in range(_MOST_ENTRIES):
            raw = self._memory.read(address + number * _ENTRY_SIZE, _ENTRY_SIZE)
            kind, value = word(raw, 0), word(raw, 8)
            if not kind:
                break
            # glibc writes addresses into the table, musl leaves what was linked.
            found[kind] = value if value >= self._bias else value + self._bias
        return found

    def address(self, name: str) -> int | None:
        """Of symbol `name`; None if it exports none of that name."""
        table = self._entries[_GNU_HASHES]
        raw = self._memory.read(table, _HASHES_SIZE)
        buckets, skipped, filters = (word(raw, at, 4) for at in (0, 4, 8))
        wanted = _hash(name)
        at = table + _HASHES_SIZE + filters * 8
        number = self._hashed(at, wanted % buckets) if buckets else 0
        at += buckets * _HASH_SIZE
        for _ in range(_MOST_CHAINED):
            if number < skipped or not number:
                break
            hashed = self._hashed(at, number - skipped)
            if hashed | 1 == wanted | 1 and (found := self._symbol(number, name)):
                return found
            number = 0 if hashed & 1 else number + 1
        return None

    def _hashed(self, at: int, number: int) -> int:
        return word(self._memory.read(at + number * _HASH_SIZE, _HASH_SIZE), 0)

    def _symbol(self, number: int, name: str) -> int | None:
        """The address of the symbol with this number, if that is its name."""
        at = self._entries[_SYMBOLS] + number * _SYMBOL_SIZE
        raw = self._memory.read(at, _SYMBOL_SIZE)
        text = name.encode() + b"\0"
        if self._memory.read(self._entries[_STRINGS] + word(raw, 0, 4), len(text)) != text:
            return None
        return self._bias + word(raw, 8)


def _hash(name: str) -> int:
    """DT_GNU_HASH's."""
    found = 5381
    for byte in name.encode():
        found = (found * 33 + byte) & 0xFFFFFFFF
    return found
