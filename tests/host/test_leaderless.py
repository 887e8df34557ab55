"""A process whose first thread has ended (pthread_exit in main) is all its other threads."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.feeders.probe import ProbeContext
from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.usage import private_bytes
from gpu_bottleneck_exporter.host.cgroup import hierarchy
from gpu_bottleneck_exporter.host.environment import variables
from gpu_bottleneck_exporter.host.process import (
    ProcessReader,
    command_line,
    control_groups,
    living_thread,
    network_namespace,
    stat_of,
)
from gpu_bottleneck_exporter.host.waits import Wait
from support.programs import Program, program
from support.waiting import PATIENCE_SECONDS, until

PROC = Path("/proc")
BURNS = "threading.Thread(target=burn, daemon=True).start()\n"
ASKS = """
server = socket.create_server(("127.0.0.1", 0))
def ask():
    c = socket.create_connection(server.getsockname())
    while True:
        c.send(b"?"); c.recv(1)
threading.Thread(target=ask, daemon=True).start()
time.sleep(0.1)
"""
VFORKS = """
ready()
if not ctypes.CDLL(None).vfork():
    time.sleep(600)
"""
TRACES = """
ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0)  # PTRACE_ATTACH
os.waitpid(int(sys.argv[1]), 0)
ready(); told()
"""
LEAVES = "ready(); told(); ctypes.CDLL(None).pthread_exit(0)"


@pytest.fixture
def leaderless(request: pytest.FixtureRequest) -> Iterator[Program]:
    """A process that runs the given code, and whose first thread has then ended."""
    with program(request.param + LEAVES) as process:
        process.tell()
        until(lambda: (stat := stat_of(PROC, process.pid)) and stat.state == "Z", "its zombie")
        yield process


def comes_to_do(one: Program, activity: Activity) -> None:
    """Probe the process until as a whole it does `activity`."""
    process = FeederProcess(PROC, one.pid, AnswerTimeouts(int(PATIENCE_SECONDS * 1000)))
    around = ProbeContext(holds=True)

    def does() -> bool:
        return process.probe(time.monotonic_ns(), around).whole is activity

    try:
        until(does, f"that it does {activity.value}")
        assert process.count() is not None
    finally:
        process.close()


@pytest.mark.parametrize("leaderless", [BURNS], indirect=True)
def test_it_lives_until_its_last_thread_has_ended(leaderless: Program) -> None:
    reader = ProcessReader(PROC, leaderless.pid)
    stat = reader.stat()
    assert stat is not None
    assert (stat.state, stat.ended, stat.leaderless) == ("Z", False, True)
    assert reader.wait() is Wait.LOCK, "it waits for its other threads"
    leaderless.process.kill()
    until(lambda: reader.wait() is Wait.GONE, "the end of all threads")
    last = reader.stat()
    assert last is None or last.ended
    reader.close()


@pytest.mark.parametrize("leaderless", [BURNS], indirect=True)
def test_its_memory_is_read_through_a_living_thread(leaderless: Program) -> None:
    pid = leaderless.pid
    assert living_thread(PROC, pid) != pid
    assert "pthread_exit" in command_line(PROC, pid).text
    assert variables(PROC, pid, ("PATH",))
    assert private_bytes(PROC, pid)
    assert network_namespace(PROC, pid) == network_namespace(PROC, os.getpid())


@pytest.mark.parametrize("leaderless", [BURNS, ASKS], indirect=True, ids=["burns", "asks"])
def test_a_leaderless_process_has_the_state_of_its_other_threads(
    leaderless: Program, request: pytest.FixtureRequest
) -> None:
    asks = request.node.name.endswith("[asks]")
    comes_to_do(leaderless, Activity.NETWORK if asks else Activity.RUN)


@pytest.mark.parametrize("leaderless", [BURNS], indirect=True)
def test_its_control_groups_are_those_of_a_living_thread(leaderless: Program) -> None:
    mount = hierarchy(Path("/sys"), "cpu,cpuacct")
    if mount is None or not (mount / "tasks").exists():
        pytest.skip("no cgroup v1: the kernel keeps a zombie's group under v2")
    group = mount / f"test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(f"{leaderless.pid}")
        assert f"/{group.name}\n" in (control_groups(PROC, leaderless.pid) or "")
    finally:
        leaderless.end()
        until(lambda: not (group / "cgroup.procs").read_text(), "an empty group")
        group.rmdir()


def test_a_leader_stopped_by_a_debugger_has_the_state_of_its_other_threads() -> None:
    """Gdb does so in non-stop mode, and a tracer that a job starts for itself."""
    with program(BURNS + "ready(); told()") as process, program(TRACES, process.pid):
        reader = ProcessReader(PROC, process.pid)
        assert reader.wait() is Wait.STOPPED
        reader.close()
        comes_to_do(process, Activity.RUN)


def test_one_that_waits_for_a_child_of_vfork_waits_for_no_file() -> None:
    """The parent is in state D until the child calls execve."""
    with program(VFORKS) as process:
        reader = ProcessReader(PROC, process.pid)
        until(lambda: reader.wait() is Wait.PROGRAM, "its wait for the child")
        reader.close()
