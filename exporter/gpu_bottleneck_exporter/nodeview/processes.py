"""The processes of a GPU as people know them: pid, name, user, state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from gpu_bottleneck_exporter.host.files import list_names, read
from gpu_bottleneck_exporter.host.process import stat_of, user_id
from gpu_bottleneck_exporter.host.programs import program_name
from gpu_bottleneck_exporter.nodeview.model import Process
from gpu_bottleneck_exporter.workload.users import UserNames

MOST_LISTED = 8
"""Of a GPU: enough to see who holds it and what its workers do."""
_MOST_THREADS = 128
_STATES = {"R": "running", "S": "sleeping", "D": "waiting for I/O", "T": "stopped"}


class ProcessReader:
    """Reads them when somebody looks, not in the background."""

    def __init__(self, proc: Path) -> None:
        """`proc`: the host's."""
        self._proc = proc
        self._users = UserNames(proc)

    def read(self, mains: Iterable[int], workers: Iterable[int]) -> tuple[Process, ...]:
        """Holders of a GPU, then their workers, `MOST_LISTED` in all."""
        roles = (("main", mains), ("worker", workers))
        found = (self._read(pid, role) for role, pids in roles for pid in pids)
        return tuple(islice(filter(None, found), MOST_LISTED))

    def _read(self, pid: int, role: str) -> Process | None:
        stat = stat_of(self._proc, pid)
        if stat is None:
            return None
        name, user = program_name(self._proc, pid), user_id(self._proc, pid)
        known = self._users.of(int(user)) if user else None
        return Process(pid, role, name, known, _STATES.get(stat.state.upper()))

    def use_pytorch(self, processes: Iterable[Process]) -> bool:
        """Whether one of them has a thread that PyTorch named (`pt_data_worker`)."""
        return any(name.startswith("pt_") for one in processes for name in self._threads(one.pid))

    def _threads(self, pid: int) -> Iterator[str]:
        folder = f"{self._proc}/{pid}/task"
        with suppress(OSError):  # it ended
            for task in list_names(folder, _MOST_THREADS)[0]:
                yield read(f"{folder}/{task}/comm") or ""
