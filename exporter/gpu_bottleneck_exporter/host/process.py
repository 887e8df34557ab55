"""Processes in /proc."""

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

MAX_HOST_PROCESSES = 16_384
"""Processes read, of the machine or below a root: half of the usual pid_max."""
Started = tuple[int, int | None]
"""Pid and start in clock ticks since boot; unique, unlike the pid."""
Children = tuple[list[int], bool]
"""Pids of a process's children, and whether these are all."""
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""Unit of times in /proc/PID/stat."""


class Stat(NamedTuple):
    """/proc/PID/stat; times of the whole thread group, with ended threads."""

    state: str
    parent: int
    started_ticks: int
    user_ns: int
    system_ns: int
    major_faults: int
    threads: int
    children_ns: int = 0
    """CPU time of reaped children and their descendants."""
    session: int = 0

    @property
    def ended(self) -> bool:
        """Whether all threads have ended; `state` is the first one's."""
        return wait_of(self.state, None) is Wait.GONE and self.threads <= 1

    @property
    def leaderless(self) -> bool:
        """Whether only the first thread has ended (pthread_exit in main)."""
        return wait_of(self.state, None) is Wait.GONE and self.threads > 1


class Io(NamedTuple):
    """/proc/PID/io."""

    read_bytes: int
    written_bytes: int
    read_chars: int
    """Bytes from files or pipes, page cache included, sockets excluded."""
    write_chars: int
    """Bytes to files or pipes, page cache included."""
    write_calls: int
    """Write calls on files and pipes, not sends on sockets."""


@none_if_malformed
def parse_stat(text: str | bytes | None) -> Stat:
    """Parse a stat file; None if invalid."""
    text = text.encode() if isinstance(text, str) else text or b""
    # From field 3 of proc_pid_stat(5) on: the command may contain spaces.
    fields = text[text.rindex(b")") + 2 :].split(None, 20)
    return Stat(
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        major_faults=int(fields[9]),
        user_ns=int(fields[11]) * TICK_NS,
        system_ns=int(fields[12]) * TICK_NS,
        children_ns=(int(fields[13]) + int(fields[14])) * TICK_NS,
        threads=int(fields[17]),
        started_ticks=int(fields[19]),
    )


@none_if_malformed
def comm_and_state(text: bytes | None) -> tuple[str, str]:
    """Command name and state letter in a stat file."""
    before, _, after = (text or b"").rpartition(b") ")
    comm = before[before.index(b"(") + 1 :]
    return comm.decode(errors="replace"), after[:1].decode()


class ThreadTimes(NamedTuple):
    """Times in /proc/PID/task/TID/stat."""

    system_ns: int
    disk_ns: int
    """Block I/O delay; 0 without kernel.task_delayacct."""


@none_if_malformed
def parse_thread_times(text: bytes | None) -> ThreadTimes:
    """Parse a thread's stat file; None if invalid."""
    _, _, after = (text or b"").rpartition(b") ")
    fields = after.split(None, 40)
    return ThreadTimes(system_ns=int(fields[12]) * TICK_NS, disk_ns=int(fields[39]) * TICK_NS)


@none_if_malformed
def parse_schedstat(text: bytes | None) -> tuple[int, int, int]:
    """Nanoseconds on a CPU and of run-queue delay; number of time slices."""
    cpu, queue, times = (text or b"").split()
    return int(cpu), int(queue), int(times)


def stat_of(proc: Path, pid: int) -> Stat | None:
    """/proc/PID/stat; None if the process has ended or does not answer."""
    return parse_stat(stat_text(proc, pid))


def stat_text(proc: Path, pid: int) -> str | None:
    """The text of /proc/PID/stat.

    In a helper thread: since Linux 6.18 it waits for an execve that closes descriptors, forever if
    a file system does not answer.
    """
    return proc_reads.call(pid, lambda: read(f"{proc}/{pid}/stat"))


def has_ended(proc: Path, pid: int) -> bool:
    """Whether process `pid` has ended; waits for no execve."""
    return not os.path.lexists(f"{proc}/{pid}")


