"""A ledger that is told of real processes on a GPU, and what it has of them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from gpu_bottleneck_exporter.accounting.stall import ASLEEP
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.driver.about import UNKNOWN
from gpu_bottleneck_exporter.driver.readings import Identity, Process, Processes
from gpu_bottleneck_exporter.jobs.ledger import Ledger
from gpu_bottleneck_exporter.sampling.opened import Spent
from gpu_bottleneck_exporter.sampling.sampler import NO_SYSTEM, Sampler, SamplerState
from gpu_bottleneck_exporter.settings import Settings
from support.waiting import until

GPU = Identity(0, "GPU-1", "H100")
SECOND = 1_000_000_000


class Idle:
    """A sampler that knows no GPU."""

    def state(self) -> SamplerState:
        return SamplerState(NO_SYSTEM, UNKNOWN, frozenset(), (), (), 0, 0.0, None)

    def look(self, uuids: Collection[str], *, now: bool) -> None:
        pass


@contextmanager
def keeping(**settings: Any) -> Iterator[Ledger]:  # noqa: ANN401 - of any type
    """A ledger that runs."""
    ledger = Ledger(Settings(**settings))
    ledger.start(cast("Sampler", Idle()))
    yield ledger
    ledger.stop()


@contextmanager
def process(variables: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process with these variables beside our own."""
    variables = {**os.environ, **(variables or {})}
    command = ["sleep", "600"]
    with subprocess.Popen(command, env=variables, start_new_session=True) as one:
        # For a moment after it was started, its environment is empty.
        until(Path(f"/proc/{one.pid}/environ").read_bytes, "its environment")
        try:
            yield one
        finally:
            one.kill()


def at_work(ledger: Ledger, one: subprocess.Popen[bytes], seconds: float = 0.1) -> None:
    """A process holds the GPU for so long, and its job is looked up while it is there."""
    ns = round(seconds * SECOND)
    listed = (Process(one.pid, 2**30),)
    ledger.note(GPU, time.monotonic_ns(), Processes(listed))
    window = Window(time.monotonic_ns(), ns, ns // 4)
    ledger.note(GPU, window.end_ns, Spent([window], {ASLEEP: ns - ns // 4}))
    assert any(job["end_seconds"] is None for job in jobs(ledger))


def jobs(ledger: Ledger) -> list[dict[str, Any]]:
    """All jobs that it has."""
    found: list[dict[str, Any]] = json.loads(b"".join(ledger.documents()))["jobs"]
    return found
