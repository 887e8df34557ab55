"""Giving memory back to the kernel."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

MANY = 64
"""Connections whose memory is worth a look: 1 to 5 MiB."""


class AfterTheRush:
    """Gives memory back when most of many connections are gone.

    What OpenSSL freed stays with the process otherwise: glibc gives back the end of its
    heap only, and some small thing that is still used lies there. After 500 handshakes
    that is 30 MiB.
    """

    def __init__(self, give_back: Callable[[], object] | None = None) -> None:
        self._give_back = give_back or _trim()
        self._most = 0

    def came(self, connections: int) -> None:
        """Takes note that there are so many connections now."""
        self._most = max(self._most, connections)

    def look(self, connections: int) -> None:
        """Gives memory back, in a few ms, if there are far fewer than there have been."""
        if self._most >= MANY and connections < self._most // 2:
            self._most = connections
            self._give_back()


@functools.cache
def _trim() -> Callable[[], object]:
    """malloc_trim(3); nothing where the C library, such as musl, has none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return functools.partial(trim, 0) if trim is not None else bool
