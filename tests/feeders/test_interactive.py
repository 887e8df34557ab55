"""Command lines and terminals of notebooks, shells and training jobs."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.feeders.job import facts_of
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.feeders.programs import has_terminal, runs_notebook
from gpu_bottleneck_exporter.workload.owners import Groups

PROC = Path("/proc")
KERNEL = "/root/.local/share/jupyter/runtime/kernel-6f1c.json"
SESSION = ["-f", KERNEL]

NOTEBOOKS = [
    ["/opt/conda/bin/python", "-m", "ipykernel_launcher", *SESSION],
    ["/usr/bin/python3.11", "-Xfrozen_modules=off", "-m", "ipykernel_launcher", *SESSION],
    ["python3", "-X", "frozen_modules=off", "-W", "ignore", "-m", "ipykernel_launcher", *SESSION],
    ["python", "-m", "ipykernel", *SESSION],
    ["python", "-mipykernel", *SESSION],
    ["python", "-um", "ipykernel.kernelapp", *SESSION],
    ["/usr/bin/python3", "-m", "colab_kernel_launcher", *SESSION],
    ["python", "/usr/lib/python3/dist-packages/ipykernel_launcher.py", *SESSION],
    ["/usr/bin/python3", "/usr/local/bin/jupyter-notebook", "--no-browser"],
    ["/usr/local/bin/jupyter-lab"],
    ["/usr/bin/python", "-Es", "/usr/bin/jupyter", "console"],
]
OTHERS = [
    [""],
    ["python"],
    ["python", "-"],
    ["python", "train.py"],
    ["python", "train.py", "--data", "/data/jupyter", "-m", "ipykernel"],
    ["python", "-m", "torch.distributed.run", "--", "jupyter"],
    ["python", "-c", "ipykernel_launcher"],
    ["python", "-uc", "import ipykernel"],
    ["python", "-W", "ipykernel"],
    ["python", "-m"],
    ["python", "-X"],
    ["/home/jupyter/bin/python3", "/home/jupyter/ipykernel/train.py"],
    ["/opt/ipykernel/bin/server", "-m", "jupyter"],
    ["tritonserver", "--model-repository=/models/jupyter"],
    ["jupyterhub"],
]


def is_interactive(proc: Path, pid: int) -> bool | None:
    mains = {pid: Process(proc, pid)}
    return facts_of(proc, mains, [], Groups(proc), 0).limits.interactive


@pytest.mark.parametrize("words", NOTEBOOKS + OTHERS, ids=" ".join)
def test_notebooks_are_told_by_their_command_lines(words: list[str]) -> None:
    assert runs_notebook("\0".join(words) + "\0") is (words in NOTEBOOKS)


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        ("7 (python) S 1 7 7 34816 7 0", True),
        ("7 (python) S 1 7 7 0 -1 4194560", False),
        ("7 (a) b) 5 5 5 5 5 (c) S 1 7 7 1025 7 0", True),
        ("7 (a 1 2 3 4 5) S 1 7 7 0 7 0", False),
        ("7 (python) S 1 7 7", False),
        ("", False),
    ],
)
def test_terminals(stat: str, expected: bool) -> None:  # noqa: FBT001 - a parameter
    assert has_terminal(stat) is expected


@given(st.text(st.characters() | st.sampled_from("\0-m ()0")))
def test_no_text_is_too_strange(text: str) -> None:
    assert runs_notebook(text) in (True, False)
    assert has_terminal(text) in (True, False)


def test_a_process_that_is_gone_is_neither() -> None:
    assert is_interactive(PROC, 2**22 + 1) is None


def test_real_processes(tmp_path: Path) -> None:
    script = tmp_path / "ipykernel_launcher.py"
    script.write_text("print(flush=True); input()")
    ours, theirs = pty.openpty()
    pipe = subprocess.PIPE
    terminal = "import fcntl, os, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    for expected, way, words in (
        (False, pipe, ["-c", script.read_text()]),
        (True, pipe, [str(script), *SESSION]),
        (True, theirs, ["-c", terminal + script.read_text()]),
    ):
        own_session = way == pipe
        with subprocess.Popen(
            [sys.executable, *words], stdin=way, stdout=way, start_new_session=own_session
        ) as child:
            os.read(child.stdout.fileno() if child.stdout else ours, 1)
            found = is_interactive(PROC, child.pid)
            child.kill()
        assert found is expected
    os.close(ours)
    os.close(theirs)
