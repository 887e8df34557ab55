"""Stacks of real processes, of each Python that is here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from gpu_bottleneck_exporter.host.waits import Wait
from gpu_bottleneck_exporter.stacktraces import layouts
from gpu_bottleneck_exporter.stacktraces.interpreter import MAX_FRAMES
from gpu_bottleneck_exporter.stacktraces.memory import ProcessMemory
from gpu_bottleneck_exporter.stacktraces.reader import (
    StackReader,
    ThreadStack,
    UnreadableReason,
    stack_reads,
)
from support.planted import Planted, planted
from support.programs import ended, program, started
from support.pythons import OURS, PYTHONS
from support.rights import AS_WE_ARE, Way, as_nobody, with_mounts_of_its_own
from support.tools import WITH_US, missing, require
from support.waiting import PATIENCE_SECONDS, until

PROC = Path("/proc")


class Start(Protocol):
    """Start the planted program."""

    def __call__(
        self, python: str, depth: int, *threads: str, way: Way = AS_WE_ARE, plain: bool = False
    ) -> Planted: ...


@pytest.fixture
def start_planted(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(python: str, depth: int, *threads: str, **how: Any) -> Planted:  # noqa: ANN401
            return stack.enter_context(planted(tmp_path, python, depth, *threads, **how))

        yield start


@pytest.fixture
def reader() -> Iterator[StackReader]:
    with StackReader(PROC, PATIENCE_SECONDS) as item:
        yield item


def stacks(reader: StackReader, pid: int) -> Sequence[ThreadStack]:
    result = reader.read([started(pid)], ())[pid]
    assert not isinstance(result, UnreadableReason), result
    return result


def refusal(reader: StackReader, pid: int) -> str:
    result = reader.read([started(pid)], ())[pid]
    assert isinstance(result, UnreadableReason), result
    return result


def first_of(found: Sequence[ThreadStack], pid: int) -> ThreadStack | None:
    return next((item for item in found if item.tid == pid), None)


def places(stack: ThreadStack) -> list[tuple[str, int]]:
    return [(frame.function.rpartition(".")[2], frame.line) for frame in stack.frames]


def asleep(reader: StackReader, pid: int, function: str) -> ThreadStack:
    """The first stack once its first thread sleeps in `function`."""

    def there() -> ThreadStack | None:
        first = first_of(stacks(reader, pid), pid)
        return first if first and first.wait is Wait.PIPE else None

    result = until(there, f"asleep in {function}")
    assert result.frames[0].function.rpartition(".")[2] == function
    return result


@pytest.mark.parametrize("version", PYTHONS)
class TestEachPython:
    def test_every_call_has_its_function_file_and_line(
        self, version: str, start_planted: Start, reader: StackReader
    ) -> None:
        process = start_planted(PYTHONS[version], 2)
        result = asleep(reader, process.pid, "warte")
        called = ("größe", process.line("größe"))
        assert places(result) == [
            ("warte", process.line("warte")),
            ("größe", process.line("sorted")),
            *(called, called),
            ("werte", process.line("werte")),
            ("<module>", process.line("list")),
        ]
        assert {frame.file for frame in result.frames} == {f"{process.path}"}
        assert not result.native

    def test_helpers_wait_in_a_lock_or_run_native_code(
        self, version: str, start_planted: Start, reader: StackReader
    ) -> None:
        process = start_planted(PYTHONS[version], 0, "locked", "native")

        def helper(function: str, is_there: Callable[[ThreadStack], bool]) -> ThreadStack:
            def found() -> ThreadStack | None:
                helpers = (
                    stack for stack in stacks(reader, process.pid) if stack.tid != process.pid
                )
                there = (stack for stack in helpers if stack.frames[0].function == function)
                return next(filter(is_there, there), None)

            return until(found, function)

        locked = helper("locked", lambda stack: stack.wait is Wait.LOCK)
        assert places(locked)[0] == ("locked", process.line("locked"))
        assert not locked.native
        native = helper("native", lambda stack: stack.native)
        assert places(native)[0] == ("native", process.line("native"))
        assert native.wait is Wait.RUN
        tasks = {int(task.name) for task in (PROC / f"{process.pid}/task").iterdir()}
        assert {locked.tid, native.tid} < tasks
        assert locked.tid != native.tid

    def test_a_running_python_thread_holds_the_lock(
        self, version: str, reader: StackReader
    ) -> None:
        code = "print(flush=True)\nwhile True: pass"
        pipe = subprocess.PIPE
        with subprocess.Popen([PYTHONS[version], "-c", code], stdout=pipe) as process:
            try:
                assert process.stdout is not None
                process.stdout.readline()

                def runs() -> ThreadStack | None:
                    result = first_of(stacks(reader, process.pid), process.pid)
                    return (
                        result if result and result.wait is Wait.RUN and not result.native else None
                    )

                result = until(runs, "a thread that runs Python")
                assert places(result) == [("<module>", 2)]
            finally:
                process.kill()

    def test_pystack_reads_the_same(
        self, version: str, start_planted: Start, reader: StackReader
    ) -> None:
        try:
            from pystack.engine import get_process_threads  # noqa: PLC0415 - may be missing
        except ImportError as error:
            missing(f"{error}: pip install --group test")
        process = start_planted(PYTHONS[version], 5, "locked", plain=True)
        asleep(reader, process.pid, "warte")
        until(lambda: len(stacks(reader, process.pid)) > 1, "its other thread")
        theirs = {
            thread.tid: [
                (frame.code.scope, frame.code.filename, frame.code.location.lineno)
                for frame in thread.frames
            ][::-1]
            for thread in get_process_threads(process.pid, stop_process=False)
        }
        ours = {
            stack.tid: [
                (frame.function.rpartition(".")[2], frame.file, frame.line)
                for frame in stack.frames
            ]
            for stack in stacks(reader, process.pid)
        }
        assert ours == theirs

    def test_a_thread_is_where_its_subinterpreter_is(
        self, version: str, reader: StackReader
    ) -> None:
        code = """
