"""Lifetime and name of child processes."""

import ctypes
import os
import signal
import sys


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    `parent`: pid of that thread's process, which may have exited already.
    """
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def name_process(name: str) -> None:
    """Set this process's name, truncated by the kernel to 15 characters."""
    pr_set_name = 15
    ctypes.CDLL(None).prctl(pr_set_name, name.encode())
