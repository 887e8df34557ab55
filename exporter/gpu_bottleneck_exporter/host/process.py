"""One process as /proc tells it: counters, state, what it sleeps on."""

from __future__ import annotations

import os
import re
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import aside
from gpu_bottleneck_exporter.host.files import KeptFile, Part, read, read_part
from gpu_bottleneck_exporter.host.waits import Wait, asleep_in, wait_of

_UID = re.compile(r"^Uid:\s*([0-9]{1,10})\b", re.MULTILINE)
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

_STATE, _PPID, _SID, _MAJFLT, _UTIME, _STIME, _CUTIME, _CSTIME, _THREADS, _START = (
    0,
    1,
    3,
    9,
    11,
    12,
    13,
    14,
    17,
    19,
)
"""Fields of /proc/PID/stat after the command, which may hold spaces and parentheses."""


class State(Enum):
    """What a thread is doing at one moment."""

    RUN = "run"
    """Running or runnable; which of the two, the scheduler's counters tell."""
    DISK = "disk"
    """Uninterruptible: block devices, NFS, FUSE, page faults."""
    NETWORK = "network"
    """Asleep in a socket."""
    QUEUE = "queue"
    """Asleep in a pipe, a futex or a semaphore: waiting for another thread or process."""
    REQUESTS = "requests"
    """A server without a request in flight; only a closer look tells."""
    SLEEP = "sleep"
    """Asleep in anything else: a timer, a poll, a child's end."""
    UNKNOWN = "unknown"
    """Asleep, and the kernel does not tell us in what."""
    GONE = "gone"

    __hash__ = object.__hash__
    """Enum's own hashes the name in Python, at each count of a state."""


_LAST_FIELD = _START + 1
"""Nothing behind it is wanted: half the line need not be split."""
STATE_OF = {
    Wait.RUN: State.RUN,
    Wait.DISK: State.DISK,
    Wait.SOCKET: State.NETWORK,
    Wait.LOCK: State.QUEUE,
    Wait.PIPE: State.QUEUE,
    Wait.UNKNOWN: State.UNKNOWN,
    Wait.GONE: State.GONE,
    **dict.fromkeys(
        (Wait.POLL, Wait.ACCEPT, Wait.TIMER, Wait.CHILD, Wait.STOPPED, Wait.OTHER), State.SLEEP
    ),
}
"""What a thread's wait says by itself, without a closer look."""


class Stat(NamedTuple):
    """/proc/PID/stat: times in ns, of the whole thread group, dead threads included."""

    state: str
    parent: int
    started_ticks: int
    """Start since boot, in clock ticks: with the pid it names a process for ever."""
    user_ns: int
    system_ns: int
    major_faults: int
    threads: int
    children_ns: int = 0
    """CPU time of children that ended and were waited for, and of theirs."""
    session: int = 0


def parse_stat(text: bytes) -> Stat:
    """Raises ValueError on anything that is no stat file."""
    fields = text[text.rindex(b")") + 2 :].split(None, _LAST_FIELD)
    return Stat(
        fields[_STATE].decode(),
        int(fields[_PPID]),
        int(fields[_START]),
        int(fields[_UTIME]) * TICK_NS,
        int(fields[_STIME]) * TICK_NS,
        int(fields[_MAJFLT]),
        int(fields[_THREADS]),
        (int(fields[_CUTIME]) + int(fields[_CSTIME])) * TICK_NS,
        int(fields[_SID]),
    )


def classify(state: str, channel: str | None) -> State:
    """A thread's state letter and its wait channel, as one of `State`."""
    return STATE_OF[wait_of(state, channel)]


def network_namespace(proc: Path, pid: int) -> int | None:
    """What tells the network namespace of a process from others: each has a net/dev of its own.

    /proc/PID/ns/net would need the right to ptrace.
    """
    try:
        return (proc / str(pid) / "net/dev").stat().st_ino
    except OSError:
        return None


def user_id(proc: Path, pid: int) -> str:
    """Whose a process is, as a number; empty where it is gone.

    Who owns its folder in /proc is asked last: a process that wants no core dumps is root's there.
    """
    uid = real_uid(read(proc / str(pid) / "status") or "")
    if uid is not None:
        return str(uid)
    try:
        return str((proc / str(pid)).stat().st_uid)
    except OSError:
        return ""


def real_uid(status: str) -> int | None:
    """The real user id in `status`, a /proc/PID/status file."""
    found = _UID.search(status)
    return int(found[1]) if found else None


