"""Processes as seen in /proc: counters, identity, what a first thread sleeps in, descendants."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fcntl import ioctl
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import memory_reads, proc_reads
from gpu_bottleneck_exporter.host.files import (
    MAX_LISTED,
    MAX_TABLE_BYTES,
    MAX_TEXT_BYTES,
    FileText,
    KeptFile,
    list_names,
    list_numbers,
    none_if_malformed,
    parse_numbers,
    read,
    read_bounded,
)
from gpu_bottleneck_exporter.host.waits import UNINTERRUPTIBLE_STATES, Wait, asleep_in, wait_of

_UID = re.compile(r"^Uid:\s*([0-9]{1,10})\b", re.MULTILINE)
_LIVES = re.compile(r"^State:\t[^ZX]", re.MULTILINE)
_V1_GROUPS = re.compile(r"^[1-9][0-9]*:[^:]*:/(.?)", re.MULTILINE)
"""The hierarchies of cgroup v1 in /proc/PID/cgroup; empty: in the root of the hierarchy."""
_PARENT = re.compile(r"^PPid:\t([0-9]{1,10})$", re.MULTILINE)
_CPUS = re.compile(r"^Cpus_allowed_list:\t(\S+)$", re.MULTILINE)
MOST_PROCESSES = 16_384
"""Half of what a machine allows by default (kernel.pid_max): of the machine, or below one root;
more are not looked at."""
Started = tuple[int, int | None]
"""A process: its pid, and its start in clock ticks since boot, as pids are reused."""
Children = tuple[list[int], bool]
"""Pids of a process's children, and whether these are all."""
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""The clock's tick, in which /proc/PID/stat counts."""

_GET_USERS, _GET_PARENT, _GET_OWNER_UID = 0xB701, 0xB702, 0xB704
"""linux/nsfs.h: Python has no names for them (ioctl_ns(2))."""

_STATE, _PPID, _SID, _MAJFLT = 0, 1, 3, 9
_UTIME, _STIME, _CUTIME, _CSTIME, _THREADS, _START = 11, 12, 13, 14, 17, 19
"""Fields of /proc/PID/stat after the command, which may contain spaces and parentheses."""
_LAST_FIELD = _START + 1
"""The last field in use: the second half of the line need not be split."""
_BLKIO = 39
"""The same of a thread."""


class Stat(NamedTuple):
    """/proc/PID/stat: times in ns of the whole thread group, ended threads included."""

    state: str
    parent: int
    started_ticks: int
    """Start time in clock ticks since boot; unlike the pid alone, pid and start are unique."""
    user_ns: int
    system_ns: int
    major_faults: int
    threads: int
    children_ns: int = 0
    """CPU time of children that ended and were waited for, including their own children."""
    session: int = 0

    @property
    def ended(self) -> bool:
        """Whether all its threads have ended: `state` is only that of the first."""
        return wait_of(self.state, None) is Wait.GONE and self.threads <= 1

    @property
    def leaderless(self) -> bool:
        """Whether its first thread has ended (pthread_exit in main) and others live."""
        return wait_of(self.state, None) is Wait.GONE and self.threads > 1


class Io(NamedTuple):
    """/proc/PID/io."""

    read_bytes: int
    """From storage."""
    written_bytes: int
    """To storage."""
    read_chars: int
    """Read in any way, from files or pipes, from storage or the page cache; not from sockets."""
    write_chars: int
    """Written to files or pipes, to storage or the page cache."""
    write_calls: int
    """Calls of write and its kin, on files and pipes; sends on sockets do not count."""


@none_if_malformed
def parse_stat(text: str | bytes | None) -> Stat:
    """Parse the text of a stat file; None if it is not one."""
    text = text.encode() if isinstance(text, str) else text or b""
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


@none_if_malformed
def comm_and_state(text: bytes | None) -> tuple[str, str]:
    """The name and the state letter in a stat file; the name may contain parentheses itself."""
    before, _, after = (text or b"").rpartition(b") ")
    comm = before[before.index(b"(") + 1 :]
    return comm.decode(errors="replace"), after[:1].decode()


class ThreadTimes(NamedTuple):
    """Times in /proc/PID/task/TID/stat."""

    system_ns: int
    """CPU time in the kernel."""
    disk_ns: int
    """Delay by block I/O; 0 unless the kernel counts it (kernel.task_delayacct)."""


@none_if_malformed
def parse_thread_times(text: bytes | None) -> ThreadTimes:
    """Parse the text of a thread's stat file; None if it is not one."""
    _, _, after = (text or b"").rpartition(b") ")
    fields = after.split(None, _BLKIO + 1)
    return ThreadTimes(int(fields[_STIME]) * TICK_NS, int(fields[_BLKIO]) * TICK_NS)


