"""Sentences for users on the causes of waits; never labels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.feeders.rings import MAX_NAME_CHARACTERS, RingTracker, Target
from gpu_bottleneck_exporter.feeders.tcp import PendingRequest
from gpu_bottleneck_exporter.host.mounts import Place, mounts_of_open_files, place_of
from gpu_bottleneck_exporter.host.sockets import Endpoint
from gpu_bottleneck_exporter.host.waits import Wait
from gpu_bottleneck_exporter.schedule import CADENCE

_SLEEP_TEXTS = {
    Wait.LOCK.value: "for a lock",
    Wait.TIMER.value: "on a timer",
    Wait.CHILD.value: "until a child process ends",
    Wait.STOPPED.value: "stopped by a signal or a debugger",
    Wait.FROZEN.value: "frozen by its control group (docker pause)",
    Wait.PIPE.value: "for a pipe or a UNIX socket",
    Wait.POLL.value: "in poll, on pipes, events or connections without a pending response",
    Wait.SOCKET.value: "in a socket without a pending response",
    Wait.ACCEPT.value: "for a client",
    Wait.RING.value: "in an io_uring ring without reads or responses in flight",
    Wait.AIO.value: "in kernel AIO without reads in flight",
    Wait.OTHER.value: "in the kernel",
    Wait.UNKNOWN.value: "for a reason that the kernel does not show",
    "input": "for input",
}
_MAX_ITEMS = 3
"""Maximum number of mounts or pids in a sentence."""

POLLS = "polls"
"""Reason of a main that spins without a request."""


def spinning(reasons: Mapping[str, int]) -> Iterator[str]:
    """A main that runs without an open request."""
    if reasons.get(POLLS):
        yield "the engine polls: it runs without an open request"


def asleep(reasons: Mapping[str, int]) -> Iterator[str]:
    """Waits of sleeping mains; `reasons`: samples by wait without a visible cause."""
    reasons = {reason: number for reason, number in reasons.items() if reason != POLLS}
    total = sum(reasons.values())
    if total:
        largest = sorted(reasons.items(), key=lambda entry: -entry[1])[:2]
        parts = [f"{_SLEEP_TEXTS[reason]} ({number / total:.0%})" for reason, number in largest]
        yield f"the main process sleeps {', '.join(parts)}"


def in_driver(share: float, locks: Iterable[str]) -> Iterator[str]:
    """`share` of samples, 0-1, in which mains waited for driver `locks`."""
    if share:
        names = ", ".join(sorted(printable(lock, MAX_NAME_CHARACTERS) for lock in locks if lock))
        yield f"the main process waits for a lock of the GPU's driver ({share:.0%}): {names}"


def threads(cores: float, name: str) -> Iterator[str]:
    """`cores` used by other threads of mains with workers, and the `name` of the busiest."""
    if cores >= 1:
        busiest = f", {printable(name, MAX_NAME_CHARACTERS)} most" if name else ""
        yield (
            f"threads of the main process that launch no kernels use {cores:.1f} cores{busiest}: "
            "OMP_NUM_THREADS limits those of OpenMP"
        )


def pending(requests: Iterable[PendingRequest], now_ns: int) -> Iterator[str]:
    """The slowest recent request of a feeder."""
    recent = [request for request in requests if now_ns - request.at_ns < CADENCE.recent_ns]
    if recent:
        slowest = max(recent, key=lambda request: request.waited_ms)
        if slowest.is_request:
            yield f"a request from {slowest.remote} is still arriving"
        else:
            yield f"no response from {slowest.remote} after {slowest.waited_ms} ms"


def rank(mains: Collection[int]) -> Iterator[str]:
    """The awaited rank; `mains`: pids of its main processes."""
    if mains:
        yield f"waits for the rank of pid {', '.join(map(str, sorted(mains)[:_MAX_ITEMS]))}"


def datagrams(sources: Iterable[tuple[int, Endpoint]], now_ns: int) -> Iterator[str]:
    """The source of datagrams that a feeder recently awaited."""
    recent = [pair for pair in sources if now_ns - pair[0] < CADENCE.recent_ns]
    if recent:
        _, end = max(recent)
        yield f"waits for datagrams: {end}"


def submissions(trackers: Iterable[RingTracker], target: Target, now_ns: int) -> Iterator[str]:
    """A ring, or kernel AIO, with a recent wait for `target`."""
    for tracker in trackers:
        at_ns, text = tracker.descriptions.get(target, (0, ""))
        if text and now_ns - at_ns < CADENCE.recent_ns:
            yield text
            return


def storage(proc: Path, pids: Iterable[int]) -> Iterator[str]:
    """Mounts of open files, remote ones first."""
    mounts: dict[str, str] = {}
    for pid in pids:
        mounts |= mounts_of_open_files(proc, pid)
    by_place = sorted(mounts.items(), key=lambda item: (place_of(item[1]) is Place.LOCAL, item[0]))
    for mount in by_place[:_MAX_ITEMS]:
        point, filesystem = (printable(text, MAX_NAME_CHARACTERS) for text in mount)
        place = place_of(mount[1])
        where = "local or remote" if place is Place.UNKNOWN else place.value
        yield f"has files open on {point} ({filesystem}, {where})"
