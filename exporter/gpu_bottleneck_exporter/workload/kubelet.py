"""The thread that queries the kubelet for allocations."""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.loop import Loop
from gpu_bottleneck_exporter.schedule import Every
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload import podresources
from gpu_bottleneck_exporter.workload.cdi import device_nodes
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.join import Assigned, DeviceResolver, holders
from gpu_bottleneck_exporter.workload.podresources import (
    Allocation,
    ContainerName,
    KubeletTrouble,
)

log = logging.getLogger(__name__)

_MAX_SEARCHES = 1024
"""Bound on searches for CDI files, and for names of containers (a node starts fewer in 90 s)."""
_SOCKET_REMEDY = (
    "mount the host's folder /var/lib/kubelet/pod-resources (the folder, because a kubelet that "
    "restarts creates a new socket) and name the socket with --kubelet.socket"
)


@dataclass(frozen=True, slots=True)
class KubeletTiming:
    """Times of `KubeletWatch`, in seconds."""

    check: float = 1.0
    """Interval between checks for new pods on the GPUs."""
    socket: float = 10.0
    """Interval between checks while there is no socket."""
    naming: float = 10.0
    """Interval of searches for names of older containers."""
    query: float = 30.0
    """Interval between calls."""
    deadline: float = 5.0
    """Time limit of a call."""
    first_retry: float = 2.0
    """Pause after a failure or an empty response; doubles up to `query`."""
    lifetime: float = 90.0
    """Lifetime of a response."""


@dataclass(frozen=True, slots=True)
class KubeletState:
    """Availability of the kubelet; None: not expected, or pending."""

    given: bool | None = None
    trouble: KubeletTrouble | None = None
    """Reason for missing responses, or else for missing names."""

    @property
    def pending(self) -> bool:
        """Whether the first call is in flight."""
        return self.given is None and self.trouble is not None


NOT_QUERIED = KubeletState()


