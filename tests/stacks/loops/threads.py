"""Work in threads of the main process, and in BLAS: `python -m stacks.loops.threads HOW`.

zlib and numpy release the interpreter lock while they work, as image decoders do.
"""

# ruff: noqa: PLC0415 - only BLAS needs numpy
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial

from stacks.loops.common import (
    MEBIBYTE,
    QUICK,
    STEP,
    WAIT,
    Load,
    burn,
    hold,
    name_thread,
    prefetched,
    together,
    train,
    workers,
)

CROWD = 4 * (os.cpu_count() or 2)


def decoding(seconds: float = WAIT) -> Load:
    """Decompress for `seconds` of CPU time."""
    packed = zlib.compress(os.urandom(MEBIBYTE // 2) + bytes(8 * MEBIBYTE), 1)

    def load() -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            zlib.decompress(packed)

    return load


def autograd(load: Load | None = None) -> None:
    """The main thread waits while autograd's thread runs Python (hooks, custom functions)."""
    gpu = hold()
    wanted, done = threading.Semaphore(0), threading.Semaphore(0)

    def backward() -> None:
        name_thread("pt_autograd_0")
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


def blas(threads: int, cpu_seconds: float = WAIT) -> Load:
    """Matrix products in this many threads."""
    os.environ["OPENBLAS_NUM_THREADS"] = f"{threads}"
    import numpy as np

    matrix = np.random.default_rng(0).random((700, 700))
    began = time.process_time()
    matrix @ matrix
    count = max(1, round(cpu_seconds / (time.process_time() - began)))
    return lambda: [matrix @ matrix for _ in range(count)]


HOW: dict[str, Callable[[], object]] = {
    # The main thread waits for decoding threads: it lacks more of them, or workers.
    "decoder": lambda: train(prefetched(decoding())),
    "python-decoder": lambda: train(prefetched(lambda: burn(WAIT))),
    "decoders": lambda: train(together(decoding(), 2)),
    "crowd": lambda: train(together(decoding(), CROWD)),
    "prefetched": lambda: train(prefetched(decoding(QUICK))),
    "autograd": autograd,
    "autograd-workers": lambda: autograd(workers(lambda: partial(burn, QUICK))),
    "blas": lambda: train(blas(os.cpu_count() or 2, 2 * WAIT)),
    "blas-1": lambda: train(blas(1)),
    "blas-worker": lambda: train(workers(lambda: blas(1), 1)),
    "blas-workers": lambda: train(workers(lambda: blas(2, 2 * WAIT), 4)),
    "blas-prefetched": lambda: train(lambda: burn(0.0)),
    "decode-here": lambda: train(decoding()),
}

if __name__ == "__main__":
    HOW[sys.argv[1]]()
