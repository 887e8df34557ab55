"""Several questions asked at once, with a deadline."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, Queue
from typing import Generic, NamedTuple, TypeVar

import click

from gpu_bottleneck_exporter.errors import ExporterError

Answer = TypeVar("Answer")
_AT_ONCE = 32


class Gathered(NamedTuple, Generic[Answer]):
    """What came, and why the rest did not, by name."""

    answers: dict[str, Answer]
    missing: dict[str, str]


def gather(
    calls: Mapping[str, Callable[[], Answer]], deadline_seconds: float, at_once: int = _AT_ONCE
) -> Gathered[Answer]:
    """All answers until the deadline; says on a terminal how far it is where that takes long.

    A call that raises ExporterError is missing; any other error is raised here.
    """
    waiting: Queue[tuple[str, Callable[[], Answer]]] = Queue()
    done: Queue[tuple[str, Answer | Exception]] = Queue()
    for call in calls.items():
        waiting.put(call)

    def work() -> None:
        while True:
            try:
                name, call = waiting.get_nowait()
            except Empty:
                return
            try:
                done.put((name, call()))
            except Exception as error:  # noqa: BLE001 - raised again where it can be seen
                done.put((name, error))

    for _ in range(min(at_once, len(calls))):
        # Daemons, as a server that hangs must not keep the program from ending.
        threading.Thread(target=work, daemon=True).start()
    late = f"no answer within {deadline_seconds:.0f} s"
    found: Gathered[Answer] = Gathered({}, dict.fromkeys(calls, late))
    _collect(done, found, len(calls), deadline_seconds)
    return found


def _collect(
    done: Queue[tuple[str, Answer | Exception]],
    found: Gathered[Answer],
    count: int,
    deadline_seconds: float,
) -> None:
    """Move what is done to `found`, until all is or the deadline is over."""
    now = time.monotonic()
    deadline, tell_at, came = now + deadline_seconds, now + 1, 0
    while came < count and (left := deadline - time.monotonic()) > 0:
        with suppress(Empty):
            name, answer = done.get(timeout=min(left, 1.0))
            came += 1
            if isinstance(answer, ExporterError):
                found.missing[name] = f"{answer}"
            elif isinstance(answer, Exception):
                raise answer
            else:
                del found.missing[name]
                found.answers[name] = answer
        if time.monotonic() >= tell_at and came < count and sys.stderr.isatty():
            tell_at = time.monotonic() + 1
            click.echo(f"{came} of {count} answers", err=True)
