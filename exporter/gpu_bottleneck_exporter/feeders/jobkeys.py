"""What tells that processes which hold different GPUs are of one job."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import command_line, environment, parse_stat, user_id
from gpu_bottleneck_exporter.workload.groups import Groups
from gpu_bottleneck_exporter.workload.rendezvous import rendezvous

GROUP = "group"
_SPAWNED = ("from multiprocessing.spawn import ", "from multiprocessing.forkserver import ")
Key = tuple[str, ...]


def job_keys(proc: Path, pid: int, groups: Groups) -> set[Key]:
    """Equal for processes of one job: the process itself, its group, those started beside it.

    The group is where its ranks meet, which only the same user or one with CAP_SYS_PTRACE may
    read. Siblings are processes that Python's multiprocessing started for one parent.
    """
    keys: set[Key] = {("process", str(pid))}
    place = rendezvous(proc, pid, environment(proc, pid), groups.unit(pid))
    siblings = _siblings(proc, pid)
    return keys | ({(GROUP, *place)} if place else set()) | ({siblings} if siblings else set())


def _siblings(proc: Path, pid: int) -> Key | None:
    command, stat = command_line(proc, pid), parse_stat(read(proc / str(pid) / "stat"))
    if not command.text or not stat:
        return None
    parent = stat.parent
    # Of two that are cut it is not known whether they are the same.
    forked = command.whole and command == command_line(proc, parent)
    spawned = any(words in command.text for words in _SPAWNED)
    return ("siblings", str(parent), user_id(proc, pid)) if forked or spawned else None