import os
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
other = interpreters.create()
print(flush=True)
os.read(0, 1)
interpreters.run_string(other, "import os; print(flush=True)\\nos.read(0, 1)")
"""
        pipe = subprocess.PIPE
        command = [PYTHONS[version], "-c", code]
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdout.readline()
                assert places(asleep(reader, process.pid, "<module>")) == [("<module>", 9)]
                process.stdin.write(b"1")
                process.stdin.flush()
                process.stdout.readline()
                asleep(reader, process.pid, "<module>")
                (stack,) = stacks(reader, process.pid)
                assert places(stack) == [("<module>", 2)]
            finally:
                process.kill()

    def test_of_a_deep_stack_the_innermost_calls(
        self, version: str, start_planted: Start, reader: StackReader
    ) -> None:
        result = asleep(reader, start_planted(PYTHONS[version], 300).pid, "warte")
        assert len(result.frames) == MAX_FRAMES


def test_a_forked_worker_is_read_as_itself(reader: StackReader) -> None:
    code = """
child = os.fork()
if not child:
    os.read(0, 1)
ready(child)
os.read(0, 1)
"""
    with program(code) as process:
        main, child = (
            asleep(reader, pid, "<module>") for pid in (process.pid, int(process.words[0]))
        )
        assert main.tid != child.tid
        assert main.frames[0].line == child.frames[0].line + 2


def test_threads_of_another_pid_namespace_have_our_numbers(
    start_planted: Start, reader: StackReader
) -> None:
    way = (require("unshare", "util-linux"), "--pid", "--fork", "--kill-child")
    if subprocess.run([*way, "true"], capture_output=True, check=False).returncode:
        missing("no PID namespace may be made")
    process = start_planted(sys.executable, 1, "locked", way=way)
    pid = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    asleep(reader, pid, "warte")
    tasks = {int(task.name) for task in (PROC / f"{pid}/task").iterdir()}
    assert {stack.tid for stack in stacks(reader, pid)} == tasks


def test_the_interpreter_may_be_where_we_see_nothing(
    start_planted: Start, tmp_path: Path, reader: StackReader
) -> None:
    """A container: its files are not opened at all."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root = Path(sys.executable).resolve().parents[1]
    mount = f'mount --bind "{root}" "{elsewhere}" && exec "$@"'
    way = (*with_mounts_of_its_own(), "sh", "-c", mount, "sh")
    process = start_planted(f"{elsewhere}/bin/{Path(sys.executable).resolve().name}", 1, way=way)
    assert f"{elsewhere}/" in Path(f"/proc/{process.pid}/maps").read_text()
    assert not list(elsewhere.iterdir())
    asleep(reader, process.pid, "warte")


def test_native_threads_have_no_stack(reader: StackReader) -> None:
    code = """
libc = ctypes.CDLL(None)
for _ in range(200):
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)
ready()
os.read(0, 1)
"""
    with program(code) as process:
        asleep(reader, process.pid, "<module>")
        assert len(stacks(reader, process.pid)) == 1


