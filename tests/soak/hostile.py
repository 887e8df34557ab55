"""Fifty processes that shape what is read of them to do harm, on all GPUs in turn.

    python tests/soak/hostile.py PARENT BOARD SEED

Each does one of `KINDS` for ever, and holds a GPU for a while, again and again. A separate process,
as it forks and so must have one thread. It ends with its parent, and its children with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gpu_bottleneck_exporter.demo.orphans import die_with_parent
from support.board import Board

COUNT = 50
STEP_SECONDS = 0.02
LIVES_SECONDS = 20.0
"""Mean life of a process, after which another one of its kind takes its place."""
_SLOW_SECONDS = 0.2
"""Time in which slow memory answers: less than what a read is given."""
_USERFAULTFD = {"x86_64": 323, "aarch64": 282}[os.uname().machine]
_API, _REGISTER, _ZERO = 0xC018AA3F, 0xC020AA00, 0xC020AA04
_libc = ctypes.CDLL(None, use_errno=True)


def _spin() -> None:
    while True:
        sum(range(2_000))
        time.sleep(0.01)


def numbered() -> None:
    """Code whose line number has thousands of digits."""
    table = bytes([0x80 | 13 << 3 | 7, *[0x7F] * 10_000, 0x3F])
    spin = _spin.__code__.replace(co_linetable=table * 20)
    exec(spin)  # noqa: S102


def nameless() -> None:
    """Code of a file without a name, then of one with a name that cannot be printed."""
    text = "def work():\n while True:\n  sum(range(2000)); pause(0.01)\nwork()"
    name = random.choice(["", "\x1b[2J", "\x7f", "\u202e" * 600])  # noqa: S311
    exec(compile(text, name, "exec"), {"pause": time.sleep})  # noqa: S102


def deep() -> None:
    """Ninety deep stacks, whose functions have new names all the time."""

    def descend(left: int) -> None:
        if left:
            descend(left - 1)
        else:
            time.sleep(0.5)

    def repeat() -> None:
        while True:
            name = f"{random.getrandbits(64):x}" * 40
            descend.__code__ = descend.__code__.replace(co_name=name, co_filename=name)
            descend(150)

    threading.stack_size(1 << 20)
    for _ in range(90):
        threading.Thread(target=repeat, daemon=True).start()
    _spin()


def leaderless() -> None:
    """A process whose first thread has ended."""
    threading.Thread(target=_spin).start()
    _libc.pthread_exit(None)


def _polling(answers: Callable[[int], float | None]) -> None:
    """A thread in poll, whose arguments lie in memory that a userfaultfd serves.

    `answers`: after how many seconds the page comes at the n-th time; None: never.
    """
    _libc.mmap.restype = ctypes.c_void_p
    page = int(_libc.mmap(None, ctypes.c_size_t(mmap.PAGESIZE), 3, 0x22, -1, ctypes.c_long(0)))
    fault = _libc.syscall(_USERFAULTFD, 0)
    for request, words in ((_API, (0xAA, 0, 0)), (_REGISTER, (page, mmap.PAGESIZE, 1, 0))):
        if _libc.ioctl(fault, ctypes.c_ulong(request), (ctypes.c_uint64 * len(words))(*words)):
            raise OSError(ctypes.get_errno(), "no userfaultfd")

    def poll() -> None:
        while True:  # the array is all zeros: it waits for standard input
            _libc.poll(ctypes.c_void_p(page), ctypes.c_ulong(1), -1)

    sys.stdin.close()
    os.dup2(os.pipe()[0], 0)
    threading.Thread(target=poll, daemon=True).start()
    for number in itertools.count():
        os.read(fault, 32)
        if (delay := answers(number)) is None:
            break
        time.sleep(delay)
        zero = (ctypes.c_uint64 * 4)(page, mmap.PAGESIZE, 0, 0)
        _libc.ioctl(fault, ctypes.c_ulong(_ZERO), zero)
        time.sleep(0.001)
        _libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), mmap.MADV_DONTNEED)
    signal.pause()


def slow() -> None:
    """Arguments of poll that can be read after `_SLOW_SECONDS` each time."""
    _polling(lambda number: _SLOW_SECONDS if number else 0.0)


def silent() -> None:
    """Arguments of poll that can never be read."""
    _polling(lambda number: None if number else 0.0)


def forking() -> None:
    """Children and threads that live for a moment."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if os.fork() == 0:
            time.sleep(0.05)
            os._exit(0)
        threading.Thread(target=time.sleep, args=(0.05,), daemon=True).start()
        time.sleep(0.1)


def connecting() -> None:
    """Sockets that come and go, some with clients that never send a whole request."""
    while True:
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(20):
                client = socket.create_connection(listener.getsockname())
                stack.enter_context(client).send(b"GET / HTTP/1.1\r\n")
                stack.enter_context(listener.accept()[0])
            time.sleep(0.5)


def posing() -> None:
    """The name, the number and the meeting place of other jobs."""
    numbers = {"SLURM_JOB_ID": f"{os.getpid() % 10}", "MASTER_PORT": "1", "WORLD_SIZE": "2"}
    variables = {**numbers, "MASTER_ADDR": "localhost", "X" * 60_000: "y" * 60_000}
    name = "import ctypes, time\nctypes.CDLL(None).prctl(15, b') Z 1 1 1\\n')\n"
    arguments = ["-c", f"{name}while True: time.sleep(0.01)", "slurmstepd: [7.0]" * 7000]
    os.execve(sys.executable, [sys.executable, *arguments], variables)  # noqa: S606


KINDS: Mapping[str, Callable[[], None]] = {
    one.__name__: one
    for one in (numbered, nameless, deep, leaderless, slow, silent, forking, connecting, posing)
}


def _born(kind: str) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        die_with_parent(parent)
        with contextlib.suppress(OSError):
            KINDS[kind]()
        os._exit(1)
    return pid


def _end(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def main(parent: int, path: Path, seed: int) -> None:
    """Do harm until SIGTERM."""
    die_with_parent(parent)
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    board, chance = Board(path), random.Random(seed)  # noqa: S311 - to be the same again
    kinds = [[*KINDS][number % len(KINDS)] for number in range(COUNT)]
    pids = [_born(kind) for kind in kinds]
    holds: dict[int, int] = {}
    while not ended:
        number = chance.randrange(COUNT)
        if (gpu := holds.pop(number, None)) is not None:
            board.gpus[gpu].release(pids[number])
        elif chance.random() < STEP_SECONDS * COUNT / LIVES_SECONDS:
            _end(pids[number])
            pids[number] = _born(kinds[number])
        else:
            holds[number] = chance.randrange(len(board.gpus))
            board.gpus[holds[number]].hold(pids[number], 2**20)
        time.sleep(STEP_SECONDS)
    for number, gpu in holds.items():
        board.gpus[gpu].release(pids[number])
    for pid in pids:
        _end(pid)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
