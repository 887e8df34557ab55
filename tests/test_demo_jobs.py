"""The demo in a terminal: its training loops are no sessions, and end with it."""

from __future__ import annotations

from pathlib import Path

import psutil

from gpu_bottleneck_exporter.demo.jobs import JOBS
from gpu_bottleneck_exporter.host.programs import has_terminal
from support.command import ANY_PORT, COMMAND
from support.terminal import terminal
from support.waiting import PATIENCE_SECONDS


def test_in_a_terminal_its_jobs_are_no_sessions_and_end_with_ctrl_c() -> None:
    with terminal([*COMMAND, "demo", *ANY_PORT]) as screen:
        screen.wait_for(lambda _: b"watching gpus=8 " in screen.written, "its start")
        children = psutil.Process(screen.child.pid).children(recursive=True)
        assert len(children) >= len(JOBS), screen.text
        pids = [screen.child.pid, *(child.pid for child in children)]
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in pids]
        assert [has_terminal(stat) for stat in stats] == [True] + [False] * len(children)
        screen.press("\x03")
        assert screen.end() == 0
    assert b"Traceback" not in screen.written
    assert not psutil.wait_procs(children, PATIENCE_SECONDS)[1]
