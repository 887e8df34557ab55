"""The thread that queries the kubelet: which container was given which GPU."""

from __future__ import annotations

import logging
import stat
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.cdi import device_nodes
from gpu_bottleneck_exporter.workload.containers import ContainerNames
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.join import Assigned, Named, holders
from gpu_bottleneck_exporter.workload.podresources import METHOD, Given, Holder, given
from gpu_bottleneck_exporter.workload.unary import (
    ROOT_ONLY,
    UNWELL,
    UPGRADE,
    KubeletTrouble,
    call,
)
from gpu_bottleneck_exporter.workload.watch import Watch

log = logging.getLogger(__name__)

_MOST_DESCRIBED = 1024
"""Devices in an answer whose files are looked for."""
_MOUNT = (
    "mount the host's folder /var/lib/kubelet/pod-resources (the folder, because a kubelet that "
    "restarts creates a new socket) and name the socket with --kubelet.socket"
)


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals in seconds."""

    look: float = 1.0
    """Between two looks for new pods on the GPUs."""
    search: float = 10.0
    """The same while there is no socket."""
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


class Answer(NamedTuple):
    """The kubelet's at `at` (monotonic seconds)."""

    at: float
    socket: tuple[int, int] | None
    devices: tuple[Given, ...]


class KubeletWatch(Watch):
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
        super().__init__("kubelet", "polling the kubelet", pace.search)
        self._path = settings.kubelet_socket
        self._cdi = settings.cdi
        self._expected = expected
        self._owners = owners
        self._pace = pace
        self._containers = ContainerNames(settings.container_logs)
        self._names: Mapping[str, Holder] = {}
        self._nodes: Mapping[str, tuple[str, ...]] = {}
        """Device nodes by CDI name; a claim's never change."""
        self._answer: Answer | None = None
        self._doubted = False
        """Whether the last answer was rejected."""
        self._condition = UNASKED
        self._socket: tuple[int, int] | None = None
        self._asked_about: frozenset[str] = frozenset()
        self._due = 0.0
        self._retry = pace.first_retry

    @property
    def condition(self) -> Condition:
        """Whether the kubelet answers, and if not, why."""
        return self._condition

    def assigned(self, gpus: Sequence[Identity], named: Named) -> Mapping[str, Assigned]:
        """Allocations by uuid; `gpus` must be all GPUs and MIG instances of the node."""
        answer = self._answer
        is_current = answer is not None and time.monotonic() - answer.at <= self._pace.keep
        having = holders(answer.devices if answer and is_current else (), gpus, named)
        return {gpu.uuid: Assigned(having.get(gpu.uuid, ()), self._names) for gpu in gpus}

    def _look(self) -> None:
        owners, now = list(self._owners()), time.monotonic()
        pods = frozenset(owner.pod_uid for owner in owners if owner.pod_uid)
        ids = {owner.container_id for owner in owners if owner.container_id}
        self._names = self._containers.of(ids, now)
        try:
            found = _identify(self._path)
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
        self._pause_seconds = self._pace.look if self._socket else self._pace.search

    def _is_due(self, found: tuple[int, int], pods: frozenset[str], now: float) -> bool:
        if found != self._socket:
            self._retry, self._doubted = self._pace.first_retry, False
            return True
        # A new pod triggers a call at once, except during the pause after a failure.
        sure = self._condition.given and not self._doubted
        return now >= self._due or bool(sure and pods - self._asked_about)

    def _ask(self) -> None:
        if self._condition.given is None:
            waiting = KubeletTrouble(f"{self._path} has not answered yet", UNWELL)
            self._condition = Condition(None, waiting)
        reply = call(self._path, METHOD, self._pace.deadline)
        at = time.monotonic()
        try:
            devices = tuple(given(reply))
        except ValueError as error:
            sentence = f"{self._path} sent an invalid answer: {error}"
            raise KubeletTrouble(sentence, UPGRADE) from error
        self._take(Answer(at, self._socket, self._described(devices)))
        self._tell(Condition(given=True, trouble=self._containers.trouble()))

    def _described(self, devices: Sequence[Given]) -> tuple[Given, ...]:
        """`devices` with the nodes of those that are claimed."""
        names = [device.cdi or device.device for device in devices[:_MOST_DESCRIBED]]
        folder, known = self._cdi, self._nodes
        self._nodes = {name: known.get(name) or device_nodes(folder, name) for name in names}
        return tuple(
            one._replace(nodes=self._nodes.get(one.cdi or one.device, ())) for one in devices
        )

    def _take(self, answer: Answer) -> None:
        """Accept `answer`, or reject it and query again soon.

        A kubelet that has just started answers before it knows its pods: with none, or with
        static pods only. Until then the last answer stays; a second answer in a row is accepted.
        """
        self._doubted = not self._doubted and self._lacks(answer)
        if self._doubted or answer.devices:
            self._retry = self._pace.first_retry
        if not self._doubted:
            self._answer = answer
        if not self._doubted and answer.devices:
            self._due = answer.at + self._pace.ask
        else:
            # It may still not know its pods; an empty node is queried ever less often.
            self._pause(answer.at)

    def _lacks(self, answer: Answer) -> bool:
        """Whether all devices vanished at once, or some together with a restart of the kubelet."""
        if self._answer is None:
            return not answer.devices
        lost = set(self._answer.devices) - set(answer.devices)
        return bool(lost) and (not answer.devices or answer.socket != self._answer.socket)

    def _pause(self, since: float) -> None:
        self._due = since + self._retry
        self._retry = min(2 * self._retry, self._pace.ask)

    def _miss(self, pods: Collection[str]) -> None:
        if self._expected or pods or self._socket is not None:
            sentence = f"there is no socket {self._path}"
            self._tell(Condition(given=False, trouble=KubeletTrouble(sentence, _MOUNT)))
        # Matches no socket: the next one counts as new.
        self._socket = (0, 0) if self._socket else None

    def _tell(self, condition: Condition) -> None:
        self._condition = condition
        if not self._throttle.is_new("kubelet", condition.given):
            return
        if condition.trouble is None:
            log.info("signal kubelet is available")
        else:
            how = "available, but" if condition.given else "not available:"
            log.warning("signal kubelet is %s %s", how, condition.trouble)


def _identify(path: Path) -> tuple[int, int] | None:
    """Inode and ctime of the socket, which change when it is recreated; None if it is missing.

    Raises KubeletTrouble.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        remedy = ROOT_ONLY if isinstance(error, PermissionError) else _MOUNT
        raise KubeletTrouble(f"{path}: {error.strerror}", remedy) from error
    if not stat.S_ISSOCK(found.st_mode):
        raise KubeletTrouble(f"{path} is not a socket", _MOUNT)
    return found.st_ino, found.st_ctime_ns
