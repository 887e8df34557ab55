"""Resource limits of a process, used up."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def all_in_use(but: int = 0) -> Iterator[Callable[[], None]]:
    """Keep all descriptors open that this process may have, except `but` of them.

    The block gets a function that takes those which others have closed since.
    """
    gc.collect()  # or what it closes meanwhile makes room
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(link.name) for link in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    taken = list[int]()

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))

    try:
        take()
        for _ in range(but):
            os.close(taken.pop())
        yield take
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def numbers_of_the_next(count: int) -> list[int]:
    """Descriptors that this number of files would have if they were opened now."""
    descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
    for descriptor in descriptors:
        os.close(descriptor)
    return descriptors
