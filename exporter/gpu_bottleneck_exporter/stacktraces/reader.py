"""Stacks of Python threads, read from the memory of running processes: none is paused.

A stack that changes while it is read may be inconsistent, so it is read again if it does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import Aside
from gpu_bottleneck_exporter.host.files import MANY_BYTES, MOST_LISTED, numbered, read
from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.host.sockets import same_pids
from gpu_bottleneck_exporter.host.threads import Thread
from gpu_bottleneck_exporter.host.waits import Wait, wait_of
from gpu_bottleneck_exporter.stacktraces.frames import Frame
from gpu_bottleneck_exporter.stacktraces.interpreter import (
    MOST_FRAMES,
    Interpreter,
    Running,
)
from gpu_bottleneck_exporter.stacktraces.memory import Memory, NoMemoryError, UnreadableError

PATIENCE_SECONDS = 1.0
"""For all processes of a look together."""
_MOST_KEPT = 64
"""Processes whose Python is remembered."""
_TRIES = 3
_MOST_MAPPED = 4 * MANY_BYTES
_MOST_NUMBERED = 512
"""Threads of a process."""
_OWN_NUMBER = re.compile(r"^NSpid:.*\s(\d+)$", re.MULTILINE)
looking = Aside()
"""For all reads here: what holds them up must not hold up others."""


class Refusal(str):
    """Why a process cannot be read: a clause about it."""

    __slots__ = ()


class ThreadStack(NamedTuple):
    """What a thread that runs Python did at one moment."""

    tid: int
    """0 if it is not known."""
    wait: Wait
    native: bool
    """Whether it ran without Python's lock, so native code; False if that is not known."""
    frames: tuple[Frame, ...]
    """The innermost first."""


class _Known:
    """What is remembered of a process."""

    def __init__(self, proc: Path, pid: int) -> None:
        self.process = ProcessReader(proc, pid)
        self.memory = Memory(pid)
        self.interpreter: Interpreter | None = None
        self.threads: dict[int, Thread] = {}
        """By number, as the process itself knows them."""

    def number(self, folder: str, numbers: Iterable[int]) -> None:
        """Find the threads with these numbers in `folder`, which names them as we do."""
        unknown = {*numbers} - self.threads.keys()
        if not unknown - {0}:
            return
        self.threads.clear()
        for tid in islice(numbered(folder, MOST_LISTED), _MOST_NUMBERED):
            self.threads[_own_number(f"{folder}/{tid}") or tid] = Thread(folder, tid, None)

    def close(self) -> None:
        """Close its files."""
        self.process.close()
        self.threads.clear()


class StackReader:
    """Reads stacks of processes; a context manager."""

    def __init__(self, proc: Path) -> None:
        """`proc`: the host's."""
        self.at_ns = 0
        """When the stacks of the last `read` were read (monotonic)."""
        self._proc = proc
        self._same_pids = same_pids(proc)
        self._known: dict[int, _Known] = {}
        self._before = looking.cpu_seconds

    def __enter__(self) -> StackReader:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._known.values():
            one.close()
        self._known.clear()

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all reads so far, without that of the calling thread."""
        return looking.cpu_seconds - self._before

    def read(self, pids: Sequence[int]) -> Mapping[int, Sequence[ThreadStack] | Refusal]:
        """The stacks of each process, or why they cannot be read."""
        self.at_ns = time.monotonic_ns()
        until = time.monotonic() + PATIENCE_SECONDS
        return {pid: self._one(pid, until) for pid in pids}

    def _one(self, pid: int, until: float) -> Sequence[ThreadStack] | Refusal:
        if not self._same_pids:
            return Refusal("it is in another PID namespace than we are")
        if time.monotonic() > until:
            return Refusal("there was no time left for it")
        known = self._remembered(pid)
        try:
            if trouble := _trouble(known.process):
                raise NoMemoryError(trouble)
            found = looking.call(pid, lambda: self._stacks(known, until))
            if found is None:
                raise NoMemoryError("its memory does not answer")
        except (NoMemoryError, UnreadableError) as error:
            # It may execute another program next.
            self._known.pop(pid).close()
            return Refusal(_trouble(known.process) or f"{error}")
        return found

    def _remembered(self, pid: int) -> _Known:
        known = self._known.pop(pid, None) or _Known(self._proc, pid)
        self._known[pid] = known
        if len(self._known) > _MOST_KEPT:
            longest_ago = next(iter(self._known))
            self._known.pop(longest_ago).close()
        return known

    def _stacks(self, known: _Known, until: float) -> list[ThreadStack]:
        interpreter = known.interpreter = known.interpreter or self._interpreter(known)
        threads = interpreter.threads()
        known.number(f"{self._proc}/{known.process.pid}/task", [one.number for one in threads])
        stacks = []
        for thread in threads:
            if time.monotonic() < until and (stack := _stack(known, interpreter, thread)):
                stacks.append(stack)
        return stacks

    def _interpreter(self, known: _Known) -> Interpreter:
        folder = f"{self._proc}/{known.process.pid}"
        maps = read(f"{folder}/maps", _MOST_MAPPED)
        if maps is None:
            raise NoMemoryError("reading it takes the permission to ptrace it (CAP_SYS_PTRACE)")
        return Interpreter(known.memory, maps, _own_number(folder) or known.process.pid)


def _trouble(process: ProcessReader) -> str | None:
    """Why there is nothing to read of a process."""
    stat = process.stat()
    if stat is None or stat.ended:
        return "it has ended"
    return "it is stopped" if wait_of(stat.state, None) is Wait.STOPPED else None


def _stack(known: _Known, interpreter: Interpreter, thread: Running) -> ThreadStack | None:
    """What a thread does; None if it is in no function, or changes too fast to be read."""
    asked = known.threads.get(thread.number)
    found = None
    for _ in range(_TRIES):
        try:
            before = interpreter.place(thread)
            wait = asked.ask() if asked else Wait.UNKNOWN
            native = wait is Wait.RUN and interpreter.holds_lock(thread) is False
            frames = tuple(islice(interpreter.stack(thread), MOST_FRAMES))
            found = ThreadStack(asked.tid if asked else 0, wait, native, frames)
            if interpreter.place(thread) == before:
                break
        except UnreadableError:
            continue
    return found if found and found.frames else None


def _own_number(folder: str) -> int | None:
    """The number of a process or thread in its own PID namespace."""
    found = _OWN_NUMBER.search(read(f"{folder}/status") or "")
    return int(found[1]) if found else None
