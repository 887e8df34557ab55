"""Finds unlisted processes that retain GPU memory: orphaned children of a holder.

A fork inherits its parent's open device nodes, and with them the parent's GPU memory, but no
context. So the driver does not list a data loader's worker that outlives its main.
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

MIN_HELD_BYTES = 2**28
"""Memory in use from which a GPU is held, as the rules' threshold held_bytes: a context takes more,
monitoring tools take less."""
_MAX_PIDS = 32
"""Number of pids reported per GPU."""
Nodes = Callable[[Identity], Collection[str]]
"""Device nodes that a process with a context on a GPU has open; empty if unknown."""


def has_unlisted_holder(gpu: GpuSnapshot) -> bool:
    """Whether memory is in use while no process is listed, not even one that only draws."""
    memory, listed = gpu.reading(Memory), gpu.reading(Processes)
    if memory is None or listed is None or memory.of_machine or gpu.identity.coherent:
        return False
    in_use = (memory.used_bytes or 0) >= MIN_HELD_BYTES
    return in_use and listed.count == 0 and not listed.bystanders


class UnlistedProcesses(Loop):
    """Searches all processes while `gpus` includes one with an unlisted holder."""

    def __init__(self, proc: Path, gpus: Callable[[], Iterable[GpuSnapshot]], nodes: Nodes) -> None:
        """`gpus` and `nodes` are called from this thread."""
        # Every 30 s, as a search reads all descriptors' links, 4 µs each.
        super().__init__("unlisted", self._update, 30.0, log=log)
        self._throttle = LogThrottle(log)
        self._proc = proc
        self._gpus = gpus
        self._nodes = nodes
        self.pids: Mapping[str, tuple[int, ...]] = {}
        """Pids by GPU uuid as of the last search."""

    def _update(self) -> None:
        gpus = list(self._gpus())
        parents = {gpu.identity.parent_uuid for gpu in gpus}
        held = [
            gpu.identity
            for gpu in gpus
            if has_unlisted_holder(gpu) and gpu.identity.uuid not in parents
        ]
        nodes_by_uuid = {gpu.uuid: frozenset(nodes) for gpu in held if (nodes := self._nodes(gpu))}
        self.pids = self._search(nodes_by_uuid) if nodes_by_uuid else {}
        for gpu in held:
            pids = self.pids.get(gpu.uuid)
            if self._throttle.is_new(gpu.uuid, pids):
                holders = ", ".join(map(str, pids or ())) or "no accessible process"
                text = "memory is in use, but the driver lists no process"
                log.warning(text, {"gpu": gpu.index, "opened_by": holders})

    def _search(self, nodes_by_uuid: Mapping[str, frozenset[str]]) -> Mapping[str, tuple[int, ...]]:
        pids: dict[str, list[int]] = {uuid: [] for uuid in nodes_by_uuid}
        for pid in processes(self._proc):
            links = {link for _, link in descriptors(self._proc, pid)} if pid != os.getpid() else ()
            for uuid, nodes in nodes_by_uuid.items():
                if nodes.issubset(links) and len(pids[uuid]) < _MAX_PIDS:
                    pids[uuid].append(pid)
        return {uuid: tuple(holders) for uuid, holders in pids.items()}
