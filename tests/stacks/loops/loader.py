"""PyTorch's DataLoader: `python -m stacks.loops.loader KIND WORKERS [METHOD] [respawned]`."""

# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stacks.loops.common import Load, epochs
from stacks.loops.gpu import hold, train, warm
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
) -> Load:
    """The next batch, epoch after epoch."""
    torch.set_num_threads(1)
    batches: DataLoader[torch.Tensor] = DataLoader(
        Stream(kind) if stream else Samples(kind),
        BATCH,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        persistent_workers=bool(workers) and not respawned,
    )
    return epochs(batches)


def main(kind: str, workers: str, method: str = "fork", *how: str) -> None:
    """Train forever."""
    prepare(kind)
    load = loader(kind, int(workers), method, respawned="respawned" in how, stream="stream" in how)
    if kind == "locked":
        warm(hold())
    train(load)
