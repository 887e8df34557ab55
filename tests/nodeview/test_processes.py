"""What people are told of the processes of a GPU."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from gpu_bottleneck_exporter.feeders.programs import script
from gpu_bottleneck_exporter.nodeview.model import Process
from gpu_bottleneck_exporter.nodeview.processes import MOST_LISTED, ProcessReader
from support.programs import program
from support.waiting import until

PROC = Path("/proc")
NAMED = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'pt_data_worker'); time.sleep(3600)"


def test_holders_come_first_with_name_user_and_state() -> None:
    reader = ProcessReader(PROC)
    with program("import time; time.sleep(3600)") as main, program(NAMED) as worker:

        def found() -> list[Process]:
            return [*reader.read([main.pid], [worker.pid, 2**22 + 1])]

        until(lambda: [one.state for one in found()] == ["sleeping"] * 2, "that they sleep")
        until(lambda: found()[1].name == "pt_data_worker", "its name")
        assert [(one.pid, one.role) for one in found()] == [
            (main.pid, "main"),
            (worker.pid, "worker"),
        ]
        assert found()[0].name == Path(sys.executable).resolve().name
        assert {one.user for one in found()} == {found()[0].user} != {None}
        assert reader.use_pytorch(found())
        assert not reader.use_pytorch(found()[:1])
        os.kill(main.pid, signal.SIGSTOP)
        until(lambda: found()[0].state == "stopped", "that it is stopped")


def test_a_crowd_is_cut() -> None:
    assert len(ProcessReader(PROC).read([], [os.getpid()] * 100)) == MOST_LISTED


def test_a_script_has_the_name_of_its_file() -> None:
    assert script("python3", "python3\0-u\0/home/a/train.py\0--lr\0" + "1\0") == "train.py"
    assert script("python3", "python3\0-m\0torch.distributed.run\0") == "torch.distributed.run"
    assert script("python3", "python3\0-c\0import os\0") == "python3"
    assert script("pt_data_worker", "python3\0train.py\0") == "pt_data_worker"
    assert script("python3", "") == "python3"
    assert script("python-loop", "python3\0train.py\0") == "python-loop"
