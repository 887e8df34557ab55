"""Processes that keep a GPU's memory though the driver lists none: children that outlived a main.

A fork inherits the device nodes that its parent has open, and with them the parent's memory on the
GPU, but has no context itself. So a data loader's worker that outlives its main is not listed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from gpu_bottleneck_exporter.driver.readings import Identity, Memory, Processes
from gpu_bottleneck_exporter.host.descriptors import descriptors
from gpu_bottleneck_exporter.host.process import processes
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.loop import Loop
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

log = logging.getLogger(__name__)

_SEARCH_SECONDS = 30.0
"""Between two searches, which read the links of all descriptors of the machine: 4 µs each."""
HELD_BYTES = 2**28
"""As the rules' threshold held_bytes: a context takes more, monitoring tools take less."""
_MAX_PIDS = 32
"""Per GPU."""
Nodes = Callable[[Identity], Collection[str]]
"""The device nodes that a process with a context on a GPU has open; none if they are unknown."""


def is_kept(gpu: GpuSnapshot) -> bool:
    """Whether memory is in use while no process is listed, not even one that only draws."""
    memory, held = gpu.reading(Memory), gpu.reading(Processes)
    if memory is None or held is None or memory.of_machine or gpu.identity.coherent:
        return False
    return held.count == 0 and not held.bystanders and (memory.used_bytes or 0) >= HELD_BYTES


class UnlistedProcesses(Loop):
    """Searches the machine for them while `gpus` shows a GPU whose memory is kept."""

    def __init__(self, proc: Path, gpus: Callable[[], Iterable[GpuSnapshot]], nodes: Nodes) -> None:
        """`proc`: the host's; `gpus` and `nodes` are called from this thread."""
        super().__init__("unlisted", self._look, _SEARCH_SECONDS, log=log)
        self._throttle = LogThrottle(log)
        self._proc = proc
        self._gpus = gpus
        self._nodes = nodes
        self.pids: Mapping[str, tuple[int, ...]] = {}
        """Those found by the last search, by the GPU's uuid."""

    def _look(self) -> None:
        gpus = list(self._gpus())
        divided = {gpu.identity.parent_uuid for gpu in gpus}
        kept = [gpu.identity for gpu in gpus if is_kept(gpu) and gpu.identity.uuid not in divided]
        wanted = {who.uuid: frozenset(nodes) for who in kept if (nodes := self._nodes(who))}
        self.pids = self._search(wanted) if wanted else {}
        for who in kept:
            pids = self.pids.get(who.uuid)
            if self._throttle.is_new(who.uuid, pids):
                named = ", ".join(map(str, pids or ())) or "no process that we may look at"
                text = "memory is in use, but the driver lists no process"
                log.warning(text, {"gpu": who.index, "opened_by": named})

    def _search(self, wanted: Mapping[str, frozenset[str]]) -> Mapping[str, tuple[int, ...]]:
        opened: dict[str, list[int]] = {uuid: [] for uuid in wanted}
        for pid in processes(self._proc):
            links = {link for _, link in descriptors(self._proc, pid)} if pid != os.getpid() else ()
            for uuid, nodes in wanted.items():
                if nodes.issubset(links) and len(opened[uuid]) < _MAX_PIDS:
                    opened[uuid].append(pid)
        return {uuid: tuple(pids) for uuid, pids in opened.items()}
