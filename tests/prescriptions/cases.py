"""The table of chains: what is staged together, and what is changed.

Loops that only wait need little CPU and run side by side; those that burn it have the machine to
themselves. The GPU's steps are such that it is idle for half to nine tenths of the time at first.
"""

from __future__ import annotations

import hashlib

from gpu_bottleneck_exporter.prescription.model import (
    CHECKPOINTS,
    CPU_CORES,
    CPU_LIMIT,
    HOST_CODE,
    KNOBS,
    NUM_WORKERS,
)
from prescriptions.settings import Batch, Chain, Loop, Setting
from scenarios.loops import CORES

EVERY_KNOB = frozenset(KNOBS)
_DOUBLED = (2.0, 4.0, 8.0)


def _fed(  # noqa: PLR0913 - a table
    family: str,
    name: str,
    batch: Batch,
    step: float,
    *changes: float,
    loader: str = "queue",
    workers: int = 1,
    ahead: bool = False,
    host: float = 0.0,
    follow: bool = False,
    never: frozenset[str] = frozenset(),
) -> Chain:
    loop = Loop(batch, workers, step, ahead=ahead, host=host, loader=loader)
    return Chain(family, name, Setting(loop), changes=changes, follow=follow, never=never)


def _torch(name: str, batch: Batch, step: float, *changes: float, ahead: bool = False) -> Chain:
    return _fed(_DATALOADER, name, batch, step, *changes, loader="torch", ahead=ahead)


def _limited(name: str, loop: Loop, limit: float, *changes: float) -> Chain:
    setting = Setting(loop, cpu_limit=limit)
    return Chain("CPU limit", name, setting, CPU_LIMIT, changes, follow=not changes)


def _beset(name: str, loop: Loop, neighbours: int) -> Chain:
    title = f"{name}, {neighbours} of them"
    setting = Setting(loop, neighbours=neighbours)
    return Chain("neighbours removed", title, setting, CPU_CORES, (float(CORES),))


def _ranks(
    name: str, loop: Loop, others: tuple[int, ...], *changes: float, together: bool = False
) -> Chain:
    setting = Setting(loop, ranks=others, together=together)
    return Chain(_RANKS, name, setting, changes=changes, follow=not changes)


def _sharing(name: str, loop: Loop, *changes: float) -> Chain:
    setting = Setting(loop, processes=2)
    return Chain(_SHARED, name, setting, changes=changes, follow=not changes)


def _saving(name: str, loop: Loop) -> Chain:
    return Chain(_CHECKPOINTS_GONE, name, Setting(loop), CHECKPOINTS, (0.0,))


_SERVER = "a server that answers late"
_HOST = "a server, and host code"
_HOST_GONE = "host code removed"
_CHECKPOINTS_GONE = "checkpoints removed"
_VARYING = "batches that vary"
_DATALOADER = "PyTorch's DataLoader"
_POOL = "Pool.imap"
_SLEEP = "sleep"
_MOUNT = "remote files"
_MOVED = "out of the main process"
_RANKS = "ranks of a job"
_SHARED = "processes share a GPU"
_DECODED = "decoded photographs"
_SHARDED = "WebDataset"
_HUB = "Hugging Face datasets"
_TENSORS = "tf.data"
_GRAIN = "grain"
_THREADS = "threads"
_ADVICE = "as prescribed"
_BURNING = "burning workers"
_FULL = "no core left"
_HEALTHY = "healthy"
_WORKERS = frozenset({NUM_WORKERS})
_ANSWER = Batch(server=0.1)
_BURNS = Loop(Batch(burn=0.1), 1, 0.02)

