"""Whether a client takes gzip, and gzip made once per body."""

from __future__ import annotations

import gzip

from gpu_bottleneck_exporter.web.accept import weights

GZIP_LEVEL = 4
"""On exposition text level 4 is near level 9 in size at a fraction of its CPU time."""


def allows_gzip(accept_encoding: str) -> bool:
    """Reads an Accept-Encoding header.

    Args:
        accept_encoding: The header's value, "" when there was none.

    Returns:
        Whether gzip is allowed: named with a weight above zero or, when it is not
        named, covered by such a "*".
    """
    weighed = weights(accept_encoding)
    named = [weighed[coding] for coding in ("gzip", "x-gzip") if coding in weighed]
    return min(named, default=weighed.get("*", 0.0)) > 0


class LastGzip:
    """Compresses bodies and keeps the newest result.

    Two scrapers of one snapshot get the very same bytes object; it is compressed once.
    """

    def __init__(self) -> None:
        self._body = b""
        self._packed = b""

    def pack(self, body: bytes) -> bytes:
        """Compresses a body, or answers from memory when it is the last one again.

        Not thread-safe: the caller has a single thread for it.
        """
        if body is not self._body or not self._packed:
            self._packed = gzip.compress(body, GZIP_LEVEL, mtime=0)
            self._body = body
        return self._packed
