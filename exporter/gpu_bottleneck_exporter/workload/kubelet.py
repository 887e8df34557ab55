"""The thread that asks the kubelet which container was given which GPU."""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.news import News
from gpu_bottleneck_exporter.workload.containers import ContainerNames
from gpu_bottleneck_exporter.workload.devices import holders, read_minors
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.join import Assigned
from gpu_bottleneck_exporter.workload.podresources import METHOD, Given, Holder, given
from gpu_bottleneck_exporter.workload.trouble import (
    MOUNT,
    ROOT_ONLY,
    UNWELL,
    UPGRADE,
    KubeletTrouble,
)
from gpu_bottleneck_exporter.workload.unary import call

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds."""

    look: float = 1.0
    """Between two looks for a new pod."""
    search: float = 3.0
    """Between two looks for a socket where there is none."""
    idle: float = 10.0
    """Between two looks at who is on the GPUs, while there is no socket."""
    ask: float = 30.0
    deadline: float = 5.0
    first_retry: float = 2.0
    """Doubled with each failure, and each answer without a GPU, up to `ask`."""
    keep: float = 90.0
    """An answer that is older is not shown any more."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether the kubelet tells; None: nobody expects it to, or it is being asked."""

    given: bool | None = None
    trouble: KubeletTrouble | None = None
    """Why not; where it does tell, why pods have no names."""

    @property
    def pending(self) -> bool:
        """Whether it has been asked for the first time, and its answer is not there yet."""
        return self.given is None and self.trouble is not None


UNASKED = Condition()


@dataclass(frozen=True, slots=True)
class Answer:
    """What the kubelet told at `at` (monotonic seconds)."""

    at: float
    devices: tuple[Given, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look. `expected`: it is a gap if there is no socket."""

    socket: Path
    logs: Path
    proc: Path
    expected: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """GPUs and MIG instances, and the owners of the processes on them."""

    identities: tuple[Identity, ...] = ()
    owners: frozenset[Owner] = field(default_factory=frozenset)

    @property
    def pods(self) -> frozenset[str]:
        """Their uids."""
        return frozenset(owner.pod_uid for owner in self.owners if owner.pod_uid)

    @property
    def containers(self) -> frozenset[str]:
        """Their ids."""
        return frozenset(owner.container_id for owner in self.owners if owner.container_id)


class KubeletWatch:
    """Asks now and then, and whenever a pod is seen on a GPU that was not there before."""

    def __init__(self, places: Places, look_at_gpus: Callable[[], Seen], pace: Pace) -> None:
        """`look_at_gpus` tells who is on them now; called from the thread."""
        self._places = places
        self._look_at_gpus = look_at_gpus
        self._pace = pace
        self._containers = ContainerNames(places.logs)
        self._names: Mapping[str, Holder] = {}
        self._identities: tuple[Identity, ...] = ()
        self._minors: Mapping[str, int] = {}
        self._answer: Answer | None = None
        self._answered: tuple[int, int] | None = None
        """The socket that `_answer` came from."""
        self._doubted = False
        """Whether the last answer was not believed."""
        self._condition = UNASKED
        self._socket: tuple[int, int] | None = None
        self._asked_about: frozenset[str] = frozenset()
        self._due = 0.0
        self._idle_until = 0.0
        self._retry = pace.first_retry
        self._news = News()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End; a call in work may outlast `timeout_seconds`."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    @property
    def condition(self) -> Condition:
        """Whether the kubelet tells, and why not."""
        return self._condition

    def assigned(self, identities: Sequence[Identity]) -> Mapping[str, Assigned]:
        """What is known of GPUs and MIG instances, all that there are, by uuid."""
        answer = self._answer
        if answer is None or time.monotonic() - answer.at > self._pace.keep:
            answer = Answer(0.0, ())
        having = holders(answer.devices, identities, self._minors)
        return {who.uuid: Assigned(having.get(who.uuid, ()), self._names) for who in identities}

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - whatever a kubelet says, it goes on
                self._news.fault(log, "asking the kubelet", error)
            else:
                self._news.fault(log, "asking the kubelet", None)
            self._stop.wait(self._pace.look if self._socket else self._pace.search)

    def _look(self) -> None:
        if self._is_idle():
            return
        seen, now = self._look_at_gpus(), time.monotonic()
        self._names = self._containers.of(seen.containers, now)
        if seen.identities != self._identities:
            self._identities = seen.identities
            self._minors = read_minors(self._places.proc, seen.identities)
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
            # A new one: that which was raised keeps its frames, and they what was received.
            kept = KubeletTrouble(trouble.sentence, trouble.remedy)
            self._tell(Condition(given=False, trouble=kept))

    def _is_idle(self) -> bool:
        """Whether there is no kubelet to ask: then one look in many is enough."""
        # Not Path.exists: that raises where it may not look.
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
        # A pod that is new is asked about at once, but not through a pause after a failure.
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
            sentence = f"{self._places.socket} answered with nonsense: {error}"
            raise KubeletTrouble(sentence, UPGRADE) from error
        self._take(Answer(at, devices))
        self._tell(Condition(given=True, trouble=self._containers.trouble()))

    def _take(self, answer: Answer) -> None:
        """Believe `answer`, or ask again soon.

        A kubelet that has just started answers before it knows its pods: with none, or with those
        of files on the node only. Meanwhile what was known stays; the second answer counts.
        """
        self._doubted = not self._doubted and self._lacks(answer.devices)
        if self._doubted or answer.devices:
            self._retry = self._pace.first_retry
        if not self._doubted:
            self._answer, self._answered = answer, self._socket
            if answer.devices:
                self._due = answer.at + self._pace.ask
                return
        # It may still not know them: an empty node is asked ever less often.
        self._due = answer.at + self._retry
        self._retry = min(2 * self._retry, self._pace.ask)

    def _lacks(self, devices: Collection[Given]) -> bool:
        """Whether all is gone at once, or some of it with the kubelet that told of it."""
        known = self._answer.devices if self._answer else None
        if not devices:
            return known != ()
        return self._socket != self._answered and not set(known or ()) <= set(devices)

    def _miss(self, seen: Seen) -> None:
        if self._places.expected or seen.pods or self._socket is not None:
            sentence = f"there is no socket {self._places.socket}"
            self._tell(Condition(given=False, trouble=KubeletTrouble(sentence, MOUNT)))
        # Whatever comes next is a new one.
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
    """Which socket it is: one that was made anew is another. None where there is none."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise KubeletTrouble(f"{path}: {error.strerror}", ROOT_ONLY) from error
    except (OSError, ValueError) as error:
        raise KubeletTrouble(f"{path}: {error}", MOUNT) from error
    if not stat.S_ISSOCK(found.st_mode):
        raise KubeletTrouble(f"{path} is no socket", MOUNT)
    return found.st_ino, found.st_ctime_ns