def environment(proc: Path, pid: int) -> str:
    """The variables of a process, each ended by a NUL; of very many the first ones.

    Takes the same user or the right to ptrace; empty without.
    """
    path = proc / str(pid) / "environ"
    part = aside.call(pid, lambda: read_part(path))
    if part is None:
        return ""
    return part.text if part.whole else part.text[: part.text.rfind("\0") + 1]


def allowed_cpus(status: str) -> frozenset[int]:
    """The CPUs of Cpus_allowed_list in a /proc/PID/status file; empty where it is not told."""
    for line in status.splitlines():
        name, _, cpus = line.partition(":")
        if name == "Cpus_allowed_list":
            ranges = [span.partition("-") for span in cpus.strip().split(",") if span]
            return frozenset(
                cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1)
            )
    return frozenset()


def command_line(proc: Path, pid: int) -> Part:
    """The words of a process, each ended by a NUL; empty where they cannot be read."""
    path = proc / str(pid) / "cmdline"
    return aside.call(pid, lambda: read_part(path)) or Part("", whole=True)


class ProcessReader:
    """Process `pid`, through kept descriptors; a reused pid reads as gone."""

    def __init__(self, proc: Path, pid: int) -> None:
        """`proc`: the host's procfs."""
        folder = f"{proc}/{pid}"  # no Path: there may be thousands of readers
        self.pid = pid
        self._folder = folder
        self._stat = KeptFile(f"{folder}/stat")
        self._schedstat = KeptFile(f"{folder}/schedstat")
        self._channel = KeptFile(f"{folder}/wchan")
        self._io = KeptFile(f"{folder}/io")
        self._gone = False
        self._text: bytes | None = None
        self._parsed: Stat | None = None
        self.started_ticks: int | None = None
        first = self.stat()
        self.started_ticks = first.started_ticks if first else None

    def close(self) -> None:
        """Give the descriptors back."""
        for file in (self._stat, self._schedstat, self._channel, self._io):
            file.close()

    @property
    def threads(self) -> int | None:
        """How many it had when `stat` was last read."""
        return self._parsed.threads if self._parsed else None

    @property
    def ended(self) -> bool:
        """Whether it was a zombie when `stat` was last read."""
        return self._parsed is not None and wait_of(self._parsed.state, None) is Wait.GONE

    def stat(self) -> Stat | None:
        """/proc/PID/stat, None when the process is gone; the same object until it changes."""
        text = None if self._gone else self._stat.read()
        if text and text == self._text:
            return self._parsed
        stat = parse_stat(text) if text else None
        # A kept descriptor fails once its process is gone; one opened later shows a successor.
        if stat is None or self.started_ticks not in (None, stat.started_ticks):
            self._gone = True
            return None
        self._text, self._parsed = text, stat
        return stat

    def state(self) -> State:
        """What the first thread does now, as far as itself can tell."""
        return STATE_OF[self.wait()]

    def wait(self) -> Wait:
        """What the first thread does now, or sleeps in.

        The channel first: of a thread that sleeps it mostly tells enough, and this is
        asked up to ten times a second for every process that feeds a GPU.
        """
        channel = None if self._gone else self._channel.read()
        asleep = asleep_in(channel) if channel else None
        if asleep:
            return asleep
        letter = self._letter()
        if letter is None:
            return Wait.GONE
        if letter != "S":
            return wait_of(letter, None)
        channel = self._channel.read()  # it may have fallen asleep between the two
        return wait_of("S", channel.decode() if channel else None)

    def _letter(self) -> str | None:
        text = None if self._gone else self._stat.read()
        if not text:
            self._gone = True
            return None
        after = text.rindex(b")") + 2
        return text[after : after + 1].decode()

    def leader_ns(self) -> tuple[int, int] | None:
        """Ns on CPU and ns runnable but waiting, of the leader thread (schedstat)."""
        text = None if self._gone else self._schedstat.read()
        if not text:
            return None
        on_cpu, waiting, *_ = text.split()
        return int(on_cpu), int(waiting)

    def io_bytes(self) -> tuple[int, int] | None:
        """Bytes read from and written to storage (/proc/PID/io), None without permission."""
        text = None if self._gone else self._io.read()
        if not text:
            return None
        return _number_after(b"read_bytes: ", text), _number_after(b"write_bytes: ", text)

    def command(self) -> str:
        """The name the process gave itself (15 characters)."""
        return (read(f"{self._folder}/comm") or "").strip()


def _number_after(name: bytes, text: bytes) -> int:
    """Where `name` ends another one too, the first is meant."""
    return int(text.partition(name)[2].partition(b"\n")[0])
