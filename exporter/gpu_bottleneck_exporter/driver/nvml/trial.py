"""Loading the driver's library in a child process first.

A truncated library kills the process that loads it (SIGBUS), and a pipe in its place blocks it
forever. So a child process tries first, with the same loader and search path: `failure` starts it,
and it runs the end of this file, with Python's standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"
PATIENCE_SECONDS = 10.0
_SAYS = "unusable: "
_LOADER_CACHE = Path("/etc/ld.so.cache")
_CACHE_BYTES = 16 * 2**20
_MOST_SEGMENTS = 64
_ELF64 = b"\x7fELF\x02"
_SEGMENT = struct.Struct("=IIQQQQ")
"""Elf64_Phdr: type, flags, offset in the file, two addresses, size in the file (elf.h)."""
_PT_LOAD = 1
_PR_SET_DUMPABLE = 4


def failure(library: str = LIBRARY, patience_seconds: float = PATIENCE_SECONDS) -> str | None:
    """Why `library` cannot be loaded, in one line; None if it can, or if there is none.

    Takes about 30 ms.
    """
    command = [sys.executable, "-I", "-S", __file__, library]
    quiet = subprocess.DEVNULL
    try:
        process = subprocess.Popen(  # noqa: S603 - this interpreter and this file
            command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet
        )
    except OSError:
        return None  # no process can be started: go without the trial
    try:
        said, _ = process.communicate(timeout=patience_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)  # limited, as it may hang in a file system
        return f"{_named(library)}: loading it has not ended within {patience_seconds:g} s"
    if process.returncode < 0:
        ended = signal.Signals(-process.returncode).name
        return f"{_named(library)}: loading it ends with {ended}: the file is damaged or cut short"
    last = said.decode(errors="replace").rpartition("\n")[2]
    return last.removeprefix(_SAYS) if last.startswith(_SAYS) else None


def _try(library: str) -> str | None:
    try:
        handle = ctypes.CDLL(library)._handle  # noqa: SLF001 - has no other name
    except OSError as error:
        said = f"{error}"
        if library not in said:  # about another library that it needs
            return f"{_named(library)}: {said}"
        return _hidden(library) if "No such file" in said else said
    # A loaded library's handle points to its link map: an address, then its path.
    path = ctypes.cast(handle, ctypes.POINTER(ctypes.c_char_p))[1] or b""
    return _cut_short(os.fsdecode(path))


def _cut_short(path: str) -> str | None:
    """Why the file is too short for its segments: touching a missing page later would kill us."""
    try:
        length, needed = _lengths(path)
    except (OSError, struct.error):
        return None
    return f"{path}: cut short: {length} bytes of {needed}" if length < needed else None


def _lengths(path: str) -> tuple[int, int]:
    """The length of a library's file, and the length that its segments need."""
    with open(path, "rb") as file:
        length, head = os.fstat(file.fileno()).st_size, file.read(64)
        if not head.startswith(_ELF64):
            return length, 0
        # e_phoff, e_phentsize and e_phnum of Elf64_Ehdr: the table of segments.
        (table,) = struct.unpack_from("=Q", head, 32)
        size, count = struct.unpack_from("=HH", head, 54)
        file.seek(table)
        rows = [file.read(size) for _ in range(min(count, _MOST_SEGMENTS))]
    segments = [_SEGMENT.unpack_from(row) for row in rows]
    return length, max((s[2] + s[5] for s in segments if s[0] == _PT_LOAD), default=0)


def _hidden(library: str) -> str | None:
    """What the loader skips silently: a file that it may not read, or a dead link."""
    return next(filter(None, map(_complaint, _places(library))), None)


def _complaint(path: Path) -> str | None:
    try:
        with open(path, "rb"):
            return None
    except PermissionError:
        known = os.path.lexists(path) or path in _cached(path.name)
        return f"{path}: no permission to {'read' if known else 'look for'} it"
    except OSError:
        dead = path.is_symlink()
        return f"{path}: a link to {path.readlink()}, which is missing" if dead else None


def _named(library: str) -> str:
    """The path of the file that the loader takes, as far as it can be determined."""
    found = next((path for path in _places(library) if os.access(path, os.R_OK)), None)
    if found is None:
        return library
    return f"{found}" if found.is_file() else f"{found} (not a file)"


def _places(library: str) -> Iterator[Path]:
    """Where the loader looks for `library`."""
    for folder in re.split("[:;]", os.environ.get("LD_LIBRARY_PATH", "")):
        if folder:
            yield Path(folder) / library
    yield from _cached(library)
    for folder in ("/lib64", "/usr/lib64", "/lib", "/usr/lib"):
        yield Path(folder) / library


def _cached(library: str) -> list[Path]:
    """The paths of `library` in the cache of `ldconfig`."""
    try:
        with open(_LOADER_CACHE, "rb") as cache:
            strings = cache.read(_CACHE_BYTES).split(b"\0")
    except OSError:
        return []
    end = b"/" + os.fsencode(library)
    paths = [text for text in strings if text.startswith(b"/") and text.endswith(end)]
    return [Path(os.fsdecode(path)) for path in paths]


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # a crash is expected: no core dump
    reason = _try(sys.argv[1])
    if reason:
        sys.stdout.write(f"\n{_SAYS}{' '.join(reason.split())}")
        sys.stdout.flush()
    os._exit(0)  # skips the library's exit handlers: nothing was initialised
