"""Reads the stacks of Python threads without stopping them.

A stack that changes meanwhile is read again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import GuardedExecutor
from gpu_bottleneck_exporter.host.files import MAX_TABLE_BYTES, list_numbers, read
from gpu_bottleneck_exporter.host.process import ProcessReader, Started, user_id
from gpu_bottleneck_exporter.host.threads import Thread
from gpu_bottleneck_exporter.host.waits import Wait, wait_of
from gpu_bottleneck_exporter.stacktraces.frames import Frame
from gpu_bottleneck_exporter.stacktraces.interpreter import MAX_FRAMES, Interpreter, PythonThread
from gpu_bottleneck_exporter.stacktraces.memory import (
    NoMemoryError,
    ProcessMemory,
    UnreadableError,
)

READ_TIMEOUT_SECONDS = 0.8
"""Time limit per sample: less than a call's in `stack_reads`, so that CPU time is counted."""
_MAX_CACHED_PROCESSES = 64
_MAX_PROCESSES_PER_ROLE = 2
"""Bound on the mains of a sample, and on the helpers."""
_UNKNOWN_OWNER = "its owner may not be that of all holders of the GPU"
stack_reads = GuardedExecutor(1.0)
"""Runs all reads here: a hung one delays no others."""


class UnreadableReason(str):
    """A clause with the reason for an unreadable process."""

    __slots__ = ()


class ThreadStack(NamedTuple):
    """A Python thread's state at one time."""

    tid: int
    """Thread id; 0 if unknown."""
    wait: Wait
    native: bool
    """Whether it ran without the GIL, so native code; False if unknown."""
    frames: tuple[Frame, ...]
    """Calls, the innermost first."""


_Owner = tuple[str, str, str] | None
"""User id, pod or container, and Slurm job; empty outside of these."""
Stacks = Sequence[ThreadStack] | UnreadableReason


class _CachedProcess:
    def __init__(self, proc: Path, pid: int) -> None:
        self.folder, self.tasks = f"{proc}/{pid}", f"{proc}/{pid}/task"
        self.process = ProcessReader(proc, pid)
        self.interpreter: Interpreter | None = None
        self.threads: dict[int, Thread | None] = {}
        """Threads by id in their own PID namespace; None: not found."""

    def find_threads(self, numbers: Sequence[int]) -> None:
        """Set `threads` to those with these ids."""
        missing = {*numbers} - self.threads.keys()
        if not missing:
            return
        for number in self.threads.keys() - {*numbers}:
            del self.threads[number]
        tids = list_numbers(self.tasks, 512)
        nested = _nested_pid(self.folder) != self.process.pid
        by_number = {_nested_pid(f"{self.tasks}/{tid}") if nested else tid: tid for tid in tids}
        for number in missing:
            tid = by_number.get(number)
            self.threads[number] = Thread(self.tasks, tid, None) if tid else None

    def close(self) -> None:
        self.process.close()
        self.threads.clear()


