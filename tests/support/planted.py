"""A program of which it is known where each of its threads is."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.rights import AS_WE_ARE, Way
from support.tools import WITH_US

_BLANK = "\n" * 300
_PLANTED = f"""
import hashlib, os, sys, threading

lock = threading.Lock()
lock.acquire()

def locked():
    lock.acquire()  # locked

def native():
    data = bytes(1 << 26)
    while True:
        hashlib.sha256(data)  # native

class Lader:
    def warte(self, _):
        first = 1
{_BLANK}
        os.read(0, 1)  # warte
{_BLANK}
        return first

    def größe(self, n):
        if n:
            return self.größe(n - 1)  # größe
        return sorted([n], key=self.warte)  # sorted

def werte(n):
    yield Lader().größe(n)  # werte

for name in sys.argv[2:]:
    threading.Thread(target=globals()[name], daemon=True).start()
print("ready", flush=True)
list(werte(int(sys.argv[1])))  # list
"""


class Planted:
    """The running program."""

    def __init__(self, pid: int, path: Path) -> None:
        self.pid = pid
        self.path = path

    def line(self, mark: str) -> int:
        """The number of the line with a mark."""
        lines = _PLANTED.splitlines()
        return next(n for n, line in enumerate(lines, 1) if line.endswith(f"  # {mark}"))


@contextmanager
def planted(
    folder: Path, python: str, depth: int, *threads: str, way: Way = AS_WE_ARE, plain: bool = False
) -> Iterator[Planted]:
    """The program, with a Python, so deep, and with other threads in these functions.

    `plain`: for readers that leave out what has other names.
    """
    path = folder / ("plain.py" if plain else "größen und 数.py")
    text = _PLANTED.replace("größe", "groesse") if plain else _PLANTED
    path.write_text(text, encoding="utf-8")
    command, pipe = (*WITH_US, *way, python, f"{path}", f"{depth}", *threads), subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield Planted(process.pid, path)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