WAITING = (
    _fed(_SERVER, "60 ms, step 7 ms", Batch(server=0.06), 0.007, *_DOUBLED),
    _fed(_SERVER, "60 ms, step 12 ms ahead", Batch(server=0.06), 0.012, 2, 4, ahead=True),
    _fed(_SERVER, "200 ms, step 22 ms ahead", Batch(server=0.2), 0.022, *_DOUBLED, ahead=True),
    _fed(_SERVER, "200 ms, step 60 ms", Batch(server=0.2), 0.06, 2, 3),
    _fed(_SERVER, "20 ms, step 4 ms", Batch(server=0.02), 0.004, 2, 4),
    _fed(_SERVER, "100 ms, step 55 ms", Batch(server=0.1), 0.055, 2),
    _fed(_HOST, "5 % of the step", Batch(server=0.1), 0.03, 2, 4, host=0.0015),
    _fed(_HOST, "20 % of the step", Batch(server=0.1), 0.03, 2, 4, host=0.006),
    _fed(_HEALTHY, "4 workers", Batch(server=0.1), 0.05, workers=4, never=EVERY_KNOB),
    _fed(_HEALTHY, "2 workers", Batch(burn=0.002), 0.04, workers=2, never=EVERY_KNOB, ahead=True),
    _fed(_HEALTHY, "no worker", Batch(burn=0.002), 0.05, workers=0, never=EVERY_KNOB),
    _fed(_HEALTHY, "workers nearly keep up", Batch(server=0.1), 0.045, workers=2, never=EVERY_KNOB),
)
HEAVY_TAILED = (
    _fed(_HOST, "40 % of the step", Batch(server=0.1), 0.03, 2, 4, host=0.012),
    _fed(_VARYING, "cv 0.5", Batch(server=0.06, spread=0.5), 0.008, *_DOUBLED),
    _fed(_VARYING, "cv 1, ahead", Batch(server=0.2, spread=1), 0.03, *_DOUBLED, ahead=True),
    _fed(_VARYING, "cv 1.5", Batch(server=0.06, spread=1.5), 0.01, 2, 4),
    _torch("even", Batch(server=0.1), 0.012, *_DOUBLED),
    _torch("cv 1", Batch(server=0.06, spread=1), 0.008, *_DOUBLED),
    _torch("cv 1.5, ahead", Batch(server=0.1, spread=1.5), 0.015, 2, 4, ahead=True),
    _fed(_POOL, "cv 0.5", Batch(server=0.06, spread=0.5), 0.008, *_DOUBLED, loader="imap"),
    _fed(_POOL, "cv 1", Batch(server=0.1, spread=1), 0.015, 2, 4, loader="imap"),
)
OTHER_WAITS = (
    _fed(_SLEEP, "100 ms", Batch(sleep=0.1), 0.015, 2, 4),
    _fed(_SLEEP, "50 ms, ahead", Batch(sleep=0.05), 0.015, 2, ahead=True),
    _fed(_MOUNT, "one read", Batch(mount=1), 0.009, 2, 4),
    _fed(_MOUNT, "two reads, DataLoader", Batch(mount=2), 0.02, 2, 4, loader="torch"),
    _fed(_MOVED, "a server", Batch(server=0.06), 0.03, 1, 2, workers=0),
    _fed(_MOVED, "a server, ahead", Batch(server=0.1), 0.04, 1, 2, workers=0, ahead=True),
    _fed(_MOVED, "a server, DataLoader", Batch(server=0.08), 0.03, 1, 2, workers=0, loader="torch"),
    _fed(_MOVED, "remote files", Batch(mount=1), 0.03, 1, 2, workers=0),
    _fed(_ADVICE, "a server", Batch(server=0.06), 0.007, follow=True),
    _fed(_ADVICE, "a server, DataLoader", Batch(server=0.1), 0.015, follow=True, loader="torch"),
    _fed(_ADVICE, "sleep", Batch(sleep=0.08), 0.02, follow=True),
    _fed(_ADVICE, "a server, no worker", Batch(server=0.06), 0.03, workers=0, follow=True),
    Chain(
        _HOST_GONE,
        "of half the time",
        Setting(Loop(Batch(server=0.04), 4, 0.03, host=0.02)),
        HOST_CODE,
        (0.0,),
    ),
)
LIBRARIES = (
    (_fed(_DECODED, "Pillow", Batch(pil=8), 0.03, 1, workers=0, loader="torch", follow=True),),
    (_fed(_DECODED, "OpenCV", Batch(opencv=12), 0.03, 1, 2, workers=0, loader="torch"),),
    (_fed(_DECODED, "Pillow, ahead", Batch(pil=8), 0.02, 2, loader="torch", ahead=True),),
    (_fed(_DECODED, "Pillow, they vary", Batch(pil=8, spread=0.5), 0.02, 2, loader="torch"),),
    (_fed(_SHARDED, "Pillow", Batch(pil=8), 0.03, 1, 2, workers=0, loader="webdataset"),),
    (_fed(_HUB, "Pillow", Batch(pil=8), 0.03, 1, 2, workers=0, loader="datasets"),),
    (_fed(_TENSORS, "its own threads", Batch(pil=24), 0.02, 2, loader="tf.data"),),
    (_fed(_GRAIN, "burns", Batch(burn=0.05), 0.03, 1, 2, workers=0, loader="grain"),),
    (_fed(_THREADS, "Pillow", Batch(pil=8), 0.02, 2, loader="threads"),),
    (
        _fed(_SHARDED, "a server", Batch(server=0.08), 0.012, 2, 4, loader="webdataset"),
        _fed(_HUB, "a server", Batch(server=0.08), 0.012, 2, 4, loader="datasets"),
        _fed(_GRAIN, "a server", Batch(server=0.08), 0.012, 2, 4, loader="grain"),
        _fed(_THREADS, "a server", Batch(server=0.08), 0.03, 2, loader="threads"),
    ),
)
"""What users have."""
TOGETHER = (
    (
        _ranks("the slower of two", Loop(_ANSWER, 1, 0.02), (4,), 2, 8),
        _ranks("the slowest of three", Loop(_ANSWER, 1, 0.02), (2, 2), 4),
        _ranks("the slower of two, DataLoader", Loop(_ANSWER, 1, 0.02, loader="torch"), (3,), 2),
        _ranks("two alike", Loop(_ANSWER, 1, 0.012), (1,), 2, 4, 8, together=True),
        _ranks("two alike, as prescribed", Loop(_ANSWER, 1, 0.02), (1,), together=True),
        _sharing("two", Loop(_ANSWER, 1, 0.01), 4, 8),
        _sharing("two, as prescribed", Loop(_ANSWER, 1, 0.01)),
        _sharing("two without workers", Loop(Batch(server=0.06), 0, 0.012), 2, 4),
        _sharing("two, DataLoader", Loop(_ANSWER, 1, 0.012, loader="torch"), 4),
    ),
    (_sharing("two that burn", Loop(Batch(burn=0.03), 0, 0.03), 2),),
)
"""Several processes of one job or owner."""
NEW = (*LIBRARIES, *TOGETHER)
"""Nothing in the model was tried on these."""
TRIED: tuple[tuple[Chain, ...], ...] = (
    WAITING,
    HEAVY_TAILED,
    OTHER_WAITS,
    (_saving("300 MiB a second", Loop(Batch(server=0.04), 4, 0.03, checkpoint=300)),),
    (_saving("a step ahead", Loop(Batch(server=0.04), 4, 0.03, ahead=True, checkpoint=600)),),
    # What burns CPU is staged such that two cores hold it.
    (_fed(_BURNING, "large steps", Batch(burn=0.06), 0.025, 2),),
    (_fed(_BURNING, "as prescribed", Batch(burn=0.08), 0.03, follow=True),),
    (_fed(_MOVED, "reads and decodes", Batch(disk=0.02, burn=0.03), 0.03, 1, 2, workers=0),),
    (_fed(_FULL, "a worker per core", Batch(burn=0.08), 0.02, 4, workers=2, never=_WORKERS),),
    (Chain(_FULL, "another job burns the rest", Setting(_BURNS, neighbours=1), never=_WORKERS),),
    (
        _limited("workers, 0.3 → 0.6", Loop(Batch(burn=0.04), 2, 0.03), 0.3, 0.6),
        _limited("no worker, 0.25 → 1", Loop(Batch(burn=0.02), 0, 0.03), 0.25, 1.0),
    ),
    (
        _limited("workers, 0.5 → 1", Loop(Batch(burn=0.04), 2, 0.02), 0.5, 1.0),
        _limited("as prescribed", Loop(Batch(burn=0.03), 0, 0.03), 0.25),
    ),
    (_beset("workers", Loop(Batch(burn=0.06), 2, 0.02), 2),),
)
"""Half of these, drawn by a hash, served to fit the interval (`ERROR`)."""
GROUPS = (*NEW, *TRIED)
"""Chains that run side by side."""
FITTED = frozenset(
    chain.title
    for group in TRIED
    for chain in group
    if hashlib.sha256(chain.title.encode()).digest()[0] % 2 == 0
)
CHAINS = tuple(chain for group in GROUPS for chain in group)
