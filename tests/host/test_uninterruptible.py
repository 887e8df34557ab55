"""Real processes in state D that wait for no file: memory map, vfork, freezer, memory limit."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.feeders.probe import ProbeContext, ProbeResult
from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.host.threads import Threads
from gpu_bottleneck_exporter.host.waits import Wait
from gpu_bottleneck_exporter.schedule import CADENCE
from support.groups import group, move, usable
from support.leftovers import mark
from support.programs import Program, program
from support.rows import rows
from support.waiting import until

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
CLONE = 56 if platform.machine() == "x86_64" else 220
VFORK = f"""
def vfork():
    CLONE_VFORK = 0x4000
    ctypes.CDLL(None).syscall({CLONE}, CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) or time.sleep(600)
"""
MAPS = """
import mmap
POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)
def maps(size, flags=0):
    while True:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags).close()
named("fills", lambda: maps(2**26, POPULATE))
named("also", lambda: maps(2**26, POPULATE))
"""
by_number = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="a system call is made by number"
)
LIMIT_BYTES = 64 * 2**20


def comes_to(one: Program, wait: Wait) -> None:
    reader = ProcessReader(PROC, one.pid)
    until(lambda: reader.wait() is wait, wait.value)
    reader.close()


@by_number
def test_a_parent_waits_until_its_child_calls_execve() -> None:
    with program(f"{VFORK}\nready(); vfork()") as process:
        comes_to(process, Wait.PROGRAM)


@by_number
def test_so_does_another_thread() -> None:
    with program(f"{VFORK}\nnamed('forks', vfork); ready(); locked()") as process:
        threads = Threads(PROC, process.pid)
        until(lambda: [t for t in threads.sample(0) if t.sample() is Wait.PROGRAM], "its wait")
        threads.close()


def test_threads_wait_for_each_others_changes_of_the_memory_map() -> None:
    with program(f"{MAPS}\nready(); maps(4096)") as process:
        comes_to(process, Wait.PROGRAM)


@rows(
    "code",
    {
        "runs": "ready(); burn()",
        "sleeps": "ready(); time.sleep(600)",
        "waits for a lock": "ready(); locked()",
        "polls": "ready(); select.select([os.pipe()[0]], [], [])",
        "reads a pipe": "ready(); os.read(os.pipe()[0], 1)",
    },
)
@pytest.mark.parametrize(
    ("hierarchy", "file", "frozen", "thawed"),
    [("freezer", "freezer.state", "FROZEN", "THAWED"), ("unified", "cgroup.freeze", "1", "0")],
)
def test_a_frozen_process_is_asleep_until_it_thaws(
    hierarchy: str, file: str, frozen: str, thawed: str, code: str
) -> None:
    root = usable(CGROUPS / hierarchy)
    around, now_ns = ProbeContext(holds=True), CADENCE.probe_ns
    with program(code) as process, group(root, mark().encode()) as folder:
        state = root / mark() / file
        main = FeederProcess(PROC, process.pid, AnswerTimeouts(60_000))
        move(process.pid, folder)

        def comes_to(condition: Callable[[ProbeResult], bool]) -> None:
            def look() -> bool:
                nonlocal now_ns
                now_ns += CADENCE.probe_ns
                return condition(main.probe(now_ns, around))

            until(look, "what it does")

        comes_to(lambda seen: seen.reason != Wait.FROZEN.value)
        state.write_text(frozen)
        comes_to(lambda seen: seen.first.rests and seen.reason == Wait.FROZEN.value)
        state.write_text(thawed)
        comes_to(lambda seen: seen.reason != Wait.FROZEN.value)
        main.close()
        process.end()


def test_out_of_memory_is_no_wait_for_a_file() -> None:
    root = usable(CGROUPS / "memory")
    code = "ready(); told(); kept = bytearray(2**30); ready()"
    with program(code) as process, group(root, mark().encode()) as folder:
        limit = root / mark() / "memory.limit_in_bytes"
        if not limit.exists():
            pytest.skip("its memory is limited by cgroup v2, which kills")
        limit.write_text(f"{LIMIT_BYTES}")
        (root / mark() / "memory.oom_control").write_text("1")
        move(process.pid, folder)
        process.tell()
        comes_to(process, Wait.MEMORY)
        process.end()
