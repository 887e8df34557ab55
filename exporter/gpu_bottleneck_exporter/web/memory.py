"""Returns freed memory to the kernel."""

from __future__ import annotations

import ctypes

MANY = 64
"""Connections whose memory is worth returning: 1 to 5 MiB."""


class AfterTheRush:
    """Returns memory once most of many connections have closed.

    What OpenSSL has freed would otherwise stay with the process: glibc returns only the end of
    its heap, where some small allocation is still in use. After 500 handshakes that is 30 MiB.
    """

    def __init__(self) -> None:
        self._most = 0

    def came(self, connections: int) -> None:
        """Note how many connections there are now."""
        self._most = max(self._most, connections)

    def look(self, connections: int) -> None:
        """Return memory if far fewer connections are left than there were; takes a few ms."""
        if self._most >= MANY and connections < self._most // 2:
            self._most = connections
            _trim()


def _trim() -> None:
    """malloc_trim(3), or a no-op if the C library, such as musl, has none."""
    getattr(ctypes.CDLL(None), "malloc_trim", bool)(0)
