"""Whether somebody sits in front of a process: a notebook's kernel, or a terminal."""

from __future__ import annotations

import re
from pathlib import Path

from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import command_line

_NOTEBOOKS = frozenset({"ipykernel_launcher", "ipykernel", "colab_kernel_launcher", "jupyter"})
_WITH_A_VALUE = re.compile(r"-[^-cmWX]*([cmWX])(.*)", re.DOTALL)
"""Python's short options that take a value: the rest of the word, else the next one."""
_TERMINAL = 4
"""Field tty_nr of /proc/PID/stat, counted after the command."""


def is_interactive(proc: Path, pid: int) -> bool | None:
    """Of process `pid`; None when it is gone. `proc`: the host's."""
    stat = read(proc / str(pid) / "stat")
    if not stat:
        return None
    return has_terminal(stat) or runs_notebook(command_line(proc, pid).text)


def has_terminal(stat: str) -> bool:
    """Whether `stat`, a /proc/PID/stat file, names a controlling terminal."""
    fields = stat.rpartition(")")[2].split(None, _TERMINAL + 1)
    return len(fields) > _TERMINAL and fields[_TERMINAL] != "0"


def runs_notebook(command: str) -> bool:
    """Whether `command`, a /proc/PID/cmdline file, is that of a notebook's kernel.

    What it runs counts and no more: a script may well be told to read /data/jupyter.
    """
    program, *arguments = command.split("\0")
    programs = [_name(program)]
    if "python" in programs[0]:
        programs.append(_name(_python_runs(arguments)))
    return not _NOTEBOOKS.isdisjoint(programs)


def _python_runs(arguments: list[str]) -> str:
    """Module or script that Python was told to run; nothing for code on the command line."""
    words = iter(arguments)
    for word in words:
        if not word.startswith("-"):
            return word
        if option := _WITH_A_VALUE.fullmatch(word):
            value = option[2] or next(words, "")
            if option[1] in "cm":
                return value if option[1] == "m" else ""
    return ""


def _name(program: str) -> str:
    """`ipykernel_launcher` of /lib/ipykernel_launcher.py, `jupyter` of /bin/jupyter-lab."""
    return program.rpartition("/")[2].partition(".")[0].partition("-")[0]
