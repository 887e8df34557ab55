"""Programs that block, burn CPU and talk on command, and are gone at the end of a test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpu_bottleneck_exporter.host.process import ProcessReader, Started
from support.rights import AS_WE_ARE, Way

PRELUDE = """
import ctypes, os, select, signal, socket, struct, subprocess, sys, threading, time

ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: also when a run is killed

def named(name, do):
    "Start a thread that calls `do`; returns once it has its `name`."
    called = threading.Event()
    def run():
        ctypes.CDLL(None).prctl(15, name if isinstance(name, bytes) else name.encode(), 0, 0, 0)
        called.set()
        do()
    threading.Thread(target=run, daemon=True).start()
    called.wait()

def burn():
    while True:
        pass

def locked():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def ready(*words):
    print(*words, flush=True)

def told():
    "The next line of the test."
    return sys.stdin.readline().strip()

def connect(port, timeout=None, host="127.0.0.1"):
    connection = socket.create_connection((host, port))
    connection.settimeout(timeout)
    return connection

"""


class Program:
    """A process that runs given code, in its own session."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.words: list[str] = []
        """Words printed when it was ready."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, line: str = "") -> None:
        """Give it its next line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def hear(self) -> list[str]:
        """The words of its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().split()

    def ask(self, line: str = "") -> list[str]:
        """Give it its next line; the words of its answer."""
        self.tell(line)
        return self.hear()

    def end(self) -> None:
        """Kill it and whatever of its session is still in its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with self.process:
            pass


@contextmanager
def program(code: str, *arguments: object, way: Way = AS_WE_ARE) -> Iterator[Program]:
    """A process that runs `code`, once it has called `ready`."""
    command = (*way, sys.executable, "-c", PRELUDE + code, *map(str, arguments))
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
    result = Program(process)
    try:
        result.words = result.hear()
        yield result
    finally:
        result.end()


def words(code: str, *arguments: object, way: Way = AS_WE_ARE) -> list[str]:
    """Words of `code` when it is ready."""
    with program(code, *arguments, way=way) as process:
        return process.words


def started(pid: int) -> Started:
    """Process `pid` and its start, which is None if it has ended."""
    return pid, ProcessReader(Path("/proc"), pid).started_ticks


def ended() -> int:
    """The pid of a process that is gone."""
    with program("") as process:
        return process.pid


@contextmanager
def shell(environment: Mapping[str, str], user: int | None = None) -> Iterator[int]:
    """The pid of a shell with this environment, for users who cannot read our interpreter."""
    command, pipe = ["/bin/sh", "-c", "echo; read line"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, user=user) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # once it has its own environment and no longer ours
            yield process.pid
        finally:
            process.kill()


def descriptors() -> set[tuple[str, str]]:
    """Our own open descriptors: number and target."""
    values = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            values.add((link.name, str(link.readlink()).removesuffix(" (deleted)")))
    return {(name, target) for name, target in values if not target.endswith("/fd")}
