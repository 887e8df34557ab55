"""The thread that queries the kubelet: which container was given which GPU."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.workload.cdi import device_nodes
from gpu_bottleneck_exporter.workload.containers import ContainerNames
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.join import Assigned, Named, holders
from gpu_bottleneck_exporter.workload.podresources import METHOD, Given, Holder, given
from gpu_bottleneck_exporter.workload.trouble import (
    MOUNT,
    ROOT_ONLY,
    UNWELL,
    UPGRADE,
    KubeletTrouble,
)
from gpu_bottleneck_exporter.workload.unary import call
from gpu_bottleneck_exporter.workload.watch import Watch

log = logging.getLogger(__name__)

_MOST_DESCRIBED = 1024
"""Devices in an answer whose files are looked for."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals in seconds."""

    look: float = 1.0
    """Between two looks for new pods on the GPUs."""
    search: float = 3.0
    """Between two looks for the socket while there is none."""
    idle: float = 10.0
    """Between two looks at the owners of GPUs while there is no socket."""
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


@dataclass(frozen=True, slots=True)
class Allocations:
    """The kubelet's answer at `at` (monotonic seconds)."""

    at: float
    devices: tuple[Given, ...]


@dataclass(frozen=True, slots=True)
class KubeletPaths:
    """Where to look. `expected`: a missing socket is reported."""

    socket: Path
    logs: Path
    cdi: Path
    expected: bool = False


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The owners of the processes on all GPUs."""

    owners: frozenset[Owner] = field(default_factory=frozenset)

    @property
    def pods(self) -> frozenset[str]:
        """Uids of the owners' pods."""
        return frozenset(owner.pod_uid for owner in self.owners if owner.pod_uid)

    @property
    def containers(self) -> frozenset[str]:
        """Ids of the owners' containers."""
        return frozenset(owner.container_id for owner in self.owners if owner.container_id)


