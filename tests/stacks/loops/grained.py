"""grain, and JAX: `python -m stacks.loops.grained HOW`."""

# ruff: noqa: PLC0415 - each case imports its own library and no other
# mypy: disable-error-code="import-not-found,import-untyped,misc"

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from stacks.loops.common import QUICK, WAIT, Load, burn, slow, train, url

_MANY = 10**6


def burning(number: int) -> int:
    """A sample that takes Python's time."""
    burn(WAIT)
    return number


def quick(number: int) -> int:
    """A sample that takes hardly any."""
    burn(QUICK)
    return number


def fetching(number: int) -> int:
    """A sample from a server that answers late."""
    with urllib.request.urlopen(url(slow()), timeout=30) as answer:
        answer.read()
    return number


def threads(prepare: Callable[[int], int], count: int) -> Iterator[Any]:
    """Read and mapped by threads of the process."""
    import grain

    data = grain.MapDataset.range(_MANY).map(prepare)
    options = grain.ReadOptions(num_threads=count, prefetch_buffer_size=max(count, 1))
    return iter(data.to_iter_dataset(options))


def processes(prepare: Callable[[int], int], count: int) -> Iterator[Any]:
    """Mapped by worker processes."""
    import grain

    data = grain.MapDataset.range(_MANY).map(prepare)
    inside = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
    options = grain.MultiprocessingOptions(num_workers=count, per_worker_buffer_size=1)
    return iter(data.to_iter_dataset(inside).mp_prefetch(options))


def jax_loop() -> Load:
    """Python between jitted steps."""
    import jax

    step = jax.jit(lambda values: values * 2)
    values = jax.numpy.ones(64)

    def load() -> object:
        burn(WAIT)
        return step(values).block_until_ready()

    return load


def _next(batches: Iterator[Any]) -> Load:
    return lambda: next(batches)


HOW: dict[str, Callable[[], Load]] = {
    "threads": lambda: _next(threads(burning, 1)),
    "threads-fetch": lambda: _next(threads(fetching, 1)),
    "inline": lambda: _next(threads(burning, 0)),
    "processes": lambda: _next(processes(burning, 1)),
    "processes-fetch": lambda: _next(processes(fetching, 1)),
    "healthy": lambda: _next(processes(quick, 1)),
    "jax": jax_loop,
}

if __name__ == "__main__":
    from absl import flags

    flags.FLAGS(sys.argv[:1])  # grain's worker processes ask for parsed flags
    train(HOW[sys.argv[1]]())
