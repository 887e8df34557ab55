"""Cost and error rate of a sample of the stacks of a Python program, by ours and other readers.

    PYTHONPATH=exporter:tests python tests/bench/stacks.py [LOOKS]

Prints a Markdown table: milliseconds of CPU for a look at a program with three threads, two of
which sleep, and the share of inconsistent stacks of a program that calls and returns every
microsecond. Of each Python that is here (`support.pythons`), with py-spy and pystack if they are
installed. By how much looks slow a loop, `stacktraces.bench` measures.
"""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpu_bottleneck_exporter.stacktraces.reader import StackReader, UnreadableReason
from support.programs import started
from support.pythons import PYTHONS

Stack = list[tuple[str, int]]
"""Functions and lines, the innermost first."""
Look = Callable[[int], list[Stack]]

_STEADY = """
import threading
def rest(): threading.Event().wait()
for _ in range(2): threading.Thread(target=rest, daemon=True).start()
def deep(n):
    if n: deep(n - 1)
    while True: pass
print(flush=True)
deep(20)
"""
_CALLS = ["import random, sys", "print(flush=True)"]
for _number in range(12):
    _CALLS += [
        f"def f{_number}():",
        "    before = 1",
        f"    if random.random() < 0.85: {f'f{_number + 1}()' if _number < 11 else 'int()'}",
        "    after = 2",
    ]
_CHANGING = "\n".join([*_CALLS, "while True:", "    f0()"])


def readers(ours: StackReader) -> Iterator[tuple[str, Look]]:
    def own(pid: int) -> list[Stack]:
        result = ours.read([started(pid)], ())[pid]
        assert not isinstance(result, UnreadableReason), result
        return [[(frame.function, frame.line) for frame in stack.frames] for stack in result]

    yield "ours", own
    if spy := shutil.which("py-spy"):
        command = (spy, "dump", "--nonblocking", "--json", "--pid")

        def dump(pid: int) -> list[Stack]:
            done = subprocess.run([*command, f"{pid}"], capture_output=True, check=True)
            threads = json.loads(done.stdout)
            return [
                [(frame["name"], frame["line"]) for frame in thread["frames"]] for thread in threads
            ]

        yield "py-spy dump", dump
    with contextlib.suppress(ImportError):
        from pystack.engine import get_process_threads  # noqa: PLC0415 - may be missing

        def engine(pid: int) -> list[Stack]:
            threads = get_process_threads(pid, stop_process=False)
            calls = [[(f.code.scope, f.code.location.lineno) for f in t.frames] for t in threads]
            return [stack[::-1] for stack in calls]

        yield "pystack", engine


def consistent(stack: Stack) -> bool:
    """Whether each function of `_CHANGING` is called by the one before, from its line."""
    names = [f"f{number}" for number in reversed(range(len(stack) - 1))]
    callers = [(name, 4 * int(name[1:]) + 5) for name in names[1:]]
    functions = [name.rpartition(".")[2] for name, _ in stack]
    return functions == [*names, "<module>"] and stack[1:-1] == callers


@contextlib.contextmanager
def running(interpreter: str, code: str, *arguments: str) -> Iterator[int]:
    command = (interpreter, "-c", code, *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def used() -> float:
    """CPU seconds of ours and of our children."""
    whole = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in whole)


def cost(look: Look, pid: int, looks: int) -> tuple[float, float]:
    """Milliseconds of the first look, and of a later one."""
    spent = []
    for _ in range(looks):
        before = used()
        look(pid)
        spent.append(1000 * (used() - before))
        time.sleep(0.01)
    return spent[0], statistics.median(spent[1:])


def main(arguments: Sequence[str]) -> None:
    looks = int(arguments[0]) if arguments else 200
    print("| Python | Reader | First, later look | Inconsistent |")
    print("|---|---|---:|---:|")
    for version, interpreter in PYTHONS.items():
        with StackReader(Path("/proc")) as ours:
            for name, look in readers(ours):
                try:
                    text = figures(look, interpreter, looks)
                except (subprocess.CalledProcessError, AssertionError):
                    text = "refuses it |"
                print(f"| {version} | {name} | {text} |", flush=True)


def figures(look: Look, interpreter: str, looks: int) -> str:
    with running(interpreter, _STEADY) as pid:
        first, later = cost(look, pid, max(looks // 10, 5))
    with running(interpreter, _CHANGING) as pid:
        stacks = [stack for _ in range(looks) for stack in look(pid)]
    wrong = sum(not consistent(stack) for stack in stacks) / len(stacks)
    return f"{first:.1f}, {later:.1f} ms | {wrong:.1%}"


if __name__ == "__main__":
    main(sys.argv[1:])