def parent_of(proc: Path, pid: int) -> int:
    """Parent of a process, 0 if it has ended; waits for no execve."""
    match = re.search(r"^PPid:\t([0-9]{1,10})$", read(f"{proc}/{pid}/status") or "", re.MULTILINE)
    return int(match[1]) if match else 0


def processes(proc: Path) -> list[int]:
    """Up to `MAX_HOST_PROCESSES` pids, sorted."""
    return sorted(list_numbers(proc, MAX_HOST_PROCESSES))


def lineage(proc: Path, pid: int) -> Iterator[int]:
    """Process `pid` and its ancestors."""
    while pid > 0:
        yield pid
        pid = parent_of(proc, pid)


def ourselves(proc: Path) -> frozenset[int]:
    """The exporter and its ancestors, which are no feeders."""
    return frozenset(lineage(proc, os.getpid()))


def living_thread(proc: Path, pid: int) -> int:
    """The id of a living thread: `pid` unless its first thread has ended.

    An ended one (pthread_exit in main) shows no memory or descriptors.
    """

    def lives(tid: int) -> bool:
        status = read(f"{proc}/{tid}/status") or ""
        return re.search(r"^State:\t[^ZX]", status, re.MULTILINE) is not None

    if lives(pid):
        return pid
    return next(filter(lives, list_numbers(f"{proc}/{pid}/task", MAX_LISTED)), pid)


def is_exiting(proc: Path, pid: int) -> bool:
    """Whether process `pid` has freed its memory, and so its environment."""
    status = read(f"{proc}/{living_thread(proc, pid)}/status") or ""
    return "\nState:\t" in status and "\nVmSize:\t" not in status


def control_groups(proc: Path, pid: int) -> str | None:
    """The text of /proc/PID/cgroup; None if the process has ended.

    Under cgroup v1, an ended first thread is in the root of each hierarchy.
    """
    text = read(f"{proc}/{pid}/cgroup")
    nested = re.findall(r"^[1-9][0-9]*:[^:]*:/(.?)", text or "", re.MULTILINE)
    if nested and not any(nested):
        return read(f"{proc}/{living_thread(proc, pid)}/cgroup")
    return text


def network_namespace(proc: Path, pid: int) -> int | None:
    """Inode of net/dev, which identifies a network namespace; None if the process has ended.

    /proc/PID/ns/net would take the permission to ptrace.
    """
    try:
        return os.stat(f"{proc}/{pid}/net/dev").st_ino  # noqa: PTH116 - a third of the time
    except OSError:
        tid = living_thread(proc, pid)
        return None if tid == pid else network_namespace(proc, tid)


def user_id(proc: Path, pid: int) -> str:
    """The accountable user id of a process; empty if it has ended or does not answer.

    The real uid, or the creator of the outermost user namespace that a user created: rootless
    containers run under 65 536 other uids (subuid(5)), separate users without the permission to
    ptrace.
    """
    uid = real_uid(read(f"{proc}/{pid}/status") or "")
    with suppress(OSError):
        # In a helper thread, as an execve may lock it.
        path = f"{proc}/{pid}/ns/user"
        creator = proc_reads.call(pid, lambda: _creator_of_users(FileIO(path))) if uid else None
        return "" if creator is None else f"{creator or uid}"
    return uid


def _creator_of_users(namespace: FileIO) -> int:
    """Creator's uid of the outermost user namespace within the exporter's; 0 if that is root.

    Root's may be a kubelet's for a pod. Raises OSError.
    """
    with namespace:
        if _are_our_users(namespace):
            return 0
        # NS_GET_OWNER_UID and NS_GET_PARENT of ioctl_ns(2)
        uid = int.from_bytes(ioctl(namespace, 0xB704, bytes(4)), sys.byteorder)
        return _creator_of_users(FileIO(ioctl(namespace, 0xB702))) or uid


def _are_our_users(namespace: FileIO) -> bool:
    return os.fstat(namespace.fileno()).st_ino == Path("/proc/self/ns/user").stat().st_ino


