"""Ends what a run leaves behind when it is killed: its processes, control groups and mounts.

All that a run starts has its mark in the environment, its groups in their names, and its mounts as
their source.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

MARK = "TESTS_RUN"
"""The variable with the mark."""
_PR_SET_PDEATHSIG = 1
_PATIENCE_SECONDS = 30.0
_CGROUPS = Path("/sys/fs/cgroup")


def end_with_us() -> None:
    """Start a process that outlives this one and ends what is left of it.

    Not in what such a run has started itself: its own process ends that, too.
    """
    if MARK not in os.environ:
        os.environ[MARK] = uuid.uuid4().hex
        command = [sys.executable, __file__, f"{os.getpid()}"]
        os.posix_spawn(sys.executable, command, os.environ, setsid=True)


def mark() -> str:
    """Mark for the source of a mount, and for the name of a control group."""
    return os.environ.get(MARK, "tests")


def _await_end_of(parent: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent:  # else it has ended meanwhile
        signal.sigwait({signal.SIGTERM})


def _processes(mark: bytes) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.name != f"{os.getpid()}" and mark in (folder / "environ").read_bytes():
                yield int(folder.name)


def _groups(mark: str) -> list[Path]:
    """Control groups, of v1 and v2; those within others come first."""
    tops = [top for below in (".", "*") for top in _CGROUPS.glob(f"{below}/*{mark}*")]
    return sorted((group for top in tops for group in top.glob("**/")), reverse=True)


def _mounts(mark: str) -> list[str]:
    lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    return [folder for name, folder, *_ in map(str.split, lines) if name == mark]


def _end(mark: str) -> bool:
    """End processes and groups; whether there were any."""
    processes, groups = [*_processes(mark.encode())], _groups(mark)
    for pid in processes:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for group in groups:
        with contextlib.suppress(OSError):  # a process in it has yet to end
            group.rmdir()
    return bool(processes or groups)


def _clean(mark: str) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while _end(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    for folder in _mounts(mark):
        subprocess.run(["umount", "--lazy", folder], check=False)


if __name__ == "__main__":
    _await_end_of(int(sys.argv[1]))
    _clean(os.environ[MARK])
