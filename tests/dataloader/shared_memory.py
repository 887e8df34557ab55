"""How full PyTorch's loader makes a /dev/shm of 64 MiB, and when it dies of it.

    PYTHONPATH=tests .venv/bin/python -m dataloader.shared_memory

prints shared_memory.csv; as root. Each loader of PyTorch 2.13 runs in a mount namespace of its own,
for up to 100 batches (400 where sizes vary). *Used* is the share in use; with a slow loader, until
the main process pauses. Batches of one size kill a loader within 50 batches, at the first pause, or
never. Close to the limit (12 MiB with one worker, 7 with four) runs differ.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

MEBIBYTE = 2**20
SHM = "/dev/shm"  # noqa: S108 - the mount
_MOUNTED = f'mount -t tmpfs -o size=64m tmpfs {SHM} && exec "$@"'
_LOOK_SECONDS = 0.02
_HANGS_SECONDS = 15
_STEP_SECONDS = 0.04
_SAMPLES = 8
"""Of a batch."""
_PAUSE_SECONDS = 4.0
_HEADINGS = (
    *("Batch, MiB", "Workers", "prefetch_factor", "Total, MiB", "Slow side"),
    *("Used, median", "Used, peak", "Outcome"),
)


@dataclass(frozen=True, slots=True)
class Load:
    """A loader, and a main process that is slower or, if `starved`, faster and pauses once."""

    batch_mebibytes: float
    workers: int
    prefetch: int = 2
    spread: float = 0.0
    """Of a batch's size, from one to the next: sigma of its logarithm."""
    starved: bool = False
    own_collate: bool = False
    batches: int = 100


@dataclass(frozen=True, slots=True)
class Found:
    """Shares of /dev/shm in use, before the pause if there is one, and what became of it."""

    usual: float
    most: float
    batches: int
    """That the main process was given."""
    error: str
    """Why it died; empty: it did not."""


LOADS = (
    *(Load(size, 4) for size in (1, 2, 4, 6, 7, 8)),
    *(Load(size, 1, 4) for size in (8, 10, 12)),
    *(Load(size, 8) for size in (2, 3, 3.5, 4)),
    *(Load(size, 4, starved=True) for size in (2, 4, 6, 7, 8)),
    Load(8, 4, own_collate=True),
    *(Load(size, 4, spread=0.4, batches=400) for size in (1, 2, 3, 4)),
)


def measure(load: Load) -> Found:
    """What becomes of it in a mount namespace of its own.

    Raises CalledProcessError where we may make none.
    """
    from stacks import venvs  # noqa: PLC0415 - only in the process that has no torch

    command = ["unshare", "--mount", "sh", "-c", _MOUNTED, "sh", f"{venvs.python('torch')}"]
    command += ["-W", "ignore", __file__, json.dumps(asdict(load))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Found(**json.loads(done.stdout.splitlines()[-1]))


def run(load: Load) -> Found:
    """Load the batches here."""
    seen = [_used()]
    threading.Thread(target=_watch, args=(seen,), daemon=True).start()
    given, error = 0, ""
    before: list[float] = []
    try:
        for given, _ in enumerate(_loader(load), start=1):
            time.sleep(0 if load.starved else _STEP_SECONDS)
            if load.starved and given == load.batches // 2:
                before = [*seen]
                time.sleep(_PAUSE_SECONDS)
    except RuntimeError as failure:
        error = f"{failure}"
    # None before the first batch, nor when all is over.
    kept = [share for share in before or seen if share]
    return Found(statistics.median(kept), max(kept), given, error)


def _loader(load: Load) -> Iterator[object]:
    import torch  # noqa: PLC0415 - only in the process that loads
    from torch.utils.data import DataLoader, Dataset  # noqa: PLC0415

    torch.set_num_threads(1)

    class Samples(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return load.batches * _SAMPLES

        def __getitem__(self, index: int) -> torch.Tensor:
            draw = torch.Generator().manual_seed(index // _SAMPLES)
            scale = torch.exp(load.spread * torch.randn(1, generator=draw)).item()
            time.sleep(_STEP_SECONDS / _SAMPLES * load.workers * 2 if load.starved else 0)
            size = load.batch_mebibytes * scale * MEBIBYTE / _SAMPLES
            return torch.zeros(round(size), dtype=torch.uint8)

    loader = DataLoader(
        Samples(),
        batch_size=_SAMPLES,
        num_workers=load.workers,
        prefetch_factor=load.prefetch,
        timeout=_HANGS_SECONDS,
        collate_fn=torch.stack if load.own_collate else None,
    )
    return iter(loader)


def _watch(seen: list[float]) -> None:
    while True:
        time.sleep(_LOOK_SECONDS)
        seen.append(_used())


def _used() -> float:
    found = os.statvfs(SHM)
    return 1 - found.f_bfree / found.f_blocks


def row(load: Load, found: Found) -> tuple[str, ...]:
    """A line of the table."""
    size = f"{load.batch_mebibytes:g}" + (f" (varies: {load.spread:.0%})" if load.spread else "")
    size += " (own collate_fn)" if load.own_collate else ""
    held = f"{load.batch_mebibytes * load.workers * load.prefetch:g}"
    used = (f"{found.usual:.2f}", f"{found.most:.2f}")
    slow = "the loader, until a pause" if load.starved else "the GPU"
    ends = "hangs" if "timed out" in found.error else "dies"
    fate = f"{ends} at batch {found.batches + 1}" if found.error else "keeps running"
    return (size, f"{load.workers}", f"{load.prefetch}", held, slow, *used, fate)


def main() -> None:
    """Print the table, or be one of the loaders."""
    if sys.argv[1:]:
        print(json.dumps(asdict(run(Load(**json.loads(sys.argv[1]))))), flush=True)  # noqa: T201
        os._exit(0)
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(_HEADINGS)
    for load in LOADS:
        table.writerow(row(load, measure(load)))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
