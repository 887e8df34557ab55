"""Placeholder."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import comm_and_state
from gpu_bottleneck_exporter.host.waits import Wait, wait_of
from gpu_bottleneck_exporter.stacktraces.frames import Frame


class Refusal(str):
    pass


class ThreadStack(NamedTuple):
    tid: int
    wait: Wait
    native: bool
    frames: tuple[Frame, ...]


class StackReader:
    def __init__(self, proc: Path) -> None:
        self._proc = proc

    def __enter__(self) -> StackReader:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def cpu_seconds(self) -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def read(self, pids: Sequence[int]) -> Mapping[int, Sequence[ThreadStack] | Refusal]:
        return {pid: self._one(pid) for pid in pids}

    def _one(self, pid: int) -> Sequence[ThreadStack] | Refusal:
        done = subprocess.run(
            ["py-spy", "dump", "--nonblocking", "--json", "--pid", f"{pid}"],
            capture_output=True,
        )
        if done.returncode:
            return Refusal(done.stderr.decode()[:200])
        found = []
        for one in json.loads(done.stdout):
            tid = one["os_thread_id"] or pid
            _, state = comm_and_state((read(f"{self._proc}/{pid}/task/{tid}/stat") or "").encode())
            channel = (read(f"{self._proc}/{pid}/task/{tid}/wchan") or "").encode()
            frames = tuple(Frame(f["name"], f["filename"], f["line"]) for f in one["frames"])
            wait = wait_of(state, channel)
            found.append(ThreadStack(tid, wait, one["active"] and not one["owns_gil"], frames))
        return found
