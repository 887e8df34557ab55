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
CODE = "print(flush=True); input()"

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


@pytest.mark.parametrize("words", NOTEBOOKS, ids=" ".join)
def test_notebooks(words: list[str]) -> None:
    assert runs_notebook("\0".join(words) + "\0")


@pytest.mark.parametrize("words", OTHERS, ids=" ".join)
def test_what_is_no_notebook(words: list[str]) -> None:
    assert not runs_notebook("\0".join(words) + "\0")


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


def test_a_real_process_without_a_terminal() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", CODE]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert is_interactive(PROC, child.pid) is False
        child.kill()


def test_a_real_notebook_kernel(tmp_path: Path) -> None:
    script = tmp_path / "ipykernel_launcher.py"
    script.write_text(CODE)
    pipe = subprocess.PIPE
    command = [sys.executable, str(script), *SESSION]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert is_interactive(PROC, child.pid) is True
        child.kill()


def test_a_real_process_with_a_terminal() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "import os, sys; os.login_tty(0); print(flush=True); input()"]
    if not hasattr(os, "login_tty"):  # before Python 3.11
        command[-1] = (
            "import fcntl, os, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
            "print(flush=True); input()"
        )
    try:
        with subprocess.Popen(command, stdin=theirs, stdout=theirs) as child:
            os.read(ours, 1)
            assert is_interactive(PROC, child.pid) is True
            child.kill()
    finally:
        os.close(ours)
        os.close(theirs)
