"""Whose the holders of a GPU are, and where: what comes with a process and hardly ever changes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.feeders.programs import runs_notebook
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import (
    command_line,
    environment,
    network_namespace,
    parse_stat,
    user_id,
)
from gpu_bottleneck_exporter.workload.owners import Groups, rendezvous

GROUP = "group"
_SPAWNED = ("from multiprocessing.spawn import ", "from multiprocessing.forkserver import ")
Key = tuple[str, ...]


class MainFacts(NamedTuple):
    """Of all holders of one GPU."""

    jobs: frozenset[tuple[str, ...]] = frozenset()
    """What they have in common with those of other GPUs of the same job."""
    users: frozenset[str] = frozenset()
    """By number."""
    networks: frozenset[int] = frozenset()
    """Their network namespaces."""
    command: str = ""
    """The command line of one of them, as far as it is read."""
    notebook: bool = False

    @property
    def has_rank_variables(self) -> bool:
        """Whether one of them was started as one of several ranks."""
        return any(key[0] == GROUP for key in self.jobs)


def facts_of(proc: Path, pids: Collection[int], units: Groups) -> MainFacts:
    """Of holders `pids`; `units` map control groups to jobs."""
    networks = (network_namespace(proc, pid) for pid in pids)
    commands = [command_line(proc, pid).text for pid in pids]
    return MainFacts(
        jobs=frozenset(key for pid in pids for key in job_keys(proc, pid, units)),
        users=frozenset(user_id(proc, pid) for pid in pids) - {""},
        networks=frozenset(inode for inode in networks if inode is not None),
        command=min(commands, default=""),
        notebook=any(map(runs_notebook, commands)),
    )


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