@none_if_malformed
def parse_schedstat(text: bytes | None) -> tuple[int, int, int]:
    """Nanoseconds on a CPU and of run queue delay, and how often it ran."""
    cpu, queue, times = (text or b"").split()
    return int(cpu), int(queue), int(times)


def stat_of(proc: Path, pid: int) -> Stat | None:
    """/proc/PID/stat, None if the process has ended or does not answer: see `has_ended`."""
    return parse_stat(stat_text(proc, pid))


def stat_text(proc: Path, pid: int) -> str | None:
    """The text of /proc/PID/stat.

    Aside, as since Linux 6.18 it waits for a lock (exec_update_lock) that an execve holds while it
    closes descriptors, which takes for ever on a file system that does not answer.
    """
    return proc_reads.call(pid, lambda: read(f"{proc}/{pid}/stat"))


def has_ended(proc: Path, pid: int) -> bool:
    """Whether there is no process `pid` any more, by its folder, which waits for no execve."""
    return not os.path.lexists(f"{proc}/{pid}")


def parent_of(proc: Path, pid: int) -> int:
    """Parent of a process, 0 if it has ended; by its status, which waits for no execve."""
    found = _PARENT.search(read(f"{proc}/{pid}/status") or "")
    return int(found[1]) if found else 0


def processes(proc: Path) -> list[int]:
    """Many of the processes of the machine, by pid."""
    return sorted(list_numbers(proc, MOST_PROCESSES))


def lineage(proc: Path, pid: int) -> Iterator[int]:
    """Process `pid` and its ancestors, the nearest first."""
    while pid > 0:
        yield pid
        pid = parent_of(proc, pid)


def ourselves(proc: Path) -> frozenset[int]:
    """We and our ancestors: we feed no GPU, whatever pipes one shell gave to us and to a job."""
    return frozenset(lineage(proc, os.getpid()))


def living_thread(proc: Path, pid: int) -> int:
    """The id of a living thread of process `pid`: its first one's, `pid`, unless that has ended.

    A first thread that has ended (pthread_exit in main) shows no memory, descriptors or mounts;
    /proc/TID shows those of the process for each living thread.
    """

    def lives(tid: int) -> bool:
        return _LIVES.search(read(f"{proc}/{tid}/status") or "") is not None

    if lives(pid):
        return pid
    return next(filter(lives, list_numbers(f"{proc}/{pid}/task", MAX_LISTED)), pid)


def control_groups(proc: Path, pid: int) -> str | None:
    """The text of /proc/PID/cgroup, None if the process has ended.

    Under cgroup v1 a first thread that has ended is in the root of each hierarchy; the control
    groups of the process are those of a living thread.
    """
    text = read(f"{proc}/{pid}/cgroup")
    nested = _V1_GROUPS.findall(text or "")
    if nested and not any(nested):
        return read(f"{proc}/{living_thread(proc, pid)}/cgroup")
    return text


def network_namespace(proc: Path, pid: int) -> int | None:
    """A number that identifies the network namespace of a process: the inode of its net/dev.

    /proc/PID/ns/net would take the permission to ptrace. None if the process has ended.
    """
    try:
        return os.stat(f"{proc}/{pid}/net/dev").st_ino  # noqa: PTH116 - a third of the time
    except OSError:
        tid = living_thread(proc, pid)
        return None if tid == pid else network_namespace(proc, tid)


def user_id(proc: Path, pid: int) -> str:
    """The user id that is accountable for a process, as text; empty if it has ended.

    It is the real one. In user namespaces that users created, it is the creator of the outermost of
    these: containers without root and fakeroot run under 65 536 other uids of their user
    (subuid(5)). That takes the permission to ptrace; without it, each of these is a user. Empty
    too while the namespace does not answer.
    """
    uid = real_uid(read(f"{proc}/{pid}/status") or "")
    with suppress(OSError):
        # Aside, for the lock of an execve.
        path = f"{proc}/{pid}/ns/user"
        creator = proc_reads.call(pid, lambda: _creator_of_users(FileIO(path))) if uid else None
        return "" if creator is None else f"{creator or uid}"
    return uid


def _creator_of_users(namespace: FileIO) -> int:
    """The uid that created a user namespace, or the outermost one around it, within ours.

    0 in ours, and where root did, as a kubelet does, which gives uids of its own to each pod.
    Raises OSError.
    """
    with namespace:
        if _are_our_users(namespace):
            return 0
        uid = int.from_bytes(ioctl(namespace, _GET_OWNER_UID, bytes(4)), sys.byteorder)
        return _creator_of_users(FileIO(ioctl(namespace, _GET_PARENT))) or uid


