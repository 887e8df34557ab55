"""Processes that end with the process that started them, however it ends, and their names."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends (PR_SET_PDEATHSIG).

    `parent` is the pid of that thread's process, which may have ended already.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        sys.exit(1)


def name_process(name: str) -> None:
    """Give this process `name`, of which the kernel keeps 15 characters."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())
