"""A check of the driver's library before loading.

The loader dies of a truncated file (SIGBUS), blocks on a pipe, and skips unreadable files.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"
_MAX_SEGMENT_TABLE_BYTES = 2**20
"""Bytes read of the segment table: a kilobyte is usual."""


def failure(library: str = LIBRARY) -> str | None:
    """The reason why `library` cannot be loaded; None if it is loaded, or missing."""
    places = _places(library)
    file = next((path for path in places if os.access(path, os.R_OK)), None)
    if file and not file.is_file():
        return f"{file}: not a file"
    length, needed = _lengths(file) if file else (0, 0)
    if length < needed:
        return f"{file}: cut short: {length} bytes of {needed}"
    try:
        ctypes.CDLL(library)
    except OSError as error:
        said = f"{error}"
        if library not in said:  # about another library that it needs
            return f"{file or library}: {said}"
        skipped = next(filter(None, map(_skipped, places)), None)
        return skipped if "No such file" in said else said
    return None


def _places(library: str) -> list[Path]:
    """The loader's paths for `library`, without its cache."""
    given = filter(None, re.split("[:;]", os.environ.get("LD_LIBRARY_PATH", "")))
    multiarch = f"/usr/lib/{os.uname().machine}-linux-gnu"
    return [Path(folder) / library for folder in (*given, multiarch, "/usr/lib64", "/usr/lib")]


def _lengths(file: Path) -> tuple[int, int]:
    """Length in bytes of a library, and the length that its segments need."""
    try:
        with file.open("rb") as content:
            length, head = os.fstat(content.fileno()).st_size, content.read(64)
            if not head.startswith(b"\x7fELF\x02"):
                return length, 0
            # e_phoff, e_phentsize and e_phnum of Elf64_Ehdr: the table of segments.
            table, size, count = struct.unpack_from("=Q14xHH", head, 32)
            content.seek(table)
            rows = content.read(min(size * count, _MAX_SEGMENT_TABLE_BYTES))
        # Elf64_Phdr (elf.h): type, flags, file offset, two addresses, file size.
        segments = [struct.unpack_from("=IIQQQQ", rows, size * at) for at in range(count)]
    except (OSError, ValueError, struct.error):  # the loader reports the fault
        return 0, 0
    loaded = (row for row in segments if row[0] == 1)  # PT_LOAD
    return length, max((offset + size for _, _, offset, _, _, size in loaded), default=0)


def _skipped(path: Path) -> str | None:
    try:
        path.open("rb").close()
    except PermissionError:
        return f"{path}: no permission to {'read' if os.path.lexists(path) else 'look for'} it"
    except OSError:
        if path.is_symlink():
            return f"{path}: a link to {path.readlink()}, which is missing"
    return None
