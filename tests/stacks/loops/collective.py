"""Two ranks of torch.distributed over gloo; the second is the slow one.

python -m stacks.loops.collective KIND torchrun|spawn
"""

# mypy: disable-error-code="no-untyped-call,attr-defined"

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from stacks.loops.common import HOST, PORT, WAIT, Load, burn
from stacks.loops.gpu import STEP, hold
from stacks.loops.loader import loader

RANKS = 2
LONG_STEP = 3 * STEP
"""For a busy GPU: communication between ranks takes some milliseconds."""


def slow_load(kind: str) -> Load:
    """What the second rank does for a batch."""
    if kind == "main":
        return lambda: burn(WAIT)
    name, _, where = kind.partition("-")
    return loader(name, 0 if where == "main" else 1)


def train(rank: int, kind: str) -> None:
    """Train in step with the other rank."""
    gpu = hold(rank)
    both = kind.startswith("both-")
    load = slow_load(kind.removeprefix("both-")) if rank or both else loader("quick", 1)
    step = _ddp() if kind == "main" else _all_reduce
    seconds = LONG_STEP if kind == "quick" else STEP
    while True:
        load()
        gpu.run(seconds)
        step()


def _all_reduce() -> None:
    dist.all_reduce(torch.ones(64))


def _ddp() -> Load:
    """A model whose gradients are averaged in its backward pass."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1))
    return lambda: model(torch.ones(4, 64)).sum().backward()


def spawned(rank: int, kind: str) -> None:
    """A process that gets its group through its arguments, as in PyTorch's own tutorial."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = HOST, f"{PORT}"
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    train(rank, kind)


def main(kind: str, start: str = "") -> None:
    """A rank, or the launcher of both."""
    if start == "torchrun":
        run = ["-m", "torch.distributed.run", "--nproc_per_node", f"{RANKS}"]
        run += ["--master_port", f"{PORT}", "-m", "stacks.loops", "collective", kind]
        os.execv(sys.executable, [sys.executable, *run])  # noqa: S606 - the point of it
    if start == "spawn":
        mp.spawn(spawned, args=(kind,), nprocs=RANKS)
        return
    dist.init_process_group("gloo")
    dist.barrier()
    train(int(os.environ["RANK"]), kind)
