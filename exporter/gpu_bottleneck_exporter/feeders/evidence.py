"""What was seen behind the waiting, in words: for people, never for labels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.feeders.rings import RingTracker, Target
from gpu_bottleneck_exporter.feeders.tcp import PendingRequest
from gpu_bottleneck_exporter.host.mounts import Place, mounts_of_open_files, place_of
from gpu_bottleneck_exporter.host.sockets import Endpoint
from gpu_bottleneck_exporter.host.waits import Wait
from gpu_bottleneck_exporter.schedule import LATELY_NS

_SLEEPS = {
    Wait.LOCK.value: "for a lock",
    Wait.TIMER.value: "on a timer",
    Wait.CHILD.value: "until a child process ends",
    Wait.STOPPED.value: "stopped by a signal or a debugger",
    Wait.FROZEN.value: "frozen by its control group (docker pause)",
    Wait.PIPE.value: "for a pipe or a UNIX socket",
    Wait.POLL.value: "in poll, on pipes, events or connections without a pending answer",
    Wait.SOCKET.value: "in a socket without a pending answer",
    Wait.ACCEPT.value: "for a client",
    Wait.RING.value: "in an io_uring ring without reads or answers in flight",
    Wait.AIO.value: "in kernel AIO without reads in flight",
    Wait.OTHER.value: "in the kernel",
    Wait.UNKNOWN.value: "for a reason that the kernel does not show",
    "input": "for input",
}
_MOST_MOUNTS, _LONGEST = 3, 64
"""Mounts and characters of each that fit into a line for people."""
_MOST_RANKS = 3
"""Pids that fit into a line for people: few share a GPU."""
_KINDS = {Place.REMOTE: "remote", Place.LOCAL: "local", Place.UNKNOWN: "local or remote"}


POLLS = "polls"
"""Reason of a main that runs without anything to do."""


def polls(reasons: Mapping[str, int]) -> Iterator[str]:
    """Whether a main was seen running while no request was open."""
    if reasons.get(POLLS):
        yield "the engine polls: it runs without an open request"


def asleep(reasons: Mapping[str, int]) -> Iterator[str]:
    """`reasons`: how often mains were seen asleep in what, with nothing behind it."""
    reasons = {reason: number for reason, number in reasons.items() if reason != POLLS}
    total = sum(reasons.values())
    if total:
        largest = sorted(reasons.items(), key=lambda entry: -entry[1])[:2]
        parts = [f"{_SLEEPS[reason]} ({number / total:.0%})" for reason, number in largest]
        yield f"the main process sleeps {', '.join(parts)}"


def in_driver(share: float, locks: Iterable[str]) -> Iterator[str]:
    """`share` of the looks, 0-1, at which mains waited in the driver, lately in `locks`."""
    if share:
        names = ", ".join(sorted(printable(lock, _LONGEST) for lock in locks if lock))
        yield f"the main process waits for a lock of the GPU's driver ({share:.0%}): {names}"


def threads(cores: float, name: str) -> Iterator[str]:
    """`cores` that threads of mains with workers use, and the name of the busiest."""
    if cores >= 1:
        called = f", {printable(name, _LONGEST)} first" if name else ""
        yield (
            f"threads of the main process that launch no kernels use {cores:.1f} cores{called}: "
            "OMP_NUM_THREADS bounds those of OpenMP"
        )


def asked(owed: Iterable[PendingRequest], now_ns: int) -> Iterator[str]:
    """Whom a feeder asked lately and had to wait for, the slowest one."""
    recent = [one for one in owed if now_ns - one.at_ns < LATELY_NS]
    if recent:
        slowest = max(recent, key=lambda one: one.waited_ms)
        if slowest.is_request:
            yield f"a request from {slowest.remote} is still arriving"
        else:
            yield f"asked {slowest.remote}, no answer yet after {slowest.waited_ms} ms"


def rank(mains: Collection[int]) -> Iterator[str]:
    """Which rank of the job the others wait for; `mains`: pids of its main processes."""
    if mains:
        yield f"waits for the rank of pid {', '.join(map(str, sorted(mains)[:_MOST_RANKS]))}"


def fed(by: Iterable[tuple[int, Endpoint]], now_ns: int) -> Iterator[str]:
    """The other end of datagrams for which a feeder waited lately."""
    recent = [pair for pair in by if now_ns - pair[0] < LATELY_NS]
    if recent:
        _, end = max(recent)
        yield f"waits for datagrams: {end}"


def submitted(trackers: Iterable[RingTracker], target: Target, now_ns: int) -> Iterator[str]:
    """A ring, or kernel AIO, in which a feeder waited lately for what `target` names."""
    for tracker in trackers:
        at_ns, text = tracker.said.get(target, (0, ""))
        if text and now_ns - at_ns < LATELY_NS:
            yield text
            return


def storage(proc: Path, pids: Iterable[int]) -> Iterator[str]:
    """The places of the files that they have open: on this machine or on another."""
    mounts: dict[str, str] = {}
    for pid in pids:
        mounts |= mounts_of_open_files(proc, pid)
    remote_first = sorted(mounts.items(), key=lambda one: (place_of(one[1]) is Place.LOCAL, one[0]))
    for point, kind in remote_first[:_MOST_MOUNTS]:
        place, what = printable(point, _LONGEST), printable(kind, _LONGEST)
        yield f"has files open on {place} ({what}, {_KINDS[place_of(kind)]})"
