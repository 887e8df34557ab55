"""PyTorch's DataLoader: `python -m stacks.loops.loader KIND WORKERS [METHOD] [respawned]`."""

# mypy: disable-error-code="misc"

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset

from stacks.loops.common import Load, epochs
from stacks.loops.gpu import hold, train, warm
from stacks.loops.samples import BATCH, sample

_BATCHES_PER_EPOCH = 60


class Samples(Dataset[torch.Tensor]):
    """As many as an epoch has."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __len__(self) -> int:
        return BATCH * _BATCHES_PER_EPOCH

    def __getitem__(self, index: int) -> torch.Tensor:
        sample(self._kind)()
        return torch.full((64,), float(index))


def loader(kind: str, workers: int, method: str = "fork", *, respawned: bool = False) -> Load:
    """The next batch, epoch after epoch."""
    torch.set_num_threads(1)
    batches: DataLoader[torch.Tensor] = DataLoader(
        Samples(kind),
        BATCH,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        persistent_workers=bool(workers) and not respawned,
    )
    return epochs(batches)


def main(kind: str, workers: str, method: str = "fork", *how: str) -> None:
    """Train forever."""
    load = loader(kind, int(workers), method, respawned="respawned" in how)
    if kind == "locked":
        warm(hold())
    train(load)
