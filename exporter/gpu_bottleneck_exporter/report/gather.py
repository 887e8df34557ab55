"""Several questions asked at once, with a deadline."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

import click

from gpu_bottleneck_exporter.errors import ExporterError

Answer = TypeVar("Answer")


def gather(
    calls: Mapping[str, Callable[[], Answer]],
    deadline_seconds: float,
    at_once: int = 32,
    server: str = "",
) -> tuple[dict[str, Answer], list[str]]:
    """Answers by name until the deadline, and why others are missing; tells how far it is.

    A call that raises ExporterError is missing; any other error is raised here. `server`: which
    one is asked, if the names are not those of servers.
    """
    waiting = iter([*calls.items()])
    done: SimpleQueue[tuple[str, Answer | Exception]] = SimpleQueue()

    def work() -> None:
        for name, call in waiting:  # each thread takes what the others have not taken
            done.put((name, _outcome(call)))

    for _ in range(min(at_once, len(calls))):
        # Daemons, as a server that hangs must not keep the program from ending.
        threading.Thread(target=work, daemon=True).start()
    late = f"no answer within {deadline_seconds:.0f} s"
    answers: dict[str, Answer] = {}
    missing = {name: f"{server or name}: {late}" for name in calls}
    now = time.monotonic()
    deadline, tell_at, left = now + deadline_seconds, now + 1, len(calls)
    while left and (now := time.monotonic()) < deadline:
        if now >= tell_at and sys.stderr.isatty():
            tell_at = now + 1
            click.echo(f"{len(calls) - left} of {len(calls)} answers", err=True)
        with suppress(Empty):
            name, answer = done.get(timeout=min(deadline - now, 1.0))
            left -= 1
            if isinstance(answer, ExporterError):
                missing[name] = f"{answer}"
            elif isinstance(answer, Exception):
                raise answer
            else:
                answers[name] = answer
                del missing[name]
    return answers, list(missing.values())


def _outcome(call: Callable[[], Answer]) -> Answer | Exception:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - raised again where it can be seen
        return error
