"""Detects the exit of processes by pidfds."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpu_bottleneck_exporter.host.descriptors import open_pidfd
from gpu_bottleneck_exporter.host.files import FileLimitError
from gpu_bottleneck_exporter.host.sockets import same_pids

_MAX_PIDFDS = 1024
"""Processes watched at once; other exits are detected at a tick."""


class ExitWatch:
    """A callback for the exit of each process. Not thread-safe, except for `wait` and `wake`."""

    def __init__(self, proc: Path) -> None:
        """A watch without pidfds if `proc` belongs to another PID namespace."""
        self._same_pids = same_pids(proc)
        self._callbacks: dict[int | None, Callable[[], None]] = {}
        """Callbacks by pidfd."""
        self._epoll = select.epoll()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._woken, select.EPOLLIN)

    def watch(self, pid: int, exited: Callable[[], None]) -> int | None:
        """Have `notify` call `exited` after the exit, at once if it has exited.

        Returns a pidfd, if possible.
        """
        pidfd = None
        if self._same_pids and len(self._callbacks) < _MAX_PIDFDS:
            with suppress(OSError, ValueError, FileLimitError):  # the epoll may be closed
                pidfd = open_pidfd(pid)
                if pidfd is None:
                    exited()
                else:
                    self._callbacks[pidfd] = exited
                    self._epoll.register(pidfd, select.EPOLLIN)
        return pidfd

    def unwatch(self, pidfd: int | None) -> None:
        """Close a pidfd that `watch` returned, unless it is closed."""
        if self._callbacks.pop(pidfd, None) and pidfd:
            os.close(pidfd)

    def wait(self, timeout_seconds: float) -> None:
        """Wait until a process exits, or until `wake`."""
        self._epoll.poll(timeout_seconds)
        with suppress(BlockingIOError):
            os.eventfd_read(self._woken)

    def wake(self) -> None:
        """End the current or next `wait`."""
        os.eventfd_write(self._woken, 1)

    def notify(self) -> None:
        """Call back for each exited process."""
        # A pidfd's number may be reused.
        for pidfd in self._callbacks.keys() & {fd for fd, _ in self._epoll.poll(0)}:
            self._callbacks[pidfd]()

    def close(self) -> None:
        """Close all but the descriptor of `wake`, which may still be called."""
        self._epoll.close()
        for pidfd in [*self._callbacks]:
            self.unwatch(pidfd)
