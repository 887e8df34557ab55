"""Processes that do nothing, each in its own way: `python -m stacks.loops.asleep HOW`."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import threading
import time
from collections.abc import Callable

from stacks.loops.common import QUICK, WAIT
from stacks.loops.gpu import hold, pause, train, warm


def prompt() -> None:
    """A terminal where nobody types."""
    child, terminal = pty.fork()
    if not child:
        warm(hold())
        input("continue? ")
    while True:
        os.read(terminal, 100)


WAITS: dict[str, Callable[[], object]] = {
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "event": threading.Event().wait,
    "loop": lambda: asyncio.run(asyncio.sleep(10**6)),
    "pipe": lambda: os.read(os.pipe()[0], 1),
}
"""What a process that has worked waits for."""
LOOPS: dict[str, Callable[[], object]] = {
    "sleep": lambda: train(lambda: time.sleep(2 * WAIT)),
    "quick": lambda: train(lambda: time.sleep(QUICK)),  # less than the GPU works on a step
    "prompt": prompt,
}


def main(how: str) -> None:
    """Wait forever."""
    if how in WAITS:
        warm(hold())
    (WAITS | LOOPS)[how]()
    pause()