def test_one_in_uninterruptible_sleep_is_read(reader: StackReader) -> None:
    """The child shares its memory while it lives, and goes on to the next line there."""
    code = """
import ctypes
libc = ctypes.CDLL(None)
print(flush=True)
if not libc.vfork():
    libc.pause()
"""
    command, pipe = [*WITH_US, sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, process_group=0) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            state = PROC / f"{process.pid}/stat"
            until(lambda: ") D " in state.read_text(), "uninterruptible sleep")
            (stack,) = stacks(reader, process.pid)
            assert stack.wait is Wait.PROGRAM
            assert stack.frames[0].line in (5, 6)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_process_that_executes_another_program_is_read_anew(reader: StackReader) -> None:
    code = """
ready()
told()
code = "import os; print(flush=True); os.read(0, 1)"
os.execv(sys.executable, [sys.executable, "-c", code])
"""
    with program(code) as process:
        until(lambda: stacks(reader, process.pid), "the first program")
        process.ask()

        def there() -> bool:
            result = reader.read([started(process.pid)], ())[process.pid]
            if isinstance(result, UnreadableReason):
                return False
            return any(places(stack) == [("<module>", 1)] for stack in result)

        until(there, "the second program")


class TestRefusals:
    def test_no_python(self, reader: StackReader) -> None:
        with subprocess.Popen(["sleep", "1000"]) as process:
            until(lambda: "sleep" in (PROC / f"{process.pid}/comm").read_text(), "sleep")
            assert refusal(reader, process.pid) == "it does not run Python"
            process.kill()

    def test_it_has_ended(self, reader: StackReader) -> None:
        assert refusal(reader, ended()) == "it has ended"

    def test_an_ended_process_before_its_parent_waits(self, reader: StackReader) -> None:
        with subprocess.Popen(["true"]) as process:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            assert refusal(reader, process.pid) == "it has ended"

    def test_a_process_that_ends_between_two_samples(self, reader: StackReader) -> None:
        with program("ready()\nos.read(0, 1)") as process:
            asleep(reader, process.pid, "<module>")
        assert refusal(reader, process.pid) == "it has ended"

    def test_it_is_stopped(self, reader: StackReader) -> None:
        with program("ready()\nos.read(0, 1)") as process:
            process.process.send_signal(signal.SIGSTOP)
            until(lambda: refused(reader, process.pid) == "it is stopped", "it is stopped")
            process.process.send_signal(signal.SIGCONT)
            asleep(reader, process.pid, "<module>")

    def test_it_is_of_another_user(self) -> None:
        code = """
from pathlib import Path
from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.stacktraces.reader import StackReader
pid = int(sys.argv[1])
with StackReader(Path("/proc")) as reader:
    ready(reader.read([(pid, ProcessReader(Path("/proc"), pid).started_ticks)], ())[pid])
"""
        way = as_nobody(files=[Path(layouts.__file__)])
        with (
            program("ready()\nos.read(0, 1)") as process,
            program(code, process.pid, way=way) as other,
        ):
            assert "CAP_SYS_PTRACE" in " ".join(other.words)

    def test_its_python_is_too_new(
        self, reader: StackReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(layouts.LAYOUTS, sys.version_info[1])
        assert f"it runs Python {OURS}, but " in refusal(reader, os.getpid())

    def test_no_time_is_left(self) -> None:
        with StackReader(PROC, 0.0) as reader:
            assert isinstance(
                reader.read([started(os.getpid())], ())[os.getpid()], UnreadableReason
            )


def refused(reader: StackReader, pid: int) -> str:
    result = reader.read([started(pid)], ())[pid]
    return result if isinstance(result, UnreadableReason) else ""


def test_memory_that_does_not_answer_costs_only_its_own_process(
    reader: StackReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, read = threading.Event(), ProcessMemory.read

    def hangs(memory: ProcessMemory, address: int, size: int) -> bytes:
        if Path(f"/proc/self/fd/{memory._file}").readlink() == PROC / f"{hung.pid}/mem":
            gate.wait()
        return read(memory, address, size)

    with program("ready()\nos.read(0, 1)") as hung, program("ready()\nos.read(0, 1)") as other:
        monkeypatch.setattr(stack_reads, "_timeout", 0.01)
        monkeypatch.setattr(ProcessMemory, "read", hangs)
        assert refusal(reader, hung.pid) == "its memory does not answer"
        monkeypatch.setattr(stack_reads, "_timeout", PATIENCE_SECONDS)
        asleep(reader, other.pid, "<module>")
        assert refusal(reader, hung.pid) == "its memory does not answer"
        gate.set()
        until(lambda: not refused(reader, hung.pid), "it answers")


def test_the_cost_is_counted(reader: StackReader) -> None:
    before = reader.cpu_seconds
    stacks(reader, os.getpid())
    until(lambda: reader.cpu_seconds > before, "CPU time")
