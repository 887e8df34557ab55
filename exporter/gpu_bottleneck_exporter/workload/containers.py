"""Container names by container id, from the names of the links to their logs."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from gpu_bottleneck_exporter.workload.podresources import Holder
from gpu_bottleneck_exporter.workload.unary import KubeletTrouble

_NAME = "([-.A-Za-z0-9]{1,253})"
_LINK = re.compile(rf"{_NAME}_{_NAME}_{_NAME}-([0-9a-f]{{64}})\.log")
"""`<pod>_<namespace>_<container>-<id>.log`; Kubernetes allows no `_` in these names."""
_AGAIN_SECONDS = 10.0
_REMEDY = (
    "mount the host's folder /var/log/containers, whose links carry the names of containers (no "
    "log is opened), and name it with --kubelet.container-logs"
)


class ContainerNames:
    """Reads the folder of links that the kubelet keeps; opens no log."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the host's /var/log/containers, which may be missing."""
        self._folder = folder
        self._known: Mapping[str, Holder] = {}
        self._due = 0.0

    def of(self, ids: Collection[str], now: float) -> Mapping[str, Holder]:
        """Names of those containers among `ids` that are known, at monotonic `now` in seconds."""
        if now >= self._due and not self._known.keys() >= set(ids):
            self._due = now + _AGAIN_SECONDS
            with suppress(OSError):
                links = [_LINK.fullmatch(link.name) for link in self._folder.iterdir()]
                self._known = {
                    link[4]: Holder(link[2], link[1], link[3])
                    for link in links
                    if link and link[4] in ids
                }
        return self._known

    def trouble(self) -> KubeletTrouble | None:
        """Why no container gets a name; None if the folder can be read."""
        try:
            os.scandir(self._folder).close()
        except OSError as error:
            sentence = f"pods have uids only, no names: {self._folder}: {error.strerror}"
            return KubeletTrouble(sentence, _REMEDY)
        return None
