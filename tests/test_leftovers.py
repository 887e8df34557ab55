"""A run that is killed leaves no processes, no control groups and no mounts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from scenarios.cgroups import Limits
from support.hangs import hanging
from support.leftovers import MARK
from support.programs import program
from support.stage import caged
from support.waiting import eventually

RUN = """
from pathlib import Path
from scenarios.cgroups import Limits, limited
from support.hangs import hanging
from support.leftovers import end_with_us, mark

end_with_us()
hung, memory = map(Path, sys.argv[1:])
subprocess.run(["mount", "-t", "tmpfs", mark(), memory], check=True)
with hanging(hung), limited(Limits(memory_bytes=2**30), memory) as (group,):
    inner = group / "inner"
    inner.mkdir()
    sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    (inner / "cgroup.procs").write_text(f"{sleeper.pid}")
    ready(sleeper.pid, group)
    told()
"""


def is_mounted(folder: Path) -> bool:
    return f" {folder} " in Path("/proc/mounts").read_text(encoding="utf-8")


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_processes_files_and_mounts_of_a_killed_run_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = [tmp_path / "hung", tmp_path / "memory"]
    for folder in mounts:
        folder.mkdir()
    with hanging(mounts[0]), caged(Limits(memory_bytes=2**30), tmp_path):  # else it is skipped here
        assert is_mounted(mounts[0])
    monkeypatch.delenv(MARK)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with program(RUN, *mounts) as run:
        sleeper, group = int(run.words[0]), Path(run.words[1])
        assert all(map(is_mounted, mounts))
        assert (group / "inner/cgroup.procs").read_text().split() == [f"{sleeper}"]
    eventually(lambda: not any(map(is_mounted, mounts)))
    eventually(lambda: is_gone(sleeper))
    eventually(lambda: not group.exists())
