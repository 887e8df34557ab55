"""grain, and JAX: `python -m stacks.loops.grained HOW`."""

# ruff: noqa: PLC0415 - each case imports its own library and no other
# mypy: disable-error-code="import-not-found,import-untyped,misc"

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from stacks.loops.common import QUICK, WAIT, Load, burn, fetch
from stacks.loops.gpu import run

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
    fetch()
    return number


def threads(prepare: Callable[[int], int] = burning, count: int = 1) -> Load:
    """Read and mapped by threads of the process."""
    import grain

    data = grain.MapDataset.range(_MANY).map(prepare)
    options = grain.ReadOptions(num_threads=count, prefetch_buffer_size=max(count, 1))
    return iter(data.to_iter_dataset(options)).__next__  # type: ignore[no-any-return,unused-ignore]


def processes(prepare: Callable[[int], int] = burning) -> Load:
    """Mapped by a worker process."""
    import grain

    data = grain.MapDataset.range(_MANY).map(prepare)
    inside = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
    options = grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=1)
    batches = iter(data.to_iter_dataset(inside).mp_prefetch(options))
    return batches.__next__  # type: ignore[no-any-return,unused-ignore]


threads_fetch = partial(threads, fetching)
inline = partial(threads, count=0)
healthy = partial(processes, quick)


def jax_step() -> Load:
    """Python between jitted steps."""
    import jax

    step = jax.jit(lambda values: values * 2)
    values = jax.numpy.ones(64)

    def load() -> object:
        burn(WAIT)
        return step(values).block_until_ready()

    return load


def main(name: str) -> None:
    """Train forever."""
    from absl import flags

    flags.FLAGS(sys.argv[:1])  # grain's worker processes ask for parsed flags
    run(globals(), name)
