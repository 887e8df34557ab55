"""Processes that do nothing, each in its own way: `python -m stacks.loops.asleep HOW`."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from stacks.loops.common import QUICK, WAIT, Load, hold, pause, train, warm, workers

_FOREVER = 10**6


def sleep_between() -> None:
    """Sleeps before each step."""
    train(lambda: time.sleep(2 * WAIT))


def stopped() -> None:
    """A stopped process."""
    _warm()
    os.kill(os.getpid(), signal.SIGSTOP)


def wait_for_event() -> None:
    """An event that nobody sets."""
    _warm()
    threading.Event().wait()


def wait_for_lock() -> None:
    """A lock that the process holds itself."""
    _warm()
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def wait_with_timeout() -> None:
    """Polls for something to do."""
    _warm()
    while not threading.Event().wait(0.5):
        pass


def deadlock() -> None:
    """Two threads, each with the lock that the other waits for; the main one waits for both."""
    _warm()
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


def wait_for_child() -> None:
    """A child that sleeps."""
    _warm()
    subprocess.run(["sleep", f"{_FOREVER}"], check=True)


def wait_for_signal() -> None:
    """A signal that never comes."""
    _warm()
    signal.pause()


def event_loop() -> None:
    """An idle event loop."""
    _warm()
    asyncio.run(asyncio.sleep(_FOREVER))


def wait_for_pipe() -> None:
    """Its input, from a program that writes nothing."""
    source, _ = os.pipe()
    _warm()
    os.read(source, 1)


def poll_pipe() -> None:
    """The same input, in poll."""
    source, _ = os.pipe()
    _warm()
    select.select([source], [], [])


def prompt() -> None:
    """A terminal where nobody types."""
    child, terminal = pty.fork()
    if not child:
        _warm()
        input("continue? ")
    while True:
        os.read(terminal, 100)


def workers_locked() -> None:
    """Loader workers that wait for a lock, and a main loop that waits for them."""
    locks = [threading.Lock()]

    def start() -> Load:
        locks[0].acquire()
        return locks[0].acquire

    batches = workers(start)
    _warm()
    batches()


def _warm() -> None:
    warm(hold())


def sleep_quickly() -> None:
    """Sleeps too, but less than the GPU works on a step."""
    train(lambda: time.sleep(QUICK))


HOW: dict[str, Callable[[], None]] = {
    "sleep": sleep_between,
    "quick": sleep_quickly,
    "stopped": stopped,
    "event": wait_for_event,
    "lock": wait_for_lock,
    "timeout": wait_with_timeout,
    "deadlock": deadlock,
    "child": wait_for_child,
    "signal": wait_for_signal,
    "loop": event_loop,
    "pipe": wait_for_pipe,
    "poll-pipe": poll_pipe,
    "prompt": prompt,
    "workers": workers_locked,
}

if __name__ == "__main__":
    HOW[sys.argv[1]]()
    pause()
