"""What kinds of programs processes run: compilers, multiprocessing's helpers, notebooks."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from gpu_bottleneck_exporter.host.aside import proc_reads
from gpu_bottleneck_exporter.host.descriptors import link_of
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import command_line, parent_of

_POOLS = ("torch/_inductor/compile_worker", "torch._inductor.compile_worker")
"""Where the command line says that the interpreter runs a pool of them (torch.compile)."""
_NAMES = re.compile(
    r"(?:[a-z0-9_]+-)*"  # of another machine: x86_64-linux-gnu-
    r"(?:gcc|g\+\+|cc|c\+\+|cc1|cc1plus|collect2|as|ld|ld\.(?:bfd|gold|lld)|lld|lto1|lto-wrapper"
    r"|clang|clang\+\+|llc|opt|nvcc|cicc|ptxas|fatbinary|cudafe\+\+|nvlink|hipcc|ninja|triton)"
    r"(?:-[0-9.]+)?"
)
"""GNU, LLVM, CUDA and ROCm."""


def is_compiler(name: str) -> bool:
    """Whether a program of this `name` compiles."""
    return _NAMES.fullmatch(name) is not None


def compiles(command: str) -> bool:
    """Whether a process with this command line, as in /proc, compiles or runs a pool that does."""
    program = command.partition("\0")[0].rpartition("/")[2]
    return is_compiler(program) or any(pool in command for pool in _POOLS)


_OF_MULTIPROCESSING = ("forkserver", "resource_tracker")


def loads_nothing(proc: Path, pid: int, mains: Collection[int], compilers: set[int]) -> bool:
    """Whether a descendant is no worker: it compiles, or is multiprocessing's own.

    That is its forkserver or resource tracker; workers have the forkserver's command line, but it
    for a parent. What compiles, or was started by one of `compilers`, is added to these.
    """
    command = command_line(proc, pid).text
    parent = parent_of(proc, pid)
    if compiles(command) or parent in compilers:
        compilers.add(pid)
        return True
    return parent in mains and any(
        f"from multiprocessing.{name} import main" in command for name in _OF_MULTIPROCESSING
    )


_NOTEBOOKS = frozenset({"ipykernel_launcher", "ipykernel", "colab_kernel_launcher", "jupyter"})
_WITH_A_VALUE = re.compile(r"-[^-cmWX]*([cmWX])(.*)", re.DOTALL)
"""Python's short options that take a value: the rest of the word, else the next one."""
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_LONGEST_TITLE = 64
_MAX_NAME = 100
"""Characters of a program's name: more than a line of a table has room for."""
_TERMINAL = 4
"""Field tty_nr of /proc/PID/stat, counted after the command."""


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


def program_name(proc: Path, pid: int) -> str:
    """What people call process `pid`, at most `_MAX_NAME` characters; empty if it has ended.

    Without its arguments, which may hold passwords. Sources: /proc/PID/comm, exe, cmdline.
    """
    comm = (read(f"{proc}/{pid}/comm") or "").strip()
    command = command_line(proc, pid).text
    return display_name(comm, _executable(proc, pid), command)[:_MAX_NAME]


def _executable(proc: Path, pid: int) -> str:
    with suppress(PermissionError):  # by its command line alone
        return proc_reads.call(pid, lambda: link_of(f"{proc}/{pid}", "exe")) or ""
    return ""


def display_name(comm: str, executable: str, command: str) -> str:
    """What people call a process: `train.py` of a Python's, also where it renames its threads.

    `comm`: the name of its first thread; `executable`: the file that it runs, empty if unknown;
    `command`: its command line, which it may replace by a title.
    """
    first, *arguments = command.split("\0")
    program, runs = first.rpartition("/")[2], executable.rpartition("/")[2]
    if _PYTHON.fullmatch(program):
        return _python_runs(arguments).rpartition("/")[2] or program
    if _PYTHON.fullmatch(runs):
        return first.partition(" -")[0][:_LONGEST_TITLE] or comm
    return runs if runs.startswith(comm) else comm


def _python_runs(arguments: list[str]) -> str:
    """Module or script that Python was told to run; nothing for code on the command line."""
    words = iter(arguments)
    for word in words:
        if word == "-":  # the program comes from stdin; what follows are its arguments
            return ""
        if not word.startswith("-"):
            return word
        if word == "--check-hash-based-pycs":
            next(words, "")
        if option := _WITH_A_VALUE.fullmatch(word):
            value = option[2] or next(words, "")
            if option[1] in "cm":
                return value if option[1] == "m" else ""
    return ""


def _name(program: str) -> str:
    """`ipykernel_launcher` of /lib/ipykernel_launcher.py, `jupyter` of /bin/jupyter-lab."""
    return program.rpartition("/")[2].partition(".")[0].partition("-")[0]
