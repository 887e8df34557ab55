"""Descriptions of the processes of a GPU."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from gpu_bottleneck_exporter.host.programs import display_name
from gpu_bottleneck_exporter.nodeview.model import ProcessEntry
from gpu_bottleneck_exporter.nodeview.processes import MAX_LISTED_PROCESSES, ProcessLister
from support.programs import program
from support.rows import rows
from support.waiting import until

PROC = Path("/proc")
PYTHON, MPS = "/usr/bin/python3.11", "nvidia-cuda-mps-server"
NAMED = "ctypes.CDLL(None).prctl(15, b'pt_data_worker'); ready(); time.sleep(3600)"


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_holders_come_first_with_name_user_and_state() -> None:
    reader = ProcessLister(PROC)
    with program("ready(); time.sleep(3600)") as main, program(NAMED) as worker:

        def found() -> list[ProcessEntry]:
            return [*reader.read([main.pid], [worker.pid, 2**22 + 1])]

        until(lambda: [item.state for item in found()] == ["sleeping"] * 2, "that they sleep")
        until(lambda: comm(worker.pid) == "pt_data_worker", "its name")
        assert [(item.pid, item.role) for item in found()] == [
            (main.pid, "main"),
            (worker.pid, "worker"),
        ]
        assert {item.name for item in found()} == {Path(sys.executable).name}, (
            "by argv, not by comm"
        )
        assert {item.user for item in found()} == {found()[0].user} != {None}
        assert reader.use_pytorch(found())
        assert not reader.use_pytorch(found()[:1])
        os.kill(main.pid, signal.SIGSTOP)
        until(lambda: found()[0].state == "stopped", "that it is stopped")


def test_a_crowd_is_cut() -> None:
    assert len(ProcessLister(PROC).read([], [os.getpid()] * 100)) == MAX_LISTED_PROCESSES


@rows(
    "comm, executable, command, name",
    {
        "a script": (
            "python3",
            PYTHON,
            "python3\0-u\0/home/a/train.py\0--lr\0" + "1\0",
            "train.py",
        ),
        "a module": ("python3", PYTHON, "python3\0-m\0torch.run\0", "torch.run"),
        "code": ("pt_main_thread", PYTHON, "python3\0-c\0import os\0", "python3"),
        "PyTorch's first thread": ("pt_main_thread", PYTHON, "python\0train.py\0", "train.py"),
        "a worker that names its thread": ("pt_data_worker", "", "python\0a.py\0", "a.py"),
        "code on stdin": ("python3", PYTHON, "python3\0-\0secret\0", "python3"),
        "an option with a value": (
            "python3",
            PYTHON,
            "python3\0--check-hash-based-pycs\0always\0a.py\0",
            "a.py",
        ),
        "a title with arguments": ("python", PYTHON, "python a.py --key=x\0", "python a.py"),
        "a title": ("VLLM::EngineCor", PYTHON, "VLLM::EngineCore\0\0\0", "VLLM::EngineCore"),
        "a long title": ("x", PYTHON, 99 * "x", 64 * "x"),
        "no command line": ("python3", PYTHON, "", "python3"),
        "a script of a shell": ("run.sh", "/bin/bash", "/bin/bash\0./run.sh\0", "run.sh"),
        "a name that is cut": ("nvidia-cuda-mps", "/bin/nvidia-cuda-mps-server", "x\0", MPS),
        "nothing but its name": ("trainer", "", "", "trainer"),
    },
)
def test_common_names_of_processes(comm: str, executable: str, command: str, name: str) -> None:
    assert display_name(comm, executable, command) == name
