"""The thread that queries the kubelet: which container was given which GPU."""

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
from gpu_bottleneck_exporter.workload.join import Assigned, Named, holders
from gpu_bottleneck_exporter.workload.podresources import Given, Holder, KubeletTrouble

log = logging.getLogger(__name__)

_MOST_DESCRIBED = 1024
"""Devices in an answer whose files are looked for: far more than a node has GPUs and instances."""
_MAX_SOUGHT = 1024
"""Containers whose names are searched for: more than a node has in 90 s."""
_MOUNT = (
    "mount the host's folder /var/lib/kubelet/pod-resources (the folder, because a kubelet that "
    "restarts creates a new socket) and name the socket with --kubelet.socket"
)
_MOUNT_LOGS = (
    "mount the host's folder /var/log/containers, whose links carry the names of containers (no "
    "log is opened), and name it with --kubelet.container-logs"
)
_NAME = "([-.A-Za-z0-9]{1,253})"
_LINK = re.compile(rf"{_NAME}_{_NAME}_{_NAME}-([0-9a-f]{{64}})\.log")
"""`<pod>_<namespace>_<container>-<id>.log`; Kubernetes allows no `_` in these names."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals in seconds."""

    look: float = 1.0
    """Between two looks for new pods on the GPUs."""
    search: float = 10.0
    """The same while there is no socket."""
    name: float = 10.0
    """Between two searches for the names of containers; those of new ones are searched at each
    look for as long."""
    ask: float = 30.0
    """Between two calls."""
    deadline: float = 5.0
    """For one call."""
    first_retry: float = 2.0
    """Doubles with each failure, and each answer without a GPU, up to `ask`."""
    keep: float = 90.0
    """After which an answer is no longer shown."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether the kubelet answers; None: it is not expected to, or the first call is pending."""

    given: bool | None = None
    trouble: KubeletTrouble | None = None
    """Why it does not answer; if it does, why pods have no names."""

    @property
    def pending(self) -> bool:
        """Whether the first call has not been answered yet."""
        return self.given is None and self.trouble is not None


UNASKED = Condition()


