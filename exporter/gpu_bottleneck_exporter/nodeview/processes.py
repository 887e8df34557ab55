"""Pid, name, user and state of a GPU's processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from gpu_bottleneck_exporter.host.files import list_names, read
from gpu_bottleneck_exporter.host.process import stat_of, user_id
from gpu_bottleneck_exporter.host.programs import program_name
from gpu_bottleneck_exporter.nodeview.model import ProcessEntry
from gpu_bottleneck_exporter.workload.users import UserNames

MAX_LISTED_PROCESSES = 8
"""Bound on the processes listed per GPU: enough for its holders and some workers."""
_STATE_NAMES = {"R": "running", "S": "sleeping", "D": "waiting for I/O", "T": "stopped"}


class ProcessLister:
    """Lists the processes of a GPU on request."""

    def __init__(self, proc: Path) -> None:
        """`proc`: the host's /proc."""
        self._proc = proc
        self._users = UserNames(proc)

    def read(self, mains: Iterable[int], workers: Iterable[int]) -> tuple[ProcessEntry, ...]:
        """Holders of a GPU, then their workers, at most `MAX_LISTED_PROCESSES`."""
        roles = (("main", mains), ("worker", workers))
        entries = (self._read(pid, role) for role, pids in roles for pid in pids)
        return tuple(islice(filter(None, entries), MAX_LISTED_PROCESSES))

    def _read(self, pid: int, role: str) -> ProcessEntry | None:
        stat = stat_of(self._proc, pid)
        if stat is None:
            return None
        name, uid = program_name(self._proc, pid), user_id(self._proc, pid)
        user = self._users.of(int(uid)) if uid else None
        return ProcessEntry(pid, role, name, user, _STATE_NAMES.get(stat.state.upper()))

    def use_pytorch(self, processes: Iterable[ProcessEntry]) -> bool:
        """Whether any process has a thread that PyTorch named (`pt_data_worker`)."""
        pids = (process.pid for process in processes)
        return any(name.startswith("pt_") for pid in pids for name in self._threads(pid))

    def _threads(self, pid: int) -> Iterator[str]:
        folder = f"{self._proc}/{pid}/task"
        with suppress(OSError):  # the process has exited
            for task in list_names(folder, 128)[0]:
                yield read(f"{folder}/{task}/comm") or ""