class KubeletWatch(Loop):
    """Queries the kubelet periodically, and at once for a new pod on a GPU."""

    def __init__(
        self,
        settings: Settings,
        owners: Callable[[], Iterable[Owner]],
        timing: KubeletTiming,
        *,
        expected: bool,
    ) -> None:
        """`owners`: those on all GPUs; called from this thread.

        `expected`: report a missing socket.
        """
        super().__init__("kubelet", self._check, timing.socket, log=log)
        self._throttle = LogThrottle(log)
        self.condition = NOT_QUERIED
        self._settings = settings
        self._expected = expected
        self._owners = owners
        self._timing = timing
        self._names: Mapping[str, ContainerName] = {}
        self._naming = Every(timing.naming)
        self._sought: dict[str, float] = {}
        """Start of the search by container id, in monotonic seconds."""
        self._nodes: Mapping[str, tuple[str, ...]] = {}
        """Device nodes by CDI name; they never change."""
        self._devices: tuple[Allocation, ...] | None = None
        """Devices of the last accepted response."""
        self._accepted_at = 0.0
        """Time of that response, in monotonic seconds."""
        self._rejected = False
        self._socket: tuple[int, int] | None = None
        self._queried_pods: frozenset[str] = frozenset()
        self._due = 0.0
        self._retry = timing.first_retry

    def assigned(self, gpus: Sequence[Identity], resolve: DeviceResolver) -> Mapping[str, Assigned]:
        """Allocations by uuid; `gpus` must be all GPUs and MIG instances of the node."""
        is_current = time.monotonic() - self._accepted_at <= self._timing.lifetime
        by_gpu = holders((self._devices or ()) if is_current else (), gpus, resolve)
        return {gpu.uuid: Assigned(by_gpu.get(gpu.uuid, ()), self._names) for gpu in gpus}

    def seek(self, container_id: str) -> None:
        """Search the name of a container before it ends. Thread-safe."""
        if len(self._sought) < _MAX_SEARCHES:
            self._sought.setdefault(container_id, time.monotonic())

    def _check(self) -> float:
        owners, now = list(self._owners()), time.monotonic()
        pods = frozenset(owner.pod_uid for owner in owners if owner.pod_uid)
        self._name_containers({owner.container_id for owner in owners if owner.container_id}, now)
        try:
            socket = _identify(self._settings.kubelet_socket)
            if socket is None:
                self._report_missing(pods)
            elif self._is_due(socket, pods, now):
                self._socket, self._queried_pods = socket, pods
                self._query()
        except KubeletTrouble as trouble:
            self._pause(time.monotonic())
            # Copied without the traceback: its frames would retain the response.
            trouble = KubeletTrouble(trouble.sentence, trouble.remedy)
            self._report(KubeletState(given=False, trouble=trouble))
        return self._timing.check if self._socket else self._timing.socket

    def _name_containers(self, ids: set[str], now: float) -> None:
        for container_id in ids:
            self.seek(container_id)
        sought = dict(self._sought)  # a copy: other threads add to it
        for container_id in sought.keys() - ids:
            if now - sought[container_id] > self._timing.lifetime:
                del self._sought[container_id]
        unnamed = sought.keys() - self._names.keys()
        is_new = any(now - sought[container_id] < self._timing.naming for container_id in unnamed)
        if unnamed and (is_new or self._naming.is_due(now)):
            # A deleted pod has no link.
            retained = {key: name for key, name in self._names.items() if key in sought}
            with suppress(OSError):
                self._names = {
                    **retained,
                    **container_names(self._settings.container_logs, unnamed),
                }

    def _is_due(self, socket: tuple[int, int], pods: frozenset[str], now: float) -> bool:
        if socket != self._socket:
            self._retry, self._rejected = self._timing.first_retry, False
            return True
        # Not during the pause after a failure.
        works = self.condition.given and not self._rejected
        return now >= self._due or bool(works and pods - self._queried_pods)

    def _query(self) -> None:
        path = self._settings.kubelet_socket
        if self.condition.given is None:
            pending = KubeletTrouble(f"{path} has not answered yet", podresources.UNWELL)
            self.condition = KubeletState(None, pending)
        reply = podresources.call(path, self._timing.deadline)
        at = time.monotonic()
        try:
            devices = tuple(podresources.allocations(reply))
        except ValueError as error:
            sentence = f"{path} sent an invalid answer: {error}"
            raise KubeletTrouble(sentence, podresources.UPGRADE) from error
        self._accept(self._described(devices), at)
        self._report(KubeletState(given=True, trouble=names_trouble(self._settings.container_logs)))

    def _described(self, devices: Sequence[Allocation]) -> tuple[Allocation, ...]:
        """`devices` with the device nodes of claimed ones."""
        folder, nodes = self._settings.cdi, self._nodes
        names = [device.cdi or device.device for device in devices[:_MAX_SEARCHES]]
        self._nodes = {name: nodes.get(name) or device_nodes(folder, name) for name in names}
        return tuple(d._replace(nodes=self._nodes.get(d.cdi or d.device, ())) for d in devices)

    def _accept(self, devices: tuple[Allocation, ...], at: float) -> None:
        """Accept a response of time `at`, or reject it and query again soon.

        A kubelet that has just started responds without its pods: a response with missing devices
        is rejected, unless the last one was.
        """
        missing = not devices if self._devices is None else not {*self._devices} <= {*devices}
        self._rejected = missing and not self._rejected
        if self._rejected or devices:
            self._retry = self._timing.first_retry
        if not self._rejected:
            self._devices, self._accepted_at = devices, at
        if not self._rejected and devices:
            self._due = at + self._timing.query
        else:
            # Pods may still be missing; an empty node is queried ever less often.
            self._pause(at)

    def _pause(self, since: float) -> None:
        self._due = since + self._retry
        self._retry = min(2 * self._retry, self._timing.query)

    def _report_missing(self, pods: Collection[str]) -> None:
        if self._expected or pods or self._socket is not None:
            sentence = f"there is no socket {self._settings.kubelet_socket}"
            self._report(
                KubeletState(given=False, trouble=KubeletTrouble(sentence, _SOCKET_REMEDY))
            )
        # No socket has it: the next one is new.
        self._socket = (0, 0) if self._socket else None

    def _report(self, condition: KubeletState) -> None:
        self.condition = condition
        if not self._throttle.is_new("kubelet", condition.given):
            return
        values = {"signal": "kubelet", "err": condition.trouble}
        if condition.trouble is None:
            log.info("signal is available", values)
        elif condition.given:
            log.warning("signal is available in part", values)
        else:
            log.warning("signal is not available", values)


def container_names(folder: Path, ids: Collection[str]) -> Mapping[str, ContainerName]:
    """Names of the containers `ids`, from log links in `folder`. Raises OSError."""
    # `<pod>_<namespace>_<container>-<id>.log`; names have no `_`.
    name = r"([-.A-Za-z0-9]{1,253})"
    link = re.compile(rf"{name}_{name}_{name}-([0-9a-f]{{64}})\.log")
    links = [link.fullmatch(file.name) for file in folder.iterdir()]
    return {m[4]: ContainerName(m[2], m[1], m[3]) for m in links if m and m[4] in ids}


def names_trouble(folder: Path) -> KubeletTrouble | None:
    """The reason for missing names; None if `folder` is readable."""
    try:
        os.scandir(folder).close()
    except OSError as error:
        sentence = f"pods have uids only, no names: {folder}: {error.strerror}"
        remedy = (
            "mount the host's folder /var/log/containers, whose links carry the names of "
            "containers (no log is opened), and name it with --kubelet.container-logs"
        )
        return KubeletTrouble(sentence, remedy)
    return None


def _identify(path: Path) -> tuple[int, int] | None:
    """Identity of the socket (inode, ctime); None if missing.

    Raises KubeletTrouble.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        remedy = podresources.ROOT_ONLY if isinstance(error, PermissionError) else _SOCKET_REMEDY
        raise KubeletTrouble(f"{path}: {error.strerror}", remedy) from error
    if not stat.S_ISSOCK(status.st_mode):
        raise KubeletTrouble(f"{path} is not a socket", _SOCKET_REMEDY)
    return status.st_ino, status.st_ctime_ns