def is_our_network(proc: Path, pid: int) -> bool:
    """Whether the exporter's user namespace owns the network namespace of process `pid`.

    If not, as after `unshare --user --net`, its addresses are a user's choice. False without the
    permission to ptrace; true without network namespaces.
    """

    def is_ours() -> bool:
        # NS_GET_USERNS of ioctl_ns(2)
        with FileIO(f"{proc}/{pid}/ns/net") as net, FileIO(ioctl(net, 0xB701)) as users:
            return _are_our_users(users)

    try:
        return proc_reads.call(pid, is_ours) or False
    except OSError as error:
        return isinstance(error, FileNotFoundError)


def monotonic_start_ns(started_ticks: int) -> int:
    """Monotonic start time of a process.

    By CLOCK_BOOTTIME, as lxcfs rewrites /proc/uptime, but not /proc/PID/stat.
    """
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ticks * TICK_NS
    return time.monotonic_ns() - max(age_ns, 0)


def real_uid(status: str) -> str:
    """The real user id in a /proc/PID/status file; empty if missing."""
    match = re.search(r"^Uid:\s*([0-9]{1,10})\b", status, re.MULTILINE)
    return match[1] if match else ""


def allowed_cpus(status: str) -> frozenset[int]:
    """The CPUs of Cpus_allowed_list in a /proc/PID/status file; empty if missing."""
    match = re.search(r"^Cpus_allowed_list:\t(\S+)$", status, re.MULTILINE)
    ranges = [span.partition("-") for span in match[1].split(",")] if match else []
    return frozenset(
        cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1)
    )


def command_line(proc: Path, pid: int) -> FileText:
    """The arguments, each ended by a NUL; empty if unreadable."""
    return _from_memory(proc, pid, "cmdline", MAX_TEXT_BYTES)


def environment(proc: Path, pid: int, limit: int) -> FileText:
    """The first `limit` bytes of variables, each ended by a NUL; empty if unreadable.

    Takes the same user or the permission to ptrace.
    """
    part = _from_memory(proc, pid, "environ", limit)
    return part if part.whole else FileText(part.text[: part.text.rfind("\0") + 1], whole=False)


def _from_memory(proc: Path, pid: int, name: str, limit: int) -> FileText:
    # In a helper thread: process memory may block.
    part = memory_reads.call(pid, lambda: read_bounded(f"{proc}/{pid}/{name}", limit)) or FileText(
        "", whole=True
    )
    tid = pid if part.text else living_thread(proc, pid)
    return part if tid == pid else _from_memory(proc, tid, name, limit)


class ProcessReader:
    """Reads a process through open descriptors, to detect a reused pid."""

    def __init__(self, proc: Path, pid: int) -> None:
        """`proc`: the host's procfs."""
        folder = f"{proc}/{pid}"  # not a Path, to save memory
        self.pid = pid
        self._folder = folder
        self._stat = KeptFile(f"{folder}/stat")
        self._schedstat = KeptFile(f"{folder}/schedstat")
        self._channel = KeptFile(f"{folder}/wchan")
        self._io = KeptFile(f"{folder}/io")
        self._gone = False
        self._text: bytes | None = None
        self.driver_lock = ""
        """The last wait channel in the GPU's driver."""
        self.last: Stat | None = None
        self.started_ticks: int | None = None
        first = self.stat()
        self.started_ticks = first.started_ticks if first else None

    def close(self) -> None:
        """Close all descriptors."""
        for file in (self._stat, self._schedstat, self._channel, self._io):
            file.close()

    def stat(self) -> Stat | None:
        """/proc/PID/stat, the same object until it changes; None if the process has ended."""
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
        text = None if self._gone else file.read()
        # A reopened descriptor may show another process.
        return None if text and file.reopened and self.stat() is None else text

    def wait(self) -> Wait:
        """The state of the first thread.

        This runs ten times a second for every feeder: the wait channel usually suffices.
        """
        channel = self._read(self._channel)
        asleep = asleep_in(channel) if channel else None
        if asleep:
            return asleep
        named_state = comm_and_state(self._read(self._stat))
        if named_state is None:
            self._gone = True
            return Wait.GONE
        _, letter = named_state
        # It may have fallen asleep meanwhile.
        channel = self._read(self._channel) if letter in f"S{UNINTERRUPTIBLE_STATES}" else None
        wait = wait_of(letter, channel, self._call)
        if wait is Wait.DRIVER:
            self.driver_lock = (channel or b"").decode(errors="replace")
        if wait is Wait.GONE and (stat := self.stat()) and stat.leaderless:
            return Wait.LOCK  # as in pthread_join: the other threads count
        return wait

    def _call(self) -> bytes | None:
        """The system call of the first thread; in a helper thread."""
        text = proc_reads.call(self.pid, lambda: read(f"{self._folder}/syscall"))
        return text.encode() if text else None

    @property
    def is_frozen(self) -> bool:
        """Whether its first thread is frozen in uninterruptible sleep."""
        named_state = comm_and_state(self._read(self._stat))
        channel = self._read(self._channel) or b""
        return (
            named_state is not None
            and named_state[1] in UNINTERRUPTIBLE_STATES
            and asleep_in(channel) is not None
        )

    def leader_ns(self) -> tuple[int, int] | None:
        """Nanoseconds on a CPU and of run-queue delay of the first thread."""
        times = parse_schedstat(self._read(self._schedstat))
        return times and times[:2]

    @none_if_malformed
    def io(self) -> Io | None:
        """/proc/PID/io; None without permission."""
        text = self._read(self._io) or b""
        read, written = _number_after(b"read_bytes: ", text), _number_after(b"write_bytes: ", text)
        chars = _number_after(b"rchar: ", text), _number_after(b"wchar: ", text)
        return Io(read, written, *chars, _number_after(b"syscw: ", text))

    def command(self) -> str:
        """The command name, which the process may change."""
        return (read(f"{self._folder}/comm") or "").strip()


