"""Stacks of Python threads, read from the memory of running processes: none is paused.

A stack that changes while it is read may be inconsistent, so it is read again if it does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import Aside
from gpu_bottleneck_exporter.host.files import MAX_TABLE_BYTES, list_numbers, read
from gpu_bottleneck_exporter.host.process import ProcessReader, Started, user_id
from gpu_bottleneck_exporter.host.threads import Thread
from gpu_bottleneck_exporter.host.waits import Wait, wait_of
from gpu_bottleneck_exporter.stacktraces.frames import Frame
from gpu_bottleneck_exporter.stacktraces.interpreter import MOST_FRAMES, Interpreter, Running
from gpu_bottleneck_exporter.stacktraces.memory import Memory, NoMemoryError, UnreadableError

PATIENCE_SECONDS = 0.8
"""For all processes of a look together: less than `looking` waits for one, so that each call
returns in time and its CPU time is counted."""
_MOST_KEPT = 64
"""Processes whose Python is remembered."""
_TRIES = 3
_MOST_MAPPED = 4 * MAX_TABLE_BYTES
_MOST_NUMBERED = 512
"""Threads of a process."""
_READ_AT_ONCE = 2
"""Mains of a look, and as many helpers."""
_OTHERS = "it is not known to be of the owner of all that hold the GPU"
_OWN_NUMBER = re.compile(r"^NSpid:.*\s(\d+)$", re.MULTILINE)
_ONE_USER = re.compile(r"^Uid:\t(\d+)\t\1\t\1\t\1$", re.MULTILINE)
looking = Aside(1.0)
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


_Owner = tuple[str, str, str] | None
"""The user, by number, the pod or container, and the Slurm job; empty outside of these."""
Stacks = Sequence[ThreadStack] | Refusal
"""The stacks of a process, or why it cannot be read."""


class _Known:
    """What is remembered of a process."""

    def __init__(self, proc: Path, pid: int) -> None:
        self.folder, self.tasks = f"{proc}/{pid}", f"{proc}/{pid}/task"
        self.process = ProcessReader(proc, pid)
        self.interpreter: Interpreter | None = None
        self.threads: dict[int, Thread | None] = {}
        """By their numbers in their own PID namespace; None: not found."""

    def find(self, numbers: Sequence[int]) -> None:
        """Find the threads with these numbers."""
        unknown = {*numbers} - self.threads.keys()
        if not unknown:
            return
        for number in self.threads.keys() - {*numbers}:
            del self.threads[number]
        tids = list_numbers(self.tasks, _MOST_NUMBERED)
        nested = _own_number(self.folder) != self.process.pid
        found = {_own_number(f"{self.tasks}/{tid}") if nested else tid: tid for tid in tids}
        for number in unknown:
            tid = found.get(number)
            self.threads[number] = Thread(self.tasks, tid, None) if tid else None

    def close(self) -> None:
        """Close its files."""
        self.process.close()
        self.threads.clear()


class StackReader(AbstractContextManager["StackReader"]):
    """Reads stacks of processes."""

    def __init__(
        self,
        proc: Path,
        patience_seconds: float = PATIENCE_SECONDS,
        tenant: Callable[[int], tuple[str, str]] = lambda _: ("", ""),
    ) -> None:
        """`proc`: the host's; `tenant`: the pod or container of a process, and its Slurm job."""
        self._proc = proc
        self._tenant = tenant
        self._patience = patience_seconds
        self._known: dict[int, _Known] = {}
        self._before = looking.cpu_seconds

    def __exit__(self, *_: object) -> None:
        for one in self._known.values():
            one.close()
        self._known.clear()

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all reads so far, without that of the calling thread."""
        return looking.cpu_seconds - self._before

    def read(self, mains: Sequence[Started], helpers: Sequence[Started]) -> Mapping[int, Stacks]:
        """The stacks of the first mains and of the first helpers of their owner, or why not.

        None is read if the mains are not known to be of one owner: it is shown with their GPU.
        """
        until = time.monotonic() + self._patience
        owners = [self._owner(pid) for pid, _ in mains]
        owner = owners[0] if mains and all(_shares(owners[0], one) for one in owners) else None
        related = (one for one in helpers if _shares(owner, self._owner(one[0])))
        chosen = (*mains[:_READ_AT_ONCE], *islice(related, _READ_AT_ONCE))
        return {one[0]: self._one(one, owner, until) for one in chosen}

    def _owner(self, pid: int) -> _Owner:
        """The owner of a process; None if it is unknown, or the process has ended.

        A process with several user ids, such as a setuid program, holds data of several users.
        """
        if not _ONE_USER.search(read(f"{self._proc}/{pid}/status") or ""):
            return None
        return user_id(self._proc, pid), *self._tenant(pid)

    def _one(self, asked: Started, owner: _Owner, until: float) -> Stacks:
        if time.monotonic() > until:
            return Refusal("there was no time left for it")
        pid, _ = asked
        known = self._known.pop(pid, None)
        looked = looking.call(pid, lambda: self._look(known, asked, until, may_read=bool(owner)))
        if looked is None:
            return Refusal("its memory does not answer")
        known, found = looked
        if isinstance(found, Refusal) or not _shares(owner, self._owner(pid)):
            known.close()  # it may execute another program next
            return found if isinstance(found, Refusal) else Refusal(_OTHERS)
        self._known[pid] = known
        if len(self._known) > _MOST_KEPT:
            self._known.pop(next(iter(self._known))).close()  # not read for longest
        return found

    def _look(
        self, known: _Known | None, asked: Started, until: float, *, may_read: bool
    ) -> tuple[_Known, Stacks]:
        """Stacks of a process; called aside, as an execve may hold up each read of it."""
        pid, started_ticks = asked
        known = known or _Known(self._proc, pid)
        found: Stacks
        trouble = _trouble(known.process, started_ticks) or (None if may_read else _OTHERS)
        try:
            found = Refusal(trouble) if trouble else _stacks(known, until)
        except NoMemoryError as error:
            found = Refusal(error)
        except UnreadableError:
            found = Refusal("its Python state could not be parsed")
        # What was read may be another's by now.
        trouble = _trouble(known.process, started_ticks)
        return known, Refusal(trouble) if trouble else found


def _shares(owner: _Owner, other: _Owner) -> bool:
    """Whether two processes are of one user, pod, container or Slurm job.

    Root's processes in a Slurm job, slurmstepd and sshd, are none of the job's.
    """
    if owner is None or other is None or owner[1:] != other[1:]:
        return False
    user, place, job = owner
    return user == other[0] or place != "" or (job != "" and "0" not in (user, other[0]))


def _stacks(known: _Known, until: float) -> list[ThreadStack]:
    if known.interpreter is None:
        memory = Memory(known.folder, until)
        known.interpreter = Interpreter(memory, read(f"{known.folder}/maps", _MOST_MAPPED) or "")
    interpreter = known.interpreter
    interpreter.memory.until = until
    threads = interpreter.threads()
    known.find([one.number for one in threads])
    found: dict[int, ThreadStack] = {}
    for one in threads:
        if stack := _stack(known.threads[one.number], interpreter, one):
            # One that is in a subinterpreter, which comes first, is in this call of another, too.
            found.setdefault(stack.tid or one.address, stack)
    return [*found.values()]


def _trouble(process: ProcessReader, started_ticks: int | None) -> str | None:
    """Why there is nothing to read of the process that started then."""
    stat = process.stat()
    if stat is None or stat.ended or stat.started_ticks != started_ticks:
        return "it has ended"
    return "it is stopped" if wait_of(stat.state, None) is Wait.STOPPED else None


def _stack(asked: Thread | None, interpreter: Interpreter, thread: Running) -> ThreadStack | None:
    """What a thread does; None if it is in no function, or calls and returns too fast."""
    found = None
    for _ in range(_TRIES):
        try:
            before = interpreter.place(thread)
            wait = asked.sample() if asked else Wait.UNKNOWN
            native = wait is Wait.RUN and interpreter.holds_lock(thread) is False
            frames = tuple(islice(interpreter.stack(thread), MOST_FRAMES))
            found = ThreadStack(asked.tid if asked else 0, wait, native, frames)
            if interpreter.place(thread) == before:
                break
        except UnreadableError:
            continue
    return found if found and found.frames else None


def _own_number(folder: str) -> int:
    """The number of a process or thread in its own PID namespace; 0 if it has ended."""
    found = _OWN_NUMBER.search(read(f"{folder}/status") or "")
    return int(found[1]) if found else 0
