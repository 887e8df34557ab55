"""Settings of a training loop: the making of its batches, its processes, its surroundings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_bottleneck_exporter.prescription import model

FIELDS = {
    model.NUM_WORKERS: "workers",
    model.CPU_LIMIT: "cpu_limit",
    model.CPU_CORES: "neighbours",
    model.HOST_CODE: "host",
    model.CHECKPOINTS: "checkpoint",
}
"""Field of each setting."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A training loop and its surroundings; times in seconds."""

    step: float
    """Work of the GPU for one batch."""
    ahead: bool = False
    """Whether steps are launched ahead of the GPU, or each is waited for."""
    workers: int = 1
    """0: the main process makes the batches itself."""
    loader: str = "queue"
    """A key of `loops.LOADERS`."""
    host: float = 0.0
    """CPU time of the main thread's own code, for each step."""
    checkpoint: float = 0.0
    """MiB that the main writes past the page cache, every `loops.CHECKPOINT_SECONDS`."""

    # What one batch takes, one part after the other.
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

    cpu_limit: float | None = None
    """Cores; None: no limit."""
    neighbours: int = 0
    """Other processes, each of which burns a core."""
    processes: int = 1
    """Processes that share the GPU, each with this loop."""
    ranks: Sequence[int] = ()
    """Workers of each further rank of its job; they have a GPU each."""
    together: bool = False
    """Whether all ranks change their workers, or only the first."""

    @property
    def venv(self) -> str | None:
        """The environment of `stacks.venvs` that has its libraries; None: it needs none."""
        if self.loader in {"queue", "imap", "threads"} and not self.pil and not self.opencv:
            return None
        return {"tf.data": "tensorflow", "grain": "jax"}.get(self.loader, "streaming")

    def value(self, knob: str) -> float:
        """Value of `knob`; of workers, those of all processes that share the GPU."""
        each: float = getattr(self, FIELDS[knob])
        return each * self.processes if knob == model.NUM_WORKERS else each

    def turned(self, knob: str, value: float) -> Setting:
        """The same with `knob` at `value`. All of what can only be removed is, neighbours too."""
        if knob == model.NUM_WORKERS:
            each = round(value / self.processes)
            ranks = [each] * len(self.ranks) if self.together else self.ranks
            return replace(self, workers=each, ranks=ranks)
        changed: dict[str, Any] = {FIELDS[knob]: value if knob == model.CPU_LIMIT else 0}
        return replace(self, **changed)