class StackReader(AbstractContextManager["StackReader"]):
    """Reads the stacks of processes. Not thread-safe."""

    def __init__(
        self,
        proc: Path,
        timeout_seconds: float = READ_TIMEOUT_SECONDS,
        tenant: Callable[[int], tuple[str, str]] = lambda _: ("", ""),
    ) -> None:
        """`proc`: the host's; `tenant`: pod or container and Slurm job of a process."""
        self._proc = proc
        self._tenant = tenant
        self._timeout = timeout_seconds
        self._cache: dict[int, _CachedProcess] = {}
        self._cpu_seconds_before = stack_reads.cpu_seconds

    def __exit__(self, *_: object) -> None:
        for process in self._cache.values():
            process.close()
        self._cache.clear()

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all reads, without the calling thread's."""
        return stack_reads.cpu_seconds - self._cpu_seconds_before

    def read(self, mains: Sequence[Started], helpers: Sequence[Started]) -> Mapping[int, Stacks]:
        """Stacks by pid of the first mains and their owner's first helpers.

        All mains must have one owner, who is shown the lines.
        """
        until = time.monotonic() + self._timeout
        owners = [self._owner(pid) for pid, _ in mains]
        owner = owners[0] if mains and all(_shares(owners[0], other) for other in owners) else None
        related = (helper for helper in helpers if _shares(owner, self._owner(helper[0])))
        limit = _MAX_PROCESSES_PER_ROLE
        chosen = (*mains[:limit], *islice(related, limit))
        return {started[0]: self._read(started, owner, until) for started in chosen}

    def _owner(self, pid: int) -> _Owner:
        """The owner of a process; None if unknown, or it has ended.

        Several user ids, as of a setuid program, mean several users' data.
        """
        status = read(f"{self._proc}/{pid}/status") or ""
        if not re.search(r"^Uid:\t(\d+)\t\1\t\1\t\1$", status, re.MULTILINE):
            return None
        return user_id(self._proc, pid), *self._tenant(pid)

    def _read(self, started: Started, owner: _Owner, until: float) -> Stacks:
        if time.monotonic() > until:
            return UnreadableReason("the sample ran out of time before it")
        pid, _ = started
        cached = self._cache.pop(pid, None)
        result = stack_reads.call(
            pid, lambda: self._read_aside(cached, started, until, may_read=bool(owner))
        )
        if result is None:
            return UnreadableReason("its memory does not answer")
        process, stacks = result
        if not isinstance(stacks, UnreadableReason) and not _shares(owner, self._owner(pid)):
            stacks = UnreadableReason(_UNKNOWN_OWNER)
        if isinstance(stacks, UnreadableReason):
            process.close()  # it may execute another program next
            return stacks
        self._cache[pid] = process
        if len(self._cache) > _MAX_CACHED_PROCESSES:
            self._cache.pop(next(iter(self._cache))).close()  # least recently read
        return stacks

    def _read_aside(
        self, cached: _CachedProcess | None, started: Started, until: float, *, may_read: bool
    ) -> tuple[_CachedProcess, Stacks]:
        """Stacks of a process, read in `stack_reads`, as an execve can delay reads."""
        pid, started_ticks = started
        process = cached or _CachedProcess(self._proc, pid)
        stacks: Stacks
        trouble = _trouble(process.process, started_ticks) or (None if may_read else _UNKNOWN_OWNER)
        try:
            stacks = UnreadableReason(trouble) if trouble else _stacks(process, until)
        except NoMemoryError as error:
            stacks = UnreadableReason(error)
        except UnreadableError:
            stacks = UnreadableReason("its Python state could not be parsed")
        # The pid may have been reused during the read.
        trouble = _trouble(process.process, started_ticks)
        return process, UnreadableReason(trouble) if trouble else stacks


def _shares(owner: _Owner, other: _Owner) -> bool:
    """Whether two processes are of one user, pod, container or Slurm job.

    Root's processes in a Slurm job are not part of it.
    """
    if owner is None or other is None or owner[1:] != other[1:]:
        return False
    user, place, job = owner
    return user == other[0] or place != "" or (job != "" and "0" not in (user, other[0]))


def _stacks(process: _CachedProcess, until: float) -> list[ThreadStack]:
    if process.interpreter is None:
        memory, maps = ProcessMemory(process.folder, until), f"{process.folder}/maps"
        process.interpreter = Interpreter(memory, read(maps, 4 * MAX_TABLE_BYTES) or "")
    interpreter = process.interpreter
    interpreter.memory.until = until
    threads = interpreter.threads()
    process.find_threads([thread.number for thread in threads])
    stacks: dict[int, ThreadStack] = {}
    for thread in threads:
        if stack := _stack(process.threads[thread.number], interpreter, thread):
            # A subinterpreter's thread is also in the main one.
            stacks.setdefault(stack.tid or thread.address, stack)
    return [*stacks.values()]


def _trouble(process: ProcessReader, started_ticks: int | None) -> str | None:
    """The reason not to read the process with this start time."""
    stat = process.stat()
    if stat is None or stat.ended or stat.started_ticks != started_ticks:
        return "it has ended"
    return "it is stopped" if wait_of(stat.state, None) is Wait.STOPPED else None


def _stack(
    task: Thread | None, interpreter: Interpreter, thread: PythonThread
) -> ThreadStack | None:
    """The state of a thread; None without a function, or if it changes too fast."""
    stack = None
    for _ in range(3):
        try:
            before = interpreter.place(thread)
            wait = task.sample() if task else Wait.UNKNOWN
            native = wait is Wait.RUN and interpreter.holds_lock(thread) is False
            frames = tuple(islice(interpreter.stack(thread), MAX_FRAMES))
            stack = ThreadStack(task.tid if task else 0, wait, native, frames)
            if interpreter.place(thread) == before:
                break
        except UnreadableError:
            continue
    return stack if stack and stack.frames else None


def _nested_pid(folder: str) -> int:
    """Id of a process or thread in its own PID namespace; 0 if ended."""
    match = re.search(r"^NSpid:.*\s(\d+)$", read(f"{folder}/status") or "", re.MULTILINE)
    return int(match[1]) if match else 0
