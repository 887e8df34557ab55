"""Whose the holders of a GPU are, and where: what comes with a process and hardly ever changes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.feeders.interactive import runs_notebook
from gpu_bottleneck_exporter.feeders.jobkeys import GROUP, job_keys
from gpu_bottleneck_exporter.host.process import command_line, network_namespace, user_id
from gpu_bottleneck_exporter.workload.groups import Groups


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
