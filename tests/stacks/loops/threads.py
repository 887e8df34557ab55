"""Work in threads of the main process, and in BLAS: `python -m stacks.loops.threads HOW`.

zlib and numpy release the interpreter lock while they work, as image decoders do.
"""

# ruff: noqa: PLC0415 - only BLAS needs numpy
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import ctypes
import os
import threading
import time
import zlib
from functools import partial
from typing import NoReturn

from stacks.loops.common import MEBIBYTE, QUICK, WAIT, Load, burn, prefetched, together, workers
from stacks.loops.gpu import STEP, hold

_CORES = os.cpu_count() or 2
_PR_SET_NAME = 15


def decoding(seconds: float = WAIT) -> Load:
    """Decompress for `seconds` of CPU time."""
    packed = zlib.compress(os.urandom(MEBIBYTE // 2) + bytes(8 * MEBIBYTE), 1)

    def load() -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            zlib.decompress(packed)

    return load


def autograd(load: Load | None = None) -> NoReturn:
    """The main thread waits while autograd's thread runs Python (hooks, custom functions)."""
    gpu = hold()
    wanted, done = threading.Semaphore(0), threading.Semaphore(0)

    def backward() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"pt_autograd_0")
        while True:
            wanted.acquire()
            burn(WAIT)
            gpu.run(STEP)
            done.release()

    threading.Thread(target=backward, daemon=True).start()
    while True:
        if load:
            load()
        wanted.release()
        done.acquire()


def blas(threads: int = _CORES, cpu_seconds: float = 2 * WAIT) -> Load:
    """Matrix products in this many threads."""
    os.environ["OPENBLAS_NUM_THREADS"] = f"{threads}"
    import numpy as np

    matrix = np.random.default_rng(0).random((700, 700))
    began = time.process_time()
    matrix @ matrix
    count = max(1, round(cpu_seconds / (time.process_time() - began)))
    return lambda: [matrix @ matrix for _ in range(count)]


# The main thread waits for decoding threads: it lacks more of them, or workers.
LOOPS = {
    "decoder": lambda: prefetched(decoding()),
    "decoders": lambda: together(decoding(), 2),
    "crowd": lambda: together(decoding(), 4 * _CORES),
    "prefetched": lambda: prefetched(decoding(QUICK)),
    "autograd": autograd,
    "autograd-workers": lambda: autograd(workers(lambda: partial(burn, QUICK))),
    "blas": blas,
    "blas-worker": lambda: workers(partial(blas, 1, WAIT), 1),
    "decode-here": decoding,
}