@none_if_malformed
def calls_in(io: bytes | None, name: str) -> int:
    """Number of calls `syscr` or `syscw` in a /proc/PID/io file; None if missing."""
    return _number_after(f"{name}: ".encode(), io or b"")


def _number_after(name: bytes, text: bytes) -> int:
    """The first match: `write_bytes: ` also ends `cancelled_write_bytes: `."""
    return int(text.partition(name)[2].partition(b"\n")[0])


class Trees(NamedTuple):
    """Descendants by root, and the roots with incomplete ones (`cut`)."""

    of: dict[int, set[int]]
    cut: set[int]


def trees(
    proc: Path,
    roots: Iterable[int],
    stop_at: frozenset[int],
    cached: Callable[[int], list[int] | None] = lambda _: None,
) -> Trees:
    """The descendants of each root, without those in `stop_at` and below.

    Reads /proc/PID/task/TID/children (8 µs a thread) unless `cached`, or scans /proc once without
    that file (CONFIG_PROC_CHILDREN).
    """
    roots = list(roots)
    lists = (read(f"{proc}/{root}/task/{root}/children") for root in roots)
    if roots and all(text is None for text in lists):
        cached = _scan(proc).__getitem__

    def children(pid: int) -> Children:
        pids = cached(pid)
        return _children(proc, pid) if pids is None else (pids, True)

    descendants = {root: _follow(children, root, stop_at) for root in roots}
    cut = {root for root, (_, whole) in descendants.items() if not whole}
    return Trees({root: pids for root, (pids, _) in descendants.items()}, cut)


def _children(proc: Path, pid: int) -> Children:
    folder = f"{proc}/{pid}/task"
    try:
        tasks, whole = list_names(folder, MAX_LISTED)
    except OSError:
        return [], True
    # Each thread lists its own children.
    parts = [read_bounded(f"{folder}/{task}/children", MAX_TABLE_BYTES) for task in tasks]
    pids = [child for part in parts if part for child in parse_numbers(part.text) or ()]
    return pids, whole and all(part.whole for part in parts if part)


def _scan(proc: Path) -> defaultdict[int, list[int]]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid in processes(proc):
        children[parent_of(proc, pid)].append(pid)
    return children


def _follow(
    children: Callable[[int], Children], root: int, stop_at: frozenset[int]
) -> tuple[set[int], bool]:
    descendants: set[int] = set()
    pending = [root]
    whole = True
    while pending and len(descendants) < MAX_HOST_PROCESSES:
        pids, complete = children(pending.pop())
        whole = whole and complete
        for child in pids:
            if child not in descendants and child not in stop_at:
                descendants.add(child)
                pending.append(child)
    return descendants, whole and not pending
