"""PyTorch's DataLoader: `python -m stacks.loops.loader KIND WORKERS [METHOD] [respawned]`."""

# mypy: disable-error-code="misc"

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stacks.loops.common import Load, hold, train, warm
from stacks.loops.samples import BATCH, KINDS, prepare

_BATCHES_PER_EPOCH = 60


class Samples(Dataset[torch.Tensor]):
    """As many as an epoch has."""

    def __init__(self, kind: str) -> None:
        self._load = KINDS[kind]

    def __len__(self) -> int:
        return BATCH * _BATCHES_PER_EPOCH

    def __getitem__(self, index: int) -> torch.Tensor:
        self._load()
        return torch.full((64,), float(index))


class Stream(IterableDataset[torch.Tensor]):
    """Endless samples."""

    def __init__(self, kind: str) -> None:
        self._load = KINDS[kind]

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self._load()
            yield torch.zeros(64)


def loader(
    kind: str, workers: int, method: str = "fork", *, respawned: bool = False, stream: bool = False
) -> Callable[[], torch.Tensor]:
    """Yields the next batch, epoch after epoch."""
    torch.set_num_threads(1)
    batches = DataLoader(
        Stream(kind) if stream else Samples(kind),
        BATCH,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        persistent_workers=bool(workers) and not respawned,
    )

    def forever() -> Iterator[torch.Tensor]:
        while True:
            yield from batches

    running = forever()
    return lambda: next(running)


def main() -> None:
    """Train forever."""
    kind, workers, *how = sys.argv[1:]
    prepare(kind)
    load: Load = loader(
        kind,
        int(workers),
        next((word for word in how if word in {"spawn", "forkserver"}), "fork"),
        respawned="respawned" in how,
        stream="stream" in how,
    )
    if kind == "locked":
        warm(hold())
    train(load)


if __name__ == "__main__":
    main()
