"""Processes that do nothing, each in its own way: `python -m stacks.loops.asleep HOW`."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable

from stacks.loops.common import QUICK, WAIT, Load, workers
from stacks.loops.gpu import hold, pause, train, warm

_FOREVER = 10**6


def lock() -> None:
    """A lock that the process holds itself."""
    held = threading.Lock()
    held.acquire()
    held.acquire()


def timeout() -> None:
    """Polls for something to do."""
    while not threading.Event().wait(0.5):
        pass


def deadlock() -> None:
    """Two threads, each with the lock that the other waits for; the main one waits for both."""
    locks = threading.Lock(), threading.Lock()

    def take(first: threading.Lock, second: threading.Lock) -> None:
        with first:
            time.sleep(0.2)
            with second:
                pass

    threads = [
        threading.Thread(target=take, args=pair, daemon=True) for pair in (locks, locks[::-1])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def prompt() -> None:
    """A terminal where nobody types."""
    child, terminal = pty.fork()
    if not child:
        warm(hold())
        input("continue? ")
    while True:
        os.read(terminal, 100)


def locked_workers() -> None:
    """Loader workers that wait for a lock, and a main loop that waits for them."""
    held = threading.Lock()

    def start() -> Load:
        held.acquire()
        return held.acquire

    batches = workers(start)
    warm(hold())
    batches()


WAITS: dict[str, Callable[[], object]] = {
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "event": threading.Event().wait,
    "lock": lock,
    "timeout": timeout,
    "deadlock": deadlock,
    "child": lambda: subprocess.run(["sleep", f"{_FOREVER}"], check=True),
    "signal": signal.pause,
    "loop": lambda: asyncio.run(asyncio.sleep(_FOREVER)),
    "pipe": lambda: os.read(os.pipe()[0], 1),
    "poll-pipe": lambda: select.select([os.pipe()[0]], [], []),
}
"""What a process that has worked waits for."""
LOOPS: dict[str, Callable[[], object]] = {
    "sleep": lambda: train(lambda: time.sleep(2 * WAIT)),
    "quick": lambda: train(lambda: time.sleep(QUICK)),  # less than the GPU works on a step
    "prompt": prompt,
    "workers": locked_workers,
}


def main(how: str) -> None:
    """Wait forever."""
    if how in WAITS:
        warm(hold())
    (WAITS | LOOPS)[how]()
    pause()
