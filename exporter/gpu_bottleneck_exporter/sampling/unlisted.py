"""Finds unlisted processes that retain GPU memory: orphans of a holder.

A fork inherits device nodes and GPU memory, but no context: the driver does not list it.
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
"""Minimum memory of a holder (the rules' held_bytes): above monitoring tools, below contexts."""
_MAX_PIDS = 32
"""Maximum number of reported pids per GPU."""
Nodes = Callable[[Identity], Collection[str]]
"""Device nodes opened by a context on a GPU, if known."""


def has_unlisted_holder(gpu: GpuSnapshot) -> bool:
    """Whether memory is in use without a listed process, even for graphics."""
    memory, listed = gpu.reading(Memory), gpu.reading(Processes)
    if memory is None or listed is None or memory.of_machine or gpu.identity.coherent:
        return False
    in_use = (memory.used_bytes or 0) >= MIN_HELD_BYTES
    return in_use and listed.count == 0 and not listed.bystanders


class UnlistedProcesses(Loop):
    """Searches all processes while a GPU has an unlisted holder."""

    def __init__(self, proc: Path, gpus: Callable[[], Iterable[GpuSnapshot]], nodes: Nodes) -> None:
        """`gpus`, `nodes`: called from this thread."""
        # A search costs 4 µs per descriptor.
        super().__init__("unlisted", self._update, 30.0, log=log)
        self._throttle = LogThrottle(log)
        self._proc = proc
        self._gpus = gpus
        self._nodes = nodes
        self.pids: Mapping[str, tuple[int, ...]] = {}
        """Pids by GPU uuid."""

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
