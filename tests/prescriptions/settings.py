"""What a training loop is set to: how its batches are made, by whom, and what surrounds it."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, dataclass, field, replace

from gpu_bottleneck_exporter.prescription import model

CHECKPOINT_SECONDS = 1.0
_VENVS = {
    **dict.fromkeys(("torch", "webdataset", "datasets"), "streaming"),
    "tf.data": "tensorflow",
    "grain": "jax",
}
"""Of `stacks.venvs`, by loader."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch takes, in seconds by what it waits for; one part after the other."""

    server: float = 0.0
    """Waiting for the answer of a remote server."""
    sleep: float = 0.0
    mount: int = 0
    """Reads from a remote file system, `LATE_SECONDS` of `stacks.servers.fuse` each."""
    disk: float = 0.0
    """Reading the local disk, past the page cache; does not vary."""
    burn: float = 0.0
    """CPU time."""
    pil: int = 0
    """Photographs that Pillow decodes and scales down; with `tf.data`, TensorFlow."""
    opencv: int = 0
    """The same with OpenCV."""
    spread: float = 0.0
    """Coefficient of variation from batch to batch: lognormal, thus heavy-tailed."""

    def factor(self, draw: random.Random) -> float:
        """How long the next batch takes, where 1 is the mean."""
        if not self.spread:
            return 1.0
        variance = math.log1p(self.spread**2)
        return draw.lognormvariate(-variance / 2, math.sqrt(variance))


@dataclass(frozen=True, slots=True)
class Loop:
    """A training loop; times in seconds."""

    batch: Batch
    workers: int
    """0: the main process makes the batches itself."""
    step: float
    """Work of the GPU for one batch."""
    ahead: bool = False
    """Whether steps are launched ahead of the GPU, or each is waited for."""
    host: float = 0.0
    """CPU time of the main thread's own code, for each step."""
    checkpoint: float = 0.0
    """MiB that the main writes to the disk, past the page cache, every `CHECKPOINT_SECONDS`."""
    loader: str = "queue"
    """A key of `loops.LOADERS`."""

    @property
    def venv(self) -> str | None:
        """The environment of `stacks.venvs` that has its libraries; None: it needs none."""
        if self.loader in _VENVS:
            return _VENVS[self.loader]
        return "streaming" if self.batch.pil or self.batch.opencv else None

    def with_workers(self, workers: int) -> Loop:
        """The same with so many workers."""
        return replace(self, workers=workers)

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: str) -> Loop:
        """The loop that `str` wrote."""
        told = json.loads(text)
        return Loop(**{**told, "batch": Batch(**told["batch"])})


@dataclass(frozen=True, slots=True)
class Setting:
    """A loop and its surroundings."""

    loop: Loop
    cpu_limit: float | None = None
    """Cores; None: no limit."""
    neighbours: int = 0
    """Other processes, each of which burns a core."""
    processes: int = 1
    """That share the GPU, each with this loop."""
    ranks: tuple[int, ...] = ()
    """Workers of each further rank of its job; they have a GPU each."""
    together: bool = False
    """Whether all ranks change their workers, or only the first."""

    def value(self, knob: str) -> float | None:
        """What `knob` is set to; None if that is nothing that is set."""
        if knob == model.NUM_WORKERS:
            return self.loop.workers * self.processes
        return self.cpu_limit if knob == model.CPU_LIMIT else None

    def turned(self, knob: str, value: float) -> Setting:
        """The same with `knob` at `value`. All of what can only be removed is, neighbours too."""
        if knob == model.NUM_WORKERS:
            each = round(value / self.processes)
            ranks = tuple(each if self.together else workers for workers in self.ranks)
            return replace(self, loop=self.loop.with_workers(each), ranks=ranks)
        if knob == model.CPU_LIMIT:
            return replace(self, cpu_limit=value)
        if knob == model.CPU_CORES:
            return replace(self, neighbours=0)
        if knob == model.HOST_CODE:
            return replace(self, loop=replace(self.loop, host=0.0))
        if knob == model.CHECKPOINTS:
            return replace(self, loop=replace(self.loop, checkpoint=0.0))
        raise ValueError(f"no way to stage a change of {knob}")


@dataclass(frozen=True, slots=True)
class Chain:
    """A loop on one GPU whose knob is changed in turn: each `after` is the next `before`."""

    family: str
    name: str
    first: Setting
    knob: str = model.NUM_WORKERS
    changes: tuple[float, ...] = ()
    """The values that the knob takes after the first."""
    follow: bool = False
    """Whether the last change is the one that the exporter prescribes, whatever it is."""
    never: frozenset[str] = field(default_factory=frozenset)
    """Knobs that must not be prescribed for the first setting."""

    @property
    def title(self) -> str:
        """By which it is chosen."""
        return f"{self.family}: {self.name}"

    @property
    def gpus(self) -> int:
        """How many it takes: those of its job."""
        return 1 + len(self.first.ranks)

    @property
    def pairs(self) -> int:
        """How many there are, of before and after."""
        return len(self.changes) + self.follow
