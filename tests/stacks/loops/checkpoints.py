"""torch.save, forced to the disk every few steps: `python -m stacks.loops.checkpoints [thread]`.

With `thread`, a thread writes and the loop goes on: it waits for nothing.
"""

from __future__ import annotations

import os
import threading

import torch

from stacks.loops.common import FOLDER
from stacks.loops.gpu import hold

_FLOATS = 24 * 2**20
_STEPS, _STEP_SECONDS = 5, 0.02


def _save(model: torch.Tensor) -> None:
    with open(FOLDER / "checkpoint", "wb") as file:
        torch.save({"model": model, "optimizer": [model, model.clone()]}, file)
        file.flush()
        os.fsync(file.fileno())


def main(how: str = "") -> None:
    """Train and save forever."""
    # Checksums take CPU time, and are no wait for the disk.
    torch.serialization.set_crc32_options(compute_crc32=False)
    gpu = hold()
    model = torch.rand(_FLOATS)
    saving = threading.Thread()
    saving.start()
    while True:
        for _ in range(_STEPS):
            gpu.run(_STEP_SECONDS)
        if not how:
            _save(model)
        elif not saving.is_alive():
            saving = threading.Thread(target=_save, args=(model[: _FLOATS // 16],), daemon=True)
            saving.start()
