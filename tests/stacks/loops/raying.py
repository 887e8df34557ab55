"""Ray: `python -m stacks.loops.raying HOW`.

Actors, tasks and data workers are not children of the process that holds the GPU: Ray's daemon
starts them all.
"""

# ruff: noqa: PLC0415 - a driver without it need not wait for it
# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import ray

from stacks.loops.common import FOLDER, QUICK, WAIT, burn, fetch
from stacks.loops.gpu import STEP, hold, pause, ready, train, warm

_BLOCKS = 1000
_CPUS = 4
"""What Ray is told to have: room for actors that do little."""


@ray.remote
def burned() -> bytes:
    """A batch that takes Python's time."""
    burn(WAIT)
    return bytes(1000)


@ray.remote
class Loader:
    """An actor that loads batches."""

    def burned(self) -> bytes:
        """One that takes Python's time."""
        burn(WAIT)
        return bytes(1000)

    def fetched(self) -> bytes:
        """One from a server that answers late."""
        return fetch()[:1000]


@ray.remote
class Trainer:
    """An actor that holds the GPU."""

    def __init__(self) -> None:
        self._gpu = hold()

    def idle(self) -> None:
        """Be there."""
        warm(self._gpu)

    def train(self, how: str, loader: Any) -> None:  # noqa: ANN401 - Ray makes its classes
        """Train forever on what another actor, or tasks, load."""
        loads: dict[str, Callable[[], object]] = {
            "actor": lambda: ray.get(loader.burned.remote()),
            "actor-fetch": lambda: ray.get(loader.fetched.remote()),
            "tasks": lambda: ray.get(burned.remote()),
        }
        while True:
            loads[how]()
            self._gpu.run(STEP)


def data(seconds: float, *, late: bool = False, batches: int = 1) -> None:
    """Ray Data feeds the driver, which holds the GPU."""
    from ray import data as ray_data

    ray_data.DataContext.get_current().enable_progress_bars = False

    def prepare(batch: dict[str, Any]) -> dict[str, Any]:
        if late:
            fetch()
        burn(seconds)
        return batch

    # A task returns all results of a block at once.
    rows = ray_data.range(4 * batches * _BLOCKS, override_num_blocks=_BLOCKS)
    prepared = rows.map_batches(prepare, batch_size=4, concurrency=1)

    def forever() -> Iterator[object]:
        while True:
            yield from prepared.iter_batches(batch_size=4, prefetch_batches=1)

    train(forever().__next__)


def actors(how: str) -> None:
    """A driver that only waits, a trainer, and a loader next to it."""
    trainer: Any = Trainer.remote()  # type: ignore[attr-defined]
    if how == "idle":
        ray.get(trainer.idle.remote())
        ready()
        pause()
    ray.get(trainer.train.remote(how, Loader.remote()))  # type: ignore[attr-defined]


HOW: dict[str, Callable[[], None]] = {
    "data": lambda: data(WAIT),
    "data-fetch": lambda: data(0.0, late=True),
    "data-quick": lambda: data(QUICK, batches=50),
    "driver": lambda: train(lambda: ray.get(burned.remote())),
}


def main(how: str) -> None:
    """Train forever."""
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(
        num_cpus=_CPUS,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        object_store_memory=200 * 2**20,
        _temp_dir=f"{FOLDER / 'ray'}",
    )
    HOW.get(how, lambda: actors(how))()
