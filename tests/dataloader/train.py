"""A training loop over a real PyTorch DataLoader and a virtual GPU; run as a script.

python train.py PARENT BOARD WORKERS START_METHOD PERSISTENT BURN_SECONDS STEP_SECONDS
"""

# mypy: disable-error-code="misc"

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.jobs import burn
from gpu_bottleneck_exporter.demo.orphans import die_with_parent

BATCH = 4
BATCHES_PER_EPOCH = 60


class Decoded(Dataset[torch.Tensor]):
    """Samples that take CPU time to prepare, as decoding and augmenting do."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return BATCH * BATCHES_PER_EPOCH

    def __getitem__(self, index: int) -> torch.Tensor:
        burn(self._seconds)
        return torch.full((64,), float(index))


def main() -> None:
    """Train for ever."""
    parent, path, workers, method, persistent, seconds, step = sys.argv[1:]
    die_with_parent(int(parent))
    torch.set_num_threads(1)
    gpu = Board(Path(path)).gpus[0]
    gpu.hold(os.getpid(), 2**30)
    loader = DataLoader(
        Decoded(float(seconds)),
        BATCH,
        num_workers=int(workers),
        multiprocessing_context=method if int(workers) else None,
        persistent_workers=bool(int(workers)) and persistent == "persistent",
    )
    while True:
        for batch in loader:
            batch.sum()
            gpu.run(float(step))


if __name__ == "__main__":
    main()
