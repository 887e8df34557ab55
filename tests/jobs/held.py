"""A ledger of real processes that hold a GPU, and its jobs."""

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
from gpu_bottleneck_exporter.accounting.tick import Tick
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.driver.about import UNKNOWN_DRIVER
from gpu_bottleneck_exporter.driver.readings import Identity, Pod, Process, Processes, System
from gpu_bottleneck_exporter.host.process import Started
from gpu_bottleneck_exporter.jobs.ledger import Ledger
from gpu_bottleneck_exporter.sampling.sampler import Sampler, SamplerState
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.stacktraces.model import Findings, IdleLines
from support.waiting import until

GPU = Identity(0, "GPU-1", "H100")
SECOND = 1_000_000_000


class Found:
    """Lines of code that have been found."""

    def __init__(self) -> None:
        self.found: list[tuple[str, Findings]] = []

    def pop_ended(self) -> Iterator[tuple[str, Findings]]:
        while self.found:
            yield self.found.pop(0)


class Looked:
    """A sampler without GPUs, which records those whose reading is requested at once."""

    def __init__(self) -> None:
        self.uuids: list[str] = []
        self.lines = Found()

    def state(self) -> SamplerState:
        return SamplerState(System(None, None), UNKNOWN_DRIVER, frozenset(), (), (), 0, 0.0, None)

    def seek_name(self, container_id: str) -> None:
        """Pass over it: there is no kubelet."""

    def request_holders(self, uuids: Collection[str], *, now: bool) -> None:
        if now:
            self.uuids += uuids


@contextmanager
def keeping(sampler: Looked | None = None, **settings: Any) -> Iterator[Ledger]:  # noqa: ANN401
    """A running ledger with these settings."""
    ledger = Ledger(Settings(**settings))
    ledger.start(cast("Sampler", sampler or Looked()))
    yield ledger
    ledger.stop()


@contextmanager
def process(
    variables: Mapping[str, str] | None = None, user: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of `user` with these variables added to our environment."""
    variables = {**os.environ, **(variables or {})}
    command = ["sleep", "600"]
    with subprocess.Popen(command, env=variables, start_new_session=True, user=user) as process:
        # For a moment after it was started, its environment is empty.
        until(Path(f"/proc/{process.pid}/environ").read_bytes, "its environment")
        try:
            yield process
        finally:
            process.kill()


def hold(ledger: Ledger, *pids: int, gpu: Identity = GPU, pod: Pod | None = None) -> None:
    """List these processes, and no others, as holders of `gpu`."""
    listed = tuple(Process(pid, 2**30) for pid in pids)
    processes = Processes(listed, pod=pod)
    now_ns = time.monotonic_ns()
    ledger.enqueue(Tick(gpu, now_ns, readings={Processes: (now_ns, processes)}))


def spend(ledger: Ledger, seconds: float, gpu: Identity = GPU, end_ns: int | None = None) -> None:
    """Report a window of `gpu`: busy for a quarter of the time, then asleep."""
    ns = round(seconds * SECOND)
    window = Window(end_ns or time.monotonic_ns(), ns, ns // 4)
    ledger.enqueue(Tick(gpu, window.end_ns, windows=[window], stalls={ASLEEP: ns - ns // 4}))


def find(ledger: Ledger, lines: IdleLines, *mains: Started, uuid: str = GPU.uuid) -> None:
    """Let a look at the stacks of these end, which had GPU `uuid`, and have found `lines`."""
    looked = cast("Looked", ledger._recorder._sampler)
    looked.lines.found.append((uuid, Findings(lines, frozenset(mains))))


def at_work(ledger: Ledger, process: subprocess.Popen[bytes], seconds: float = 0.1) -> None:
    """Let a process hold the GPU for this time; its job is read before it can end."""
    hold(ledger, process.pid)
    spend(ledger, seconds)
    assert any(job["end_seconds"] is None for job in jobs(ledger))


def jobs(ledger: Ledger, since: float = 0.0) -> list[dict[str, Any]]:
    """All jobs that ended after Unix time `since`, or run."""
    documents: list[dict[str, Any]] = json.loads(b"".join(ledger.documents(since)))["jobs"]
    return documents