class KubeletWatch(Watch):
    """Queries the kubelet periodically, and as soon as a new pod is seen on a GPU."""

    def __init__(
        self, places: KubeletPaths, look_at_gpus: Callable[[], Occupancy], pace: Pace
    ) -> None:
        """`look_at_gpus` returns the present owners; it is called from this thread."""
        super().__init__("kubelet", "polling the kubelet")
        self._places = places
        self._look_at_gpus = look_at_gpus
        self._pace = pace
        self._containers = ContainerNames(places.logs)
        self._names: Mapping[str, Holder] = {}
        self._nodes: Mapping[str, tuple[str, ...]] = {}
        """Device nodes by CDI name; a claim's never change."""
        self._answer: Allocations | None = None
        self._answered: tuple[int, int] | None = None
        """The socket from which `_answer` came."""
        self._doubted = False
        """Whether the last answer was rejected."""
        self._condition = UNASKED
        self._socket: tuple[int, int] | None = None
        self._asked_about: frozenset[str] = frozenset()
        self._due = 0.0
        self._idle_until = 0.0
        self._retry = pace.first_retry

    @property
    def condition(self) -> Condition:
        """Whether the kubelet answers, and if not, why."""
        return self._condition

    def assigned(self, gpus: Sequence[Identity], named: Named) -> Mapping[str, Assigned]:
        """Allocations by uuid; `gpus` must be all GPUs and MIG instances of the node."""
        answer = self._answer
        if answer is None or time.monotonic() - answer.at > self._pace.keep:
            answer = Allocations(0.0, ())
        having = holders(answer.devices, gpus, named)
        return {gpu.uuid: Assigned(having.get(gpu.uuid, ()), self._names) for gpu in gpus}

    def _pause_seconds(self) -> float:
        return self._pace.look if self._socket else self._pace.search

    def _look(self) -> None:
        if self._is_idle():
            return
        seen, now = self._look_at_gpus(), time.monotonic()
        self._names = self._containers.of(seen.containers, now)
        try:
            found = _identify(self._places.socket)
            if found is not None and self._is_due(found, seen.pods, now):
                self._socket, self._asked_about = found, seen.pods
                self._ask()
            elif found is None:
                self._miss(seen)
        except KubeletTrouble as trouble:
            self._due = time.monotonic() + self._retry
            self._retry = min(2 * self._retry, self._pace.ask)
            # A copy: the raised one has a traceback, whose frames keep the reply in memory.
            kept = KubeletTrouble(trouble.sentence, trouble.remedy)
            self._tell(Condition(given=False, trouble=kept))

    def _is_idle(self) -> bool:
        """Whether to skip this look: without a socket, one every `Pace.idle` is enough."""
        # Not Path.exists, which raises PermissionError.
        if self._socket is not None or os.path.exists(self._places.socket):  # noqa: PTH110
            self._idle_until = 0.0
            return False
        now = time.monotonic()
        if now < self._idle_until:
            return True
        self._idle_until = now + self._pace.idle
        return False

    def _is_due(self, found: tuple[int, int], pods: Collection[str], now: float) -> bool:
        if found != self._socket:
            self._retry, self._doubted = self._pace.first_retry, False
            return True
        # A new pod triggers a call at once, except during the pause after a failure.
        sure = self._condition.given and not self._doubted
        return now >= self._due or bool(sure and set(pods) - self._asked_about)

    def _ask(self) -> None:
        if self._condition.given is None:
            waiting = KubeletTrouble(f"{self._places.socket} has not answered yet", UNWELL)
            self._condition = Condition(None, waiting)
        reply = call(self._places.socket, METHOD, self._pace.deadline)
        at = time.monotonic()
        try:
            devices = tuple(given(reply))
        except ValueError as error:
            sentence = f"{self._places.socket} sent an invalid answer: {error}"
            raise KubeletTrouble(sentence, UPGRADE) from error
        self._take(Allocations(at, self._described(devices)))
        self._tell(Condition(given=True, trouble=self._containers.trouble()))

    def _described(self, devices: Sequence[Given]) -> tuple[Given, ...]:
        """`devices` with the nodes of those that are claimed."""
        names = [device.cdi or device.device for device in devices[:_MOST_DESCRIBED]]
        folder, known = self._places.cdi, self._nodes
        self._nodes = {name: known.get(name) or device_nodes(folder, name) for name in names}
        return tuple(
            one._replace(nodes=self._nodes.get(one.cdi or one.device, ())) for one in devices
        )

    def _take(self, answer: Allocations) -> None:
        """Accept `answer`, or reject it and query again soon.

        A kubelet that has just started answers before it knows its pods: with none, or with
        static pods only. Until then the last answer stays; a second answer in a row is accepted.
        """
        self._doubted = not self._doubted and self._lacks(answer.devices)
        if self._doubted or answer.devices:
            self._retry = self._pace.first_retry
        if not self._doubted:
            self._answer, self._answered = answer, self._socket
            if answer.devices:
                self._due = answer.at + self._pace.ask
                return
        # It may still not know its pods; if the node stays empty, it is queried ever less often.
        self._due = answer.at + self._retry
        self._retry = min(2 * self._retry, self._pace.ask)

    def _lacks(self, devices: Collection[Given]) -> bool:
        """Whether all devices vanished at once, or some together with a restart of the kubelet."""
        known = self._answer.devices if self._answer else None
        if not devices:
            return known != ()
        return self._socket != self._answered and not set(known or ()) <= set(devices)

    def _miss(self, seen: Occupancy) -> None:
        if self._places.expected or seen.pods or self._socket is not None:
            sentence = f"there is no socket {self._places.socket}"
            self._tell(Condition(given=False, trouble=KubeletTrouble(sentence, MOUNT)))
        # Matches no socket: the next one counts as new.
        self._socket = (0, 0) if self._socket else None

    def _tell(self, condition: Condition) -> None:
        self._condition = condition
        if not self._news.is_new("kubelet", condition.given):
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
    except PermissionError as error:
        raise KubeletTrouble(f"{path}: {error.strerror}", ROOT_ONLY) from error
    except (OSError, ValueError) as error:
        raise KubeletTrouble(f"{path}: {error}", MOUNT) from error
    if not stat.S_ISSOCK(found.st_mode):
        raise KubeletTrouble(f"{path} is not a socket", MOUNT)
    return found.st_ino, found.st_ctime_ns
