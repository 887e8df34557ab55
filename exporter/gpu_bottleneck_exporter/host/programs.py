"""Classification of programs by command line."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from gpu_bottleneck_exporter.host.aside import proc_reads
from gpu_bottleneck_exporter.host.descriptors import link_of
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import command_line, parent_of

_COMPILERS = re.compile(
    r"(?:[a-z0-9_]+-)*"  # of a cross compiler: x86_64-linux-gnu-
    r"(?:gcc|g\+\+|cc|c\+\+|cc1|cc1plus|collect2|as|ld|ld\.(?:bfd|gold|lld)|lld|lto1|lto-wrapper"
    r"|clang|clang\+\+|llc|opt|nvcc|cicc|ptxas|fatbinary|cudafe\+\+|nvlink|hipcc|ninja|triton)"
    r"(?:-[0-9.]+)?"
)
"""GNU, LLVM, CUDA and ROCm."""


def is_compiler(name: str) -> bool:
    """Whether a program `name` compiles."""
    return _COMPILERS.fullmatch(name) is not None


def compiles(command: str) -> bool:
    """Whether a /proc/PID/cmdline is that of a compiler or of torch.compile's worker pool."""
    program = command.partition("\0")[0].rpartition("/")[2]
    return is_compiler(program) or any(
        f"torch{dot}_inductor{dot}compile_worker" in command for dot in "/."
    )


def is_no_worker(proc: Path, pid: int, mains: Collection[int], compilers: set[int]) -> bool:
    """Whether a descendant compiles (added to `compilers`), or is a helper of multiprocessing.

    These are its forkserver and resource tracker; workers have the forkserver for a parent.
    """
    command = command_line(proc, pid).text
    parent = parent_of(proc, pid)
    if compiles(command) or parent in compilers:
        compilers.add(pid)
        return True
    return parent in mains and any(
        f"from multiprocessing.{name} import main" in command
        for name in ("forkserver", "resource_tracker")
    )


_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")


def has_terminal(stat: str) -> bool:
    """Whether a /proc/PID/stat names a controlling terminal."""
    tty_nr = stat.rpartition(")")[2].split(None, 5)[4:5]  # counted after the command
    return tty_nr not in ([], ["0"])


def runs_notebook(command: str) -> bool:
    """Whether a /proc/PID/cmdline is a notebook's kernel; arguments do not count."""
    program, *arguments = command.split("\0")
    programs = [_name(program)]
    if "python" in programs[0]:
        programs.append(_name(_python_runs(arguments)))
    kernels = ("ipykernel_launcher", "ipykernel", "colab_kernel_launcher", "jupyter")
    return any(name in kernels for name in programs)


def program_name(proc: Path, pid: int) -> str:
    """Name of process `pid`, at most 100 characters; empty if it has ended.

    Without arguments, which may hold passwords.
    """
    comm = (read(f"{proc}/{pid}/comm") or "").strip()
    command = command_line(proc, pid).text
    return display_name(comm, _executable(proc, pid), command)[:100]


def _executable(proc: Path, pid: int) -> str:
    with suppress(PermissionError):
        return proc_reads.call(pid, lambda: link_of(f"{proc}/{pid}", "exe")) or ""
    return ""


def display_name(comm: str, executable: str, command: str) -> str:
    """Name of a process for people: of Python its script, also if it renames its threads.

    `comm`: first thread's name; `executable`: path, if known.
    """
    first, *arguments = command.split("\0")
    program, runs = first.rpartition("/")[2], executable.rpartition("/")[2]
    if _PYTHON.fullmatch(program):
        return _python_runs(arguments).rpartition("/")[2] or program
    if _PYTHON.fullmatch(runs):
        return first.partition(" -")[0][:64] or comm
    return runs if runs.startswith(comm) else comm


def _python_runs(arguments: list[str]) -> str:
    """Python's module or script; empty for code on the command line."""
    words = iter(arguments)
    for word in words:
        if word == "-":  # the program comes from stdin
            return ""
        if not word.startswith("-"):
            return word
        if word == "--check-hash-based-pycs":
            next(words, "")
        # Short options with a value: the rest of the word, or the next.
        if option := re.fullmatch(r"-[^-cmWX]*([cmWX])(.*)", word, re.DOTALL):
            value = option[2] or next(words, "")
            if option[1] in "cm":
                return value if option[1] == "m" else ""
    return ""


def _name(program: str) -> str:
    """`jupyter` of /bin/jupyter-lab, `ipykernel` of ipykernel.py."""
    return program.rpartition("/")[2].partition(".")[0].partition("-")[0]