def _are_our_users(namespace: FileIO) -> bool:
    return os.fstat(namespace.fileno()).st_ino == Path("/proc/self/ns/user").stat().st_ino


def is_our_network(proc: Path, pid: int) -> bool:
    """Whether our user namespace owns the network namespace of process `pid`.

    If so, root or a container runtime gave it its addresses. In one that a user created with
    `unshare --user --net`, that user gives it any address, also those of others. False without the
    permission to ptrace; true where the kernel has no network namespaces.
    """

    def is_ours() -> bool:
        with FileIO(f"{proc}/{pid}/ns/net") as net, FileIO(ioctl(net, _GET_USERS)) as users:
            return _are_our_users(users)

    try:
        return proc_reads.call(pid, is_ours) or False
    except OSError as error:
        return isinstance(error, FileNotFoundError)


def monotonic_start_ns(started_ticks: int) -> int:
    """The start of a process in the monotonic clock, from its start in ticks since boot.

    By the clock that the kernel takes for it: in a container of LXC, lxcfs makes /proc/uptime the
    time since that container began, but not the starts in /proc/PID/stat.
    """
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ticks * TICK_NS
    return time.monotonic_ns() - max(age_ns, 0)


def real_uid(status: str) -> str:
    """The real user id in `status`, a /proc/PID/status file; empty if missing."""
    found = _UID.search(status)
    return found[1] if found else ""


def allowed_cpus(status: str) -> frozenset[int]:
    """The CPUs of Cpus_allowed_list in `status`, a /proc/PID/status file; empty if missing."""
    found = _CPUS.search(status)
    ranges = [span.partition("-") for span in found[1].split(",")] if found else []
    return frozenset(
        cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1)
    )


def command_line(proc: Path, pid: int) -> FileText:
    """The arguments of a process, each ended by a NUL; empty if they cannot be read."""
    return _from_memory(proc, pid, "cmdline", MAX_TEXT_BYTES)


def environment(proc: Path, pid: int, most: int) -> FileText:
    """The first `most` bytes of a process's variables, each ended by a NUL.

    Takes the same user or the permission to ptrace; empty without either.
    """
    part = _from_memory(proc, pid, "environ", most)
    return part if part.whole else FileText(part.text[: part.text.rfind("\0") + 1], whole=False)


def _from_memory(proc: Path, pid: int, name: str, most: int) -> FileText:
    """Aside, as these files are in the memory of the process."""
    part = memory_reads.call(pid, lambda: read_bounded(f"{proc}/{pid}/{name}", most)) or FileText(
        "", whole=True
    )
    tid = pid if part.text else living_thread(proc, pid)
    return part if tid == pid else _from_memory(proc, tid, name, most)


class ProcessReader:
    """Process `pid`, read through descriptors that stay open; a reused pid counts as ended."""

    def __init__(self, proc: Path, pid: int) -> None:
        """`proc`: the host's procfs."""
        folder = f"{proc}/{pid}"  # not a Path, to save memory: there may be thousands of readers
        self.pid = pid
        self._folder = folder
        self._stat = KeptFile(f"{folder}/stat")
        self._schedstat = KeptFile(f"{folder}/schedstat")
        self._channel = KeptFile(f"{folder}/wchan")
        self._io = KeptFile(f"{folder}/io")
        self._gone = False
        self._text: bytes | None = None
        self.driver_lock = ""
        """The wait channel in which it last waited for the GPU's driver."""
        self.last: Stat | None = None
        """As of the last `stat` that was read."""
        self.started_ticks: int | None = None
        first = self.stat()
        self.started_ticks = first.started_ticks if first else None

    def close(self) -> None:
        """Close the descriptors."""
        for file in (self._stat, self._schedstat, self._channel, self._io):
            file.close()

    def stat(self) -> Stat | None:
        """/proc/PID/stat, None if the process has ended; the same object until it changes."""
        text = None if self._gone else self._stat.read()
        if text and text == self._text:
            return self.last
        stat = parse_stat(text)
        if stat is None or self.started_ticks not in (None, stat.started_ticks):
            self._gone = True
            return None
        self._text, self.last = text, stat
        return stat

    def _read(self, file: KeptFile) -> bytes | None:
        """The content of one of its files; None if it cannot be read, or the process has ended."""
        text = None if self._gone else file.read()
        # An open descriptor fails once its process has ended, but one that had to be reopened
        # may show another process with the same pid.
        return None if text and file.reopened and self.stat() is None else text

    def wait(self) -> Wait:
        """What the first thread does now, or sleeps in.

        Reads the wait channel first: for a sleeping thread it is usually enough, and this runs
        up to ten times a second for every feeder.
        """
        channel = self._read(self._channel)
        asleep = asleep_in(channel) if channel else None
        if asleep:
            return asleep
        found = comm_and_state(self._read(self._stat))
        if found is None:
            self._gone = True
            return Wait.GONE
        _, letter = found
        # Again: it may have fallen asleep between the two reads.
        channel = self._read(self._channel) if letter in f"S{UNINTERRUPTIBLE_STATES}" else None
        wait = wait_of(letter, channel, self._call)
        if wait is Wait.DRIVER:
            self.driver_lock = (channel or b"").decode(errors="replace")
        if wait is Wait.GONE and (stat := self.stat()) and stat.leaderless:
            return Wait.LOCK  # as in pthread_join: the process does what its other threads do
        return wait

    def _call(self) -> bytes | None:
        """The system call of the first thread; aside, for the locks of an execve."""
        text = proc_reads.call(self.pid, lambda: read(f"{self._folder}/syscall"))
        return text.encode() if text else None

    @property
    def is_frozen(self) -> bool:
        """Whether its first thread sleeps uninterruptibly where no thread does unless frozen."""
        found = comm_and_state(self._read(self._stat))
        channel = self._read(self._channel) or b""
        return (
            found is not None
            and found[1] in UNINTERRUPTIBLE_STATES
            and asleep_in(channel) is not None
        )

    def leader_ns(self) -> tuple[int, int] | None:
        """Nanoseconds on a CPU and of run queue delay, of the first thread (schedstat)."""
        found = parse_schedstat(self._read(self._schedstat))
        return found and found[:2]

    @none_if_malformed
    def io(self) -> Io | None:
        """/proc/PID/io; None without permission."""
        text = self._read(self._io) or b""
        read, written = _number_after(b"read_bytes: ", text), _number_after(b"write_bytes: ", text)
        chars = _number_after(b"rchar: ", text), _number_after(b"wchar: ", text)
        return Io(read, written, *chars, _number_after(b"syscw: ", text))

    def command(self) -> str:
        """The name of the process (comm): at most 15 characters, which it may change."""
        return (read(f"{self._folder}/comm") or "").strip()


