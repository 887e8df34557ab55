"""A run that is killed leaves neither processes nor mounts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from support.hangs import hanging
from support.leftovers import MARK
from support.programs import program
from support.waiting import eventually

RUN = """
from pathlib import Path
from support.hangs import hanging
from support.leftovers import end_with_us

end_with_us()
with hanging(Path(sys.argv[1])):
    sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    ready(sleeper.pid)
    told()
"""


def is_mounted(folder: Path) -> bool:
    return f" {folder} " in Path("/proc/mounts").read_text(encoding="utf-8")


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_what_a_killed_run_started_and_mounted_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging(tmp_path):  # else it is skipped here
        assert is_mounted(tmp_path)
    monkeypatch.delenv(MARK)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with program(RUN, tmp_path) as run:
        (sleeper,) = map(int, run.words)
        assert is_mounted(tmp_path)
    eventually(lambda: not is_mounted(tmp_path))
    eventually(lambda: is_gone(sleeper))
