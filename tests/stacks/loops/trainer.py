"""Lightning's Trainer: `python -m stacks.loops.trainer KIND WORKERS [ddp]`."""

# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import os
import warnings
from collections import deque

import lightning
import torch

from stacks.loops.gpu import STEP, hold
from stacks.loops.loader import Samples
from stacks.loops.samples import BATCH, prepare


class Model(lightning.LightningModule):
    """A model that learns nothing, on a virtual GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._layer = torch.nn.Linear(64, 1)
        self._ends: deque[int] = deque()
        self._gpu = hold(int(os.environ.get("LOCAL_RANK", "0")))

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        """One step."""
        self._ends.append(self._gpu.launch(STEP))
        if len(self._ends) > 1:
            self._gpu.synchronize(self._ends.popleft())
        loss: torch.Tensor = self._layer(batch).mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As usual."""
        return torch.optim.SGD(self.parameters(), 0.1)


def main(kind: str, workers: str, how: str = "") -> None:
    """Fit forever."""
    warnings.filterwarnings("ignore")
    prepare(kind)
    if how and os.environ.get("LOCAL_RANK", "0") == "0":
        kind, workers = "quick", "1"
    torch.set_num_threads(1)
    batches = torch.utils.data.DataLoader(
        Samples(kind), BATCH, num_workers=int(workers), persistent_workers=workers != "0"
    )
    lightning.Trainer(
        accelerator="cpu",
        devices=2 if how else 1,
        strategy=how or "auto",
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Model(), batches)