class KubeletWatch(Loop):
    """Queries the kubelet periodically, and as soon as a new pod is seen on a GPU."""

    def __init__(
        self,
        settings: Settings,
        owners: Callable[[], Iterable[Owner]],
        pace: Pace,
        *,
        expected: bool,
    ) -> None:
        """`owners` returns those now on all GPUs; it is called from this thread.

        `expected`: a missing socket is reported.
        """
        super().__init__("kubelet", self._look, pace.search, log=log)
        self._throttle = LogThrottle(log)
        self.condition = UNASKED
        """Whether the kubelet answers, and if not, why."""
        self._settings = settings
        self._expected = expected
        self._owners = owners
        self._pace = pace
        self._names: Mapping[str, Holder] = {}
        self._naming = Every(pace.name)
        self._sought: dict[str, float] = {}
        """Containers to name, and since when, in monotonic seconds."""
        self._nodes: Mapping[str, tuple[str, ...]] = {}
        """Device nodes by CDI name; a claim's never change."""
        self._devices: tuple[Given, ...] | None = None
        """In the last answer that was accepted."""
        self._answered = 0.0
        """When that came, in monotonic seconds."""
        self._doubted = False
        """Whether the last answer was rejected."""
        self._socket: tuple[int, int] | None = None
        self._asked_about: frozenset[str] = frozenset()
        self._due = 0.0
        self._retry = pace.first_retry

    def assigned(self, gpus: Sequence[Identity], named: Named) -> Mapping[str, Assigned]:
        """Allocations by uuid; `gpus` must be all GPUs and MIG instances of the node."""
        is_current = time.monotonic() - self._answered <= self._pace.keep
        having = holders((self._devices or ()) if is_current else (), gpus, named)
        return {gpu.uuid: Assigned(having.get(gpu.uuid, ()), self._names) for gpu in gpus}

    def seek(self, container_id: str) -> None:
        """Name a container, which may end before the next look. For any thread."""
        if len(self._sought) < _MAX_SOUGHT:
            self._sought.setdefault(container_id, time.monotonic())

    def _look(self) -> float:
        owners, now = list(self._owners()), time.monotonic()
        pods = frozenset(owner.pod_uid for owner in owners if owner.pod_uid)
        self._name_containers({owner.container_id for owner in owners if owner.container_id}, now)
        try:
            found = _identify(self._settings.kubelet_socket)
            if found is None:
                self._miss(pods)
            elif self._is_due(found, pods, now):
                self._socket, self._asked_about = found, pods
                self._ask()
        except KubeletTrouble as trouble:
            self._pause(time.monotonic())
            # A copy: the raised one has a traceback, whose frames keep the reply in memory.
            kept = KubeletTrouble(trouble.sentence, trouble.remedy)
            self._tell(Condition(given=False, trouble=kept))
        return self._pace.look if self._socket else self._pace.search

    def _name_containers(self, ids: set[str], now: float) -> None:
        for container_id in ids:
            self.seek(container_id)
        sought = dict(self._sought)  # a copy: other threads add to it
        for container_id in sought.keys() - ids:
            if now - sought[container_id] > self._pace.keep:
                del self._sought[container_id]
        unnamed = sought.keys() - self._names.keys()
        is_new = any(now - sought[container_id] < self._pace.name for container_id in unnamed)
        if unnamed and (is_new or self._naming.is_due(now)):
            # The link of a pod that was deleted is gone, and its name still that of its job.
            kept = {key: name for key, name in self._names.items() if key in sought}
            with suppress(OSError):
                self._names = {**kept, **container_names(self._settings.container_logs, unnamed)}

    def _is_due(self, found: tuple[int, int], pods: frozenset[str], now: float) -> bool:
        if found != self._socket:
            self._retry, self._doubted = self._pace.first_retry, False
            return True
        # A new pod triggers a call at once, except during the pause after a failure.
        sure = self.condition.given and not self._doubted
        return now >= self._due or bool(sure and pods - self._asked_about)

    def _ask(self) -> None:
        path = self._settings.kubelet_socket
        if self.condition.given is None:
            waiting = KubeletTrouble(f"{path} has not answered yet", podresources.UNWELL)
            self.condition = Condition(None, waiting)
        reply = podresources.call(path, self._pace.deadline)
        at = time.monotonic()
        try:
            devices = tuple(podresources.given(reply))
        except ValueError as error:
            sentence = f"{path} sent an invalid answer: {error}"
            raise KubeletTrouble(sentence, podresources.UPGRADE) from error
        self._accept(self._described(devices), at)
        self._tell(Condition(given=True, trouble=names_trouble(self._settings.container_logs)))

    def _described(self, devices: Sequence[Given]) -> tuple[Given, ...]:
        """`devices` with the nodes of those that are claimed."""
        folder, known = self._settings.cdi, self._nodes
        names = [device.cdi or device.device for device in devices[:_MOST_DESCRIBED]]
        self._nodes = {name: known.get(name) or device_nodes(folder, name) for name in names}
        return tuple(
            one._replace(nodes=self._nodes.get(one.cdi or one.device, ())) for one in devices
        )

    def _accept(self, devices: tuple[Given, ...], at: float) -> None:
        """Accept an answer that came `at`, or reject it and query again soon.

        A kubelet that has just started answers before it knows its pods: with none, or with
        static pods only. So while devices are missing, the last answer stays; a second answer in a
        row is accepted.
        """
        missing = not devices if self._devices is None else not {*self._devices} <= {*devices}
        self._doubted = missing and not self._doubted
        if self._doubted or devices:
            self._retry = self._pace.first_retry
        if not self._doubted:
            self._devices, self._answered = devices, at
        if not self._doubted and devices:
            self._due = at + self._pace.ask
        else:
            # It may still not know its pods; an empty node is queried ever less often.
            self._pause(at)

    def _pause(self, since: float) -> None:
        self._due = since + self._retry
        self._retry = min(2 * self._retry, self._pace.ask)

    def _miss(self, pods: Collection[str]) -> None:
        if self._expected or pods or self._socket is not None:
            sentence = f"there is no socket {self._settings.kubelet_socket}"
            self._tell(Condition(given=False, trouble=KubeletTrouble(sentence, _MOUNT)))
        # Matches no socket: the next one counts as new.
        self._socket = (0, 0) if self._socket else None

    def _tell(self, condition: Condition) -> None:
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


def container_names(folder: Path, ids: Collection[str]) -> Mapping[str, Holder]:
    """Names of those containers among `ids` whose log is linked in `folder`. Raises OSError.

    The kubelet keeps these links; no log is opened.
    """
    links = [_LINK.fullmatch(link.name) for link in folder.iterdir()]
    return {one[4]: Holder(one[2], one[1], one[3]) for one in links if one and one[4] in ids}


def names_trouble(folder: Path) -> KubeletTrouble | None:
    """Why no container gets a name; None if `folder` can be read."""
    try:
        os.scandir(folder).close()
    except OSError as error:
        sentence = f"pods have uids only, no names: {folder}: {error.strerror}"
        return KubeletTrouble(sentence, _MOUNT_LOGS)
    return None


def _identify(path: Path) -> tuple[int, int] | None:
    """Inode and ctime of the socket, which change when it is recreated; None if it is missing.

    Raises KubeletTrouble.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        remedy = podresources.ROOT_ONLY if isinstance(error, PermissionError) else _MOUNT
        raise KubeletTrouble(f"{path}: {error.strerror}", remedy) from error
    if not stat.S_ISSOCK(found.st_mode):
        raise KubeletTrouble(f"{path} is not a socket", _MOUNT)
    return found.st_ino, found.st_ctime_ns
