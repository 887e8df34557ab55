"""Whether a client accepts gzip, and compression once per body."""

from __future__ import annotations

import gzip
from functools import lru_cache

from gpu_bottleneck_exporter.exposition.accept import weights

GZIP_LEVEL = 4
"""On exposition text, nearly as small as level 9 for a fraction of the CPU time."""


def allows_gzip(accept_encoding: str) -> bool:
    """Read an Accept-Encoding header.

    Args:
        accept_encoding: The header's value, "" if there was none.

    Returns:
        Whether gzip is allowed: named with a weight above zero or, if not named, covered by
        a "*" with such a weight.
    """
    weighed = weights(accept_encoding)
    named = [weighed[coding] for coding in ("gzip", "x-gzip") if coding in weighed]
    return min(named, default=weighed.get("*", 0.0)) > 0


@lru_cache(maxsize=1)
def gzipped(body: bytes) -> bytes:
    """Compresses a body, or answers from memory when it is the last one again.

    Two scrapers of one snapshot get the same bytes object, which is compressed once.
    """
    return gzip.compress(body, GZIP_LEVEL, mtime=0)