@none_if_malformed
def calls_in(io: bytes | None, name: str) -> int:
    """The count of calls `name`, `syscr` or `syscw`, in a /proc/PID/io file; None without it."""
    return _number_after(f"{name}: ".encode(), io or b"")


def _number_after(name: bytes, text: bytes) -> int:
    """The number after the first `name`: `write_bytes: ` also ends `cancelled_write_bytes: `."""
    return int(text.partition(name)[2].partition(b"\n")[0])


class Trees(NamedTuple):
    """Descendants by root, and the roots whose descendants are incomplete (`cut`)."""

    of: dict[int, set[int]]
    cut: set[int]


def trees(
    proc: Path,
    roots: Iterable[int],
    stop_at: frozenset[int],
    known: Callable[[int], list[int] | None] = lambda _: None,
) -> Trees:
    """The descendants of each root, without those in `stop_at` and their descendants.

    Walks /proc/PID/task/TID/children (8 µs a thread) for processes whose children are not `known`.
    On kernels without that file, scans all of /proc once.
    """
    roots = list(roots)
    # The file needs CONFIG_PROC_CHILDREN.
    lists = (read(f"{proc}/{root}/task/{root}/children") for root in roots)
    if roots and all(one is None for one in lists):
        known = _scan(proc).__getitem__

    def children(pid: int) -> Children:
        found = known(pid)
        return _children(proc, pid) if found is None else (found, True)

    found = {root: _follow(children, root, stop_at) for root in roots}
    cut = {root for root, (_, whole) in found.items() if not whole}
    return Trees({root: pids for root, (pids, _) in found.items()}, cut)


def _children(proc: Path, pid: int) -> Children:
    folder = f"{proc}/{pid}/task"
    try:
        tasks, whole = list_names(folder, MAX_LISTED)
    except OSError:
        return [], True
    # Each thread lists only the children that it started itself.
    parts = [read_bounded(f"{folder}/{task}/children", MAX_TABLE_BYTES) for task in tasks]
    found = [child for part in parts if part for child in parse_numbers(part.text) or ()]
    return found, whole and all(part.whole for part in parts if part)


def _scan(proc: Path) -> defaultdict[int, list[int]]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid in processes(proc):
        children[parent_of(proc, pid)].append(pid)
    return children


def _follow(
    children: Callable[[int], Children], root: int, stop_at: frozenset[int]
) -> tuple[set[int], bool]:
    found: set[int] = set()
    pending = [root]
    whole = True
    while pending and len(found) < MOST_PROCESSES:
        pids, all_of_them = children(pending.pop())
        whole = whole and all_of_them
        for child in pids:
            if child not in found and child not in stop_at:
                found.add(child)
                pending.append(child)
    return found, whole and not pending
